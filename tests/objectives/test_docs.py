"""The tables of the page are those of the code."""

import re

import pytest
import torch

from groupwise.config import ActorConfig
from groupwise.objectives import AGGREGATES, KL_ESTIMATORS, LOSS_MODES, RECIPES, combine_metrics, objective
from objectives.batches import pack, random_answers, totals_of
from test_docs import ROOT, table

PAGE = ROOT / "docs" / "objectives.md"


def test_every_recipe_is_in_the_table_with_its_numbers():
    rows = table(PAGE, "recipe")
    assert list(rows) == list(RECIPES)
    for name, recipe in RECIPES.items():
        mode, aggregate, settings, estimator, source = rows[name]
        assert (mode, aggregate, estimator) == (recipe.loss_mode, recipe.aggregate, recipe.estimator)
        assert settings == ", ".join(f"{key} = {value:g}" for key, value in recipe.settings.items())
        assert recipe.source in source


def test_every_loss_mode_is_in_the_table():
    rows = table(PAGE, "loss mode")
    assert list(rows) == list(LOSS_MODES)
    for name, mode in LOSS_MODES.items():
        ratio, _, aggregate, source = rows[name]
        assert ratio == mode.ratio
        assert aggregate == mode.aggregate + (", always" if mode.forced else "")
        papers = re.findall(r"arxiv.org/abs/([\d.]+\d)", mode.surrogate.__doc__)
        # One function each serves gspo and PPO's clip, reinforce and GPG.
        assert name in ("gspo", "reinforce") or any(paper in source for paper in papers)


@pytest.mark.parametrize(("heading", "known"), [("aggregate", AGGREGATES), ("estimator", KL_ESTIMATORS)])
def test_every_name_is_in_its_table(heading, known):
    assert list(table(PAGE, heading)) == list(known)


def test_every_metric_is_in_the_table():
    answers = random_answers(0)
    found = objective(pack(answers), ActorConfig(use_kl_loss=True), totals_of(answers)).metrics
    assert set(table(PAGE, "metric")) == set(found)
    largest = combine_metrics([found, {name: torch.zeros(()) for name in found}])
    assert {name for name in found if name.endswith("/max")} == {"actor/ratio/max"}
    assert largest["actor/ratio/max"] == found["actor/ratio/max"]
