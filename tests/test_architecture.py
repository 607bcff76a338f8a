"""The shape of the package: who may import whom, no cycles, small files, short functions."""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "groupwise"
FILES = sorted(PACKAGE.rglob("*.py"))
# Every stage may know these, and they know no stage.
SHARED = {"types", "errors", "config"}
# A folder is a stage, or shows what the stages do. The files beside the folders join them: the loop and its helpers.
STAGES = {"tasks", "rollout", "rewards", "advantages", "objectives", "policy", "update", "observe", "store"}
OTHER_FOLDERS = {"config", "integrations", "inspect", "assets"}
ADVANTAGES_MAY_LOAD = {"torch", "numpy", "groupwise"} | set(sys.stdlib_module_names)
KERNELS_MAY_LOAD = ADVANTAGES_MAY_LOAD | {"triton"}


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}
CONFIG = [module for module in MODULES if module.startswith("groupwise.config")]


def stage_of(module):
    """`groupwise.advantages.groups` is of the stage `advantages`; the package itself of the stage ``."""
    return module.partition(".")[2].partition(".")[0]


def is_typing_only(node):
    """`if TYPE_CHECKING:` and nothing more: a branch that never runs."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports(tree, module, *, lazy):
    """The modules a file imports, resolved to ours where they are ours; without those inside functions unless lazy."""
    found, open_nodes = set(), [tree]
    while open_nodes:
        node = open_nodes.pop()
        if is_typing_only(node) or (isinstance(node, ast.FunctionDef) and not lazy):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            found |= {
                f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in MODULES else node.module for a in node.names
            }
        open_nodes.extend(ast.iter_child_nodes(node))
    return found


TREES = {module: ast.parse(path.read_text()) for module, path in MODULES.items()}


@pytest.mark.parametrize("module", [module for module in MODULES if stage_of(module) in STAGES])
def test_a_stage_knows_the_shared_nouns_and_itself_and_no_other_stage(module):
    known = {stage_of(name) for name in imports(TREES[module], module, lazy=True) if name.startswith("groupwise")}
    assert known <= SHARED | {stage_of(module)}


def test_every_folder_is_a_stage_or_shows_what_the_stages_do():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= STAGES | OTHER_FOLDERS


@pytest.mark.parametrize("module", ["groupwise.types", "groupwise.errors", *CONFIG])
def test_the_shared_nouns_know_no_stage(module):
    known = {stage_of(name) for name in imports(TREES[module], module, lazy=True) if name.startswith("groupwise")}
    assert known <= SHARED


@pytest.mark.parametrize("module", [module for module in MODULES if stage_of(module) == "advantages"])
def test_the_advantages_import_torch_numpy_and_the_standard_library(module):
    allowed = KERNELS_MAY_LOAD if ".kernels." in module else ADVANTAGES_MAY_LOAD
    tops = {name.partition(".")[0] for name in imports(TREES[module], module, lazy=True)}
    assert tops <= allowed


@pytest.mark.parametrize("module", ["groupwise", "groupwise.errors", *CONFIG])
def test_what_is_read_without_torch_imports_the_standard_library_only(module):
    tops = {name.partition(".")[0] for name in imports(TREES[module], module, lazy=True)}
    assert tops <= set(sys.stdlib_module_names) | {"groupwise"}


def test_no_module_imports_itself_through_others():
    graph = {
        module: {name for name in imports(tree, module, lazy=False) if name in MODULES and name != module}
        for module, tree in TREES.items()
    }
    # A package's __init__ re-exports its files; they do not go through it, and do not count as importing it.
    state, path = {}, []

    def visit(module):
        state[module] = "open"
        path.append(module)
        for name in sorted(graph[module]):
            assert state.get(name) != "open", f"import cycle: {' -> '.join([*path[path.index(name) :], name])}"
            if name not in state:
                visit(name)
        path.pop()
        state[module] = "done"

    for module in graph:
        if module not in state:
            visit(module)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_has_at_most_300_lines_and_a_function_at_most_60(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        # A Triton kernel is one program; it cannot be cut into functions that stay in registers.
        if isinstance(node, ast.FunctionDef) and "triton.jit" not in map(ast.unparse, node.decorator_list):
            assert node.end_lineno - node.lineno + 1 <= 60, f"{node.name} has more than 60 lines"


def test_every_module_of_the_advantages_has_a_file_of_tests():
    stage = PACKAGE / "advantages"
    tests = Path(__file__).parent / "advantages"
    missing = [
        path.name
        for path in stage.glob("*.py")
        if path.name != "__init__.py" and not (tests / f"test_{path.name}").exists()
    ]
    assert missing == []
