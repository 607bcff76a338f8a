"""Mutation tests of the advantages: change one thing in the source, and see whether a test minds.

    make mutation                                        # all of it
    make mutation ONLY='groupwise.advantages.groups.*'   # one module

mutmut does the work; what it mutates stands in pyproject.toml under [tool.mutmut]. Two things are added. It passes
over decorated functions, which half of ours are: here the decorators stay on the function that chooses among the
mutants, and the mutants go without. And it runs every test that reached the function one by one, which are thousands
for a group's mean: here whole files run, the module's own first, and the first failure ends it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import libcst as cst
from mutmut.__main__ import cli
from mutmut.mutation import file_mutation
from mutmut.runners.harness import PytestRunner
from mutmut.utils.file_utils import change_cwd

_NATIVE = {"classmethod", "staticmethod"}

_skips = file_mutation.MutationVisitor._skip_node_and_children
_arrangement = file_mutation.function_trampoline_arrangement


def _is_native(function: cst.FunctionDef) -> bool:
    return len(function.decorators) == 1 and getattr(function.decorators[0].decorator, "value", "") in _NATIVE


def skip_node_and_children(visitor: Any, node: cst.CSTNode) -> bool:
    """As mutmut does, except that a decorated function is not passed over."""
    bare = node.with_changes(decorators=[]) if isinstance(node, cst.FunctionDef) else node
    return _skips(visitor, bare)


def arrange_trampoline(function: cst.FunctionDef, mutants: Iterable[Any], class_name: str | None) -> tuple[Any, ...]:
    """As mutmut does, except that the mutants of a decorated function have no decorators: they are called by it."""
    before, (trampoline, *copies), after, names = _arrangement(function, mutants, class_name=class_name)
    if not _is_native(function):
        copies = [copy.with_changes(decorators=[]) for copy in copies]
    return before, [trampoline, *copies], after, names


def run_tests(runner: PytestRunner, *, mutant_name: str | None, tests: Iterable[str]) -> int:
    """The test files that reach the mutated function: its module's own first, and if they pass, the others."""
    counts = Counter(test.partition("::")[0] for test in tests)
    own = f"test_{(mutant_name or '').rpartition('.')[0].rpartition('.')[2]}.py"
    first = [name for name in counts if name.endswith(f"/{own}")]
    others = sorted(counts.keys() - first, key=counts.__getitem__)
    with change_cwd("mutants"):
        for files in (first, others) if counts else (runner._pytest_add_cli_args_test_selection,):
            if files and (failure := int(runner.execute_pytest(["-x", "-q", *files]))):
                return failure
    return 0


if __name__ == "__main__":
    file_mutation.MutationVisitor._skip_node_and_children = skip_node_and_children
    file_mutation.function_trampoline_arrangement = arrange_trampoline
    PytestRunner.run_tests = run_tests
    sys.exit(cli())
