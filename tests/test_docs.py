"""The documentation is checked like code: its blocks are run, its tables are compared, its names must all be there."""

import ast
import contextlib
import io
import json
import re
import runpy
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from groupwise import advantages
from groupwise.advantages import (
    ADV_ESTIMATOR_REGISTRY,
    CONVENTIONS,
    OUTCOME_ESTIMATORS,
    RunningBaseline,
    advantages_from_scores,
)
from groupwise.advantages.health import BROKEN, KINDS
from groupwise.checks import check_config
from groupwise.config import RunConfig
from groupwise.overrides import leaf_types, read_overrides

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
BLOCK = re.compile(r"(<!-- not run.*?-->\n)?^( *)```python\n(.*?)^\2```\n(?:\n\2```text\n(.*?)^\2```\n)?", re.M | re.S)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?")


def table(page, heading):
    """The rows under a header row that starts with `heading`, as {first cell: other cells}; backticks taken off."""
    lines = page.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        first, *others = [cell.strip() for cell in line.strip("|").split("|")]
        for name in re.findall(r"`([^`]+)`", first):
            rows[name] = [cell.replace("`", "") for cell in others]
    return rows


def assert_same_output(printed, shown):
    """The same text, numbers to 2e-6."""
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
    theirs = [float(number) for number in NUMBER.findall(shown)]
    assert [float(number) for number in NUMBER.findall(printed)] == pytest.approx(theirs, abs=2e-6)


@pytest.fixture
def _registries():
    """What a page registers is gone after it."""
    before = dict(OUTCOME_ESTIMATORS), dict(ADV_ESTIMATOR_REGISTRY)
    yield
    for registry, names in zip((OUTCOME_ESTIMATORS, ADV_ESTIMATOR_REGISTRY), before, strict=True):
        registry.clear()
        registry.update(names)


@pytest.fixture(scope="module")
def built_in():
    """The names a fresh import offers: other tests may have registered estimators of their own here."""
    code = (
        "import json; from groupwise.advantages import *; "
        "names = [m.value for m in AdvantageEstimator]; "
        "print(json.dumps([list(OUTCOME_ESTIMATORS), list(ADV_ESTIMATOR_REGISTRY), names]))"
    )
    run = [sys.executable, "-c", code]
    found = subprocess.run(run, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT / "src")})
    outcome, registry, verl = map(set, json.loads(found.stdout))
    return {"outcome": outcome, "registry": registry, "verl": verl}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.usefixtures("_registries")
def test_every_python_block_prints_what_the_page_shows(page):
    namespace = {"__name__": page.stem}
    for skipped, _, code, shown in BLOCK.findall(page.read_text(encoding="utf-8")):
        if skipped:
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(textwrap.dedent(code), page.name, "exec"), namespace)
        assert_same_output(printed.getvalue(), textwrap.dedent(shown))


def test_readme_shows_what_its_first_example_prints(capsys):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = "examples/first_advantages.py"
    shown = readme.split(example)[2].split("```text\n")[1].split("```")[0]
    exec(compile((ROOT / example).read_text(encoding="utf-8"), example, "exec"), {"__name__": "__main__"})
    assert_same_output(capsys.readouterr().out, shown)


def test_readme_seed_example_is_the_contract():
    # Group 0: mean 1/2, std sqrt(1/3), so ±0.5 / 0.577351. Group 1: mean 1/4, std 1/2, so -0.25 / 0.5 and 0.75 / 0.5.
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = readme.split("compute_grpo_outcome_advantage(\n")[1].split("```text\n")[1].split("]")[0]
    expected = [0.866024, -0.866024, 0.866024, -0.866024, -0.5, -0.5, -0.5, 1.5]
    assert [float(number) for number in NUMBER.findall(shown)] == pytest.approx(expected, abs=4e-6)


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "estimators.md"], ids=lambda page: page.name)
def test_estimator_table_is_complete(page, built_in):
    rows = table(page, "name")
    assert set(rows) == built_in["outcome"] | built_in["registry"]
    verl = {name for name, cells in rows.items() if "yes" in cells[:2]}
    assert verl == built_in["verl"]


def test_estimators_page_says_which_judge_scores(built_in):
    rows = table(ROOT / "docs" / "estimators.md", "name")
    assert {name for name, cells in rows.items() if cells[0] == "outcome"} == built_in["outcome"]


