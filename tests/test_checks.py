"""Settings out of range are refused by key and value; what can work is not."""

import re

import pytest

from groupwise.checks import RULES, check_config
from groupwise.config import RunConfig
from groupwise.errors import BadValueError
from groupwise.overrides import leaf_types, read_overrides


def test_the_default_run_is_fine():
    check_config(RunConfig())


def test_every_rule_is_about_a_setting():
    assert set(RULES) <= set(leaf_types(RunConfig))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rollout.n=0", "rollout.n=0 must be 1 or more"),
        ("rollout.n=1", "rollout.n=1 must be 2 or more under algorithm.adv_estimator=grpo: an answer is judged"),
        ("rollout.temperature=.inf", "rollout.temperature=inf must be more than 0, and finite"),
        ("trainer.seed=4294967296", "trainer.seed=4294967296 must be a whole number from 0 to 4294967295"),
        ("data.val_size=-1", "data.val_size=-1 must be 0 or more"),
        ("algorithm.epsilon=-1e-6", "algorithm.epsilon=-1e-06 must be 0 or more"),
        ("algorithm.kl_ctrl.kl_coef=-1", "algorithm.kl_ctrl.kl_coef=-1.0 must be 0 or more"),
        ("actor.kl_loss_coef=-1", "actor.kl_loss_coef=-1.0 must be 0 or more"),
        ("actor.ref_model_sync_steps=-1", "actor.ref_model_sync_steps=-1 must be 1 or more"),
        ("actor.loss_scale_factor=0", "actor.loss_scale_factor=0 must be 1 or more"),
        ("actor.entropy_coeff=.nan", "actor.entropy_coeff=nan must be a finite number"),
        ("actor.optim.lr=.inf", "actor.optim.lr=inf must be more than 0, and finite"),
        ("actor.optim.betas=[0.9]", "actor.optim.betas=[0.9] must be two numbers from 0 to below 1"),
        ("actor.optim.betas=[0.9,1]", "actor.optim.betas=[0.9, 1.0] must be two numbers from 0 to below 1"),
        ("rollout.temperature=0", "rollout.temperature=0.0 must be more than 0"),
        ("rollout.top_p=0", "rollout.top_p=0.0 must be in (0, 1]"),
        ("rollout.top_p=1.5", "rollout.top_p=1.5 must be in (0, 1]"),
        ("rollout.top_k=-2", "rollout.top_k=-2 must be 0 or more"),
        ("trainer.total_training_steps=0", "trainer.total_training_steps=0 must be 1 or more"),
        ("actor.optim.lr=0", "actor.optim.lr=0.0 must be more than 0"),
        ("actor.optim.lr=.nan", "actor.optim.lr=nan must be more than 0"),
        ("data.max_bad_rows=2", "data.max_bad_rows=2.0 is a share and must be between 0 and 1"),
        ("algorithm.use_pf_ppo=true", "algorithm.use_pf_ppo=True is not offered by this loop; it resamples"),
        ("algorithm.rollout_correction={rollout_is: token}", "algorithm.rollout_correction={'rollout_is': 'token'} is"),
        ("algorithm.rollout_correction.bypass_mode=true", "algorithm.rollout_correction={'bypass_mode': True} is"),
        ("algorithm.filter_groups.enable=true", "algorithm.filter_groups.enable=True is not offered by this loop"),
        ("actor.ppo_mini_batch_size=5", "actor.ppo_mini_batch_size=5 does not divide data.train_batch_size=32"),
    ],
)
def test_a_setting_out_of_range_is_refused(setting, message):
    with pytest.raises(BadValueError, match=f"^{re.escape(message)}"):
        check_config(read_overrides([setting])[0])


@pytest.mark.parametrize("settings", [["rollout.n=2"], ["algorithm.k=16"], ["algorithm.k=0"]])
def test_the_best_of_all_answers_or_of_none_is_refused(settings):
    config, _ = read_overrides(["algorithm.adv_estimator=pass_at_k", *settings])
    with pytest.raises(BadValueError, match=r"^algorithm\.k=\d+ must be at least 1 and below rollout\.n=\d+ under"):
        check_config(config)


@pytest.mark.parametrize("estimator", ["shrinkage", "grpo", "rloo"])
def test_an_answer_without_siblings_is_refused_where_it_teaches_nothing(estimator):
    with pytest.raises(BadValueError, match=r"^rollout\.n=1 must be 2 or more"):
        check_config(read_overrides(["rollout.n=1", f"algorithm.adv_estimator={estimator}"])[0])


@pytest.mark.parametrize(
    "settings",
    [
        ["actor.ppo_mini_batch_size=8"],
        ["trainer.seed=4294967295"],
        ["algorithm.adv_estimator=pass_at_k", "rollout.n=3"],
        ["trainer.num_threads=null"],
        ["rollout.top_k=0"],
        ["data.val_size=0"],
        ["rollout.n=1", "algorithm.adv_estimator=remax"],
        ["rollout.n=1", "algorithm.adv_estimator=reinforce_plus_plus"],
        ["actor.entropy_coeff=-0.01"],
        # verl's section as it stands by default: numbers, and nothing switched on
        ["algorithm.rollout_correction.rollout_is=null", "algorithm.rollout_correction.rollout_is_threshold=2.0"],
    ],
)
def test_a_setting_at_its_edge_is_taken(settings):
    check_config(read_overrides(settings)[0])
