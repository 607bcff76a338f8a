"""The table of recipes, and what a config changes in one."""

import pytest
from omegaconf import OmegaConf

from groupwise import advantages
from groupwise.config import ActorConfig
from groupwise.errors import UnknownNameError
from groupwise.objectives import AGGREGATES, LOSS_MODES, RECIPES, Settings, plan


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_names_what_there_is(name):
    recipe = RECIPES[name]
    assert recipe.loss_mode in LOSS_MODES
    assert recipe.aggregate in AGGREGATES
    known = {*advantages.OUTCOME_ESTIMATORS, *(member.value for member in advantages.AdvantageEstimator)}
    assert recipe.estimator in known
    chosen = plan(ActorConfig(recipe=name, dro_beta=1.0))
    assert (chosen.mode, chosen.aggregate) == (LOSS_MODES[recipe.loss_mode], recipe.aggregate)
    for key, value in recipe.settings.items():
        assert getattr(chosen.settings, key) == value


def test_grpo_is_verls_defaults():
    assert plan(None).settings == plan(ActorConfig()).settings == Settings()


def test_the_config_stands_over_the_recipe():
    chosen = plan(ActorConfig(recipe="dapo", clip_ratio_high=0.5, loss_agg_mode="prompt-mean"))
    assert (chosen.settings.clip_low, chosen.settings.clip_high, chosen.settings.clip_c) == (0.2, 0.5, 10.0)
    assert chosen.aggregate == "prompt-mean"


def test_one_clip_ratio_stands_for_the_bound_that_is_not_given_apart():
    chosen = plan(ActorConfig(recipe="dapo", clip_ratio=0.1, clip_ratio_low=0.05))
    assert (chosen.settings.clip_low, chosen.settings.clip_high) == (0.05, 0.1)


def test_another_loss_mode_leaves_the_numbers_of_the_recipe_behind():
    # 3e-4 bounds the ratio of whole answers; of a token it would clip nearly everything.
    chosen = plan(ActorConfig(recipe="gspo", loss_mode="vanilla"))
    assert chosen.settings == Settings()
    assert chosen.aggregate == "seq-mean-token-mean"
    assert plan(ActorConfig(loss_mode="dppo_tv")).settings.clip_c == 20.0


@pytest.mark.parametrize("kind", [dict, OmegaConf.create, ActorConfig.from_mapping])
def test_every_kind_of_config_is_read(kind):
    chosen = plan(kind({"recipe": "sapo", "tau_neg": 3.0}))
    assert (chosen.settings.tau_pos, chosen.settings.tau_neg) == (1.0, 3.0)


def test_verl_keeps_some_numbers_one_level_down():
    config = {"recipe": "kl_cov", "policy_loss": {"kl_cov_ratio": 0.5, "ppo_kl_coef": 0.9}, "ppo_kl_coef": 0.8}
    settings = plan(config).settings
    assert (settings.kl_cov_ratio, settings.ppo_kl_coef) == (0.5, 0.8)


def test_unknown_names_are_refused():
    with pytest.raises(UnknownNameError, match=r"unknown actor\.recipe 'grop'; the nearest is 'grpo'"):
        plan(ActorConfig(recipe="grop"))
    with pytest.raises(UnknownNameError, match="unknown loss mode 'vanila'; the nearest is 'vanilla'"):
        plan(ActorConfig(loss_mode="vanila"))
