"""Files and modules that a run imports before it looks at its settings."""

import sys

import pytest

from groupwise.advantages import ADV_ESTIMATOR_REGISTRY
from groupwise.errors import BadValueError
from groupwise.extensions import import_extensions
from groupwise.rewards import user_reward

MINE = """
from groupwise.advantages import register_adv_est
COUNT = []

@register_adv_est("of_my_file")
def of_my_file(token_level_rewards, response_mask, **kwargs):
    return token_level_rewards, token_level_rewards

def score(solution_str):
    COUNT.append(solution_str)
    return float(len(COUNT))
"""


@pytest.fixture(autouse=True)
def _as_before():
    registered, modules = dict(ADV_ESTIMATOR_REGISTRY), set(sys.modules)
    yield
    ADV_ESTIMATOR_REGISTRY.clear()
    ADV_ESTIMATOR_REGISTRY.update(registered)
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_what_a_file_registers_is_there_and_the_file_runs_once(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    import_extensions([str(path)])
    function = ADV_ESTIMATOR_REGISTRY["of_my_file"]
    # Run a second time it would register another function under the same name.
    import_extensions([str(path), str(path)])
    user_reward(f"{path}:score")
    assert ADV_ESTIMATOR_REGISTRY["of_my_file"] is function


def test_a_module_is_imported_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "a_module_of_mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    import_extensions(["a_module_of_mine"])
    assert "of_my_file" in ADV_ESTIMATOR_REGISTRY


def test_a_file_that_changed_is_another_module(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def score(solution_str): return 1.0")
    user_reward(f"{path}:score")
    path.write_text("def better(solution_str): return 2.0")
    user_reward(f"{path}:better")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("not_there.py", r"model\.external_lib=not_there\.py: there is no file .*not_there\.py; correct the path"),
        ("not.there", r"model\.external_lib=not\.there: importing it raised ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_imported_is_refused_by_name(place, message):
    with pytest.raises(BadValueError, match=message):
        import_extensions([place])


@pytest.mark.parametrize("code", ["1 / 0", "raise SystemExit(3)", "import not_there_either"])
def test_a_file_that_raises_is_refused_with_its_reason(tmp_path, code):
    path = tmp_path / "mine.py"
    path.write_text(code)
    with pytest.raises(BadValueError, match=r"mine\.py: running the file raised \w+: .*see that `python"):
        import_extensions([str(path)])