@pytest.mark.parametrize("name", sorted(set(table(ROOT / "README.md", "name")) & set(OUTCOME_ESTIMATORS)))
def test_readme_says_what_an_answer_alone_gets(name):
    _, _, alone, whitened, _ = table(ROOT / "README.md", "name")[name]
    scores, labels = [0.7, 1.0, 0.0, 0.5, 0.25, 0.0, 0.75, 0.5, 1.0], ["alone", *"aabbbccc"]
    options = {"baseline": RunningBaseline()} if name == "running_baseline" else {}
    if alone == "error":
        with pytest.raises(ValueError, match="at least 2 answers"):
            advantages_from_scores(scores, labels, name)
        return
    found = advantages_from_scores(scores, labels, name, **options)
    if whitened == "yes":
        # mean 0, standard deviation 1, order kept: the singleton has the highest value before whitening
        assert found.mean().item() == pytest.approx(0, abs=1e-6)
        assert found.std().item() == pytest.approx(1, abs=1e-5)
        return
    assert abs(found.std().item() - 1) > 1e-3
    # gpg: 9 answers, 7 of them not 0; the batch's mean, for a prompt without a past, is 4.7 / 9
    expected = {"raw score": 0.7, "0": 0.0, "raw score, scaled": 0.7 * 9 / 7, "distance from the past": 0.7 - 4.7 / 9}
    if alone in expected:
        assert found[0].item() == pytest.approx(expected[alone], abs=1e-6)
    else:
        assert alone == "distance from the batch"
        assert 0 < found[0].item() < 0.7


def test_conventions_table_is_the_code():
    shown = table(ROOT / "docs" / "conventions.md", "convention")
    assert list(shown) == list(CONVENTIONS)
    for name, row in CONVENTIONS.items():
        cells = [row.centre, row.scale, str(row.ddof), str(row.eps), row.singleton, row.source]
        assert shown[name] == cells


def test_health_table_is_the_code():
    shown = table(ROOT / "docs" / "health.md", "kind")
    assert shown == {kind: ["yes" if kind in BROKEN else "no", meaning] for kind, meaning in KINDS.items()}


@pytest.mark.parametrize("name", advantages.__all__)
def test_every_public_name_is_documented(name):
    assert any(f"`{name}" in page.read_text(encoding="utf-8") for page in DOCS), f"{name} stands in no page of docs/"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_every_link_inside_the_project_leads_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.M)
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings]


def commands():
    """Every `groupwise ...` of the documentation's shell blocks, a trailing backslash continued."""
    for page in PAGES:
        for block in re.findall(r"^ *```sh\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.M | re.S):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] == ["groupwise"]:
                    yield pytest.param(words[1:], id=f"{page.name}: {line.strip()[:60]}")


@pytest.mark.parametrize("words", list(commands()))
def test_every_command_shown_is_understood(words):
    assert words[0] in {"train", "eval", "sample", "report", "--help"}
    config, _ = read_overrides([word for word in words[1:] if "=" in word])
    check_config(config)


def test_the_pages_of_settings_are_the_settings():
    """After a change of the settings, their ranges or verl's names: python scripts/write_settings.py"""
    script = runpy.run_path(str(ROOT / "scripts" / "write_settings.py"))
    for page in script["PAGES"]:
        text = page.read_text(encoding="utf-8")
        assert script["render"](text) == text
    shown = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert all(f"| `{key}` |" in shown for key in leaf_types(RunConfig))


def test_the_defaults_beside_verls_are_the_defaults():
    script = runpy.run_path(str(ROOT / "scripts" / "write_settings.py"))
    for key, (_, ours) in table(ROOT / "docs" / "coming-from-verl.md", "setting").items():
        section, *names = key.split(".")
        value = RunConfig()[section]
        for name in names:
            value = value[name]
        if value is not None:
            assert ours == script["as_written"](value), key


def test_layers_import_only_from_above():
    """docs/design.md orders the files of the heart; none imports from a later row."""
    package = ROOT / "src" / "groupwise" / "advantages"
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    rows = [line for line in page.split("| layer |")[1].splitlines()[2:] if line.startswith("|")]
    layer = {name: place for place, row in enumerate(rows) for name in re.findall(r"`(\w+)\.py`", row.split("|")[2])}
    assert set(layer) == {path.stem for path in package.glob("*.py")} - {"__init__"}
    for name, place in layer.items():
        tree = ast.parse((package / f"{name}.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("groupwise.advantages"):
                imported = [node.module.split(".")[-1], *(alias.name for alias in node.names)]
                assert all(layer.get(other, 0) <= place for other in imported), f"{name}.py imports {imported}"


def test_the_documented_study_is_the_saved_one():
    """The numbers that docs/estimators.md gives for shrinkage stand in the dated result it links to."""
    page = (ROOT / "docs" / "estimators.md").read_text(encoding="utf-8")
    name = re.search(r"benchmarks/results/([\d-]+-shrinkage)\.md", page)[1]
    cells = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))["cells"]
    extreme = "0.02 or 0.98"
    small = [c for c in cells if c["answers"] <= 4 and c["prompts"] >= 8 and c["family"] != extreme]
    assert f"lower in all {len(small)} cells" in page
    assert all(c["shrinkage_ratio"] + 2 * c["shrinkage_se"] < 1 for c in small)
    at_two = [c["shrinkage_ratio"] for c in small if (c["prompts"], c["answers"]) == (64, 2)]
    assert f"With 64 prompts and n = 2: {', '.join(f'{ratio:.2f}' for ratio in at_two)}." in page
    worst = max(c["shrinkage_ratio"] for c in cells)
    assert worst == max(c["shrinkage_ratio"] for c in cells if c["family"] == extreme)
    assert f"give up to {worst:.2f}" in page
