"""`compute_advantage` on a real DataProto beside verl's, and verl's configs in ours."""

import dataclasses

import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.config import AlgoConfig as VerlConfig
from verl.trainer.ppo import ray_trainer
from verl.utils.config import omega_conf_to_dataclass

from groupwise.advantages import AlgoConfig, compute_advantage
from groupwise.errors import BadValueError, NonFiniteScoreError
from integrations.verl.batches import CASES, EXACT32, GDPO_KEYS
from integrations.verl.protocol import YAML, random_proto, verls_algorithm_section


@pytest.fixture(scope="module")
def section():
    return verls_algorithm_section(gdpo_reward_keys=GDPO_KEYS, gamma=0.9, lam=0.8)


def as_each_kind_of_config(section):
    ours = AlgoConfig.from_mapping(section)
    return {"omegaconf": section, "verl": omega_conf_to_dataclass(section), "ours": ours, "dict": dict(section)}


@pytest.mark.parametrize("kind", ["omegaconf", "verl", "ours", "dict"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_batch_as_verls_orchestrator(case, kind, section):
    config = as_each_kind_of_config(section)[kind]
    for seed in range(6):
        theirs, ours = (random_proto(seed, case.singletons, case.name == "remax") for _ in range(2))
        theirs = ray_trainer.compute_advantage(theirs, case.name, 0.9, 0.8, config=section)
        returned = compute_advantage(ours, case.name, 0.9, 0.8, config=config)
        assert returned is ours
        assert set(ours.batch.keys()) == set(theirs.batch.keys())
        counted = ours.batch["response_mask"].bool()
        for name in ("advantages", "returns"):
            a, b = ours.batch[name], theirs.batch[name]
            assert a.dtype == b.dtype == torch.float32
            torch.testing.assert_close(a[counted], b[counted], rtol=EXACT32, atol=EXACT32)


def test_a_missing_response_mask_is_made_as_verl_makes_it(section):
    theirs, ours = random_proto(3), random_proto(3)
    for data in (theirs, ours):
        del data.batch["response_mask"]
    theirs = ray_trainer.compute_advantage(theirs, "grpo", config=section)
    compute_advantage(ours, "grpo", config=section)
    assert torch.equal(ours.batch["response_mask"], theirs.batch["response_mask"])
    torch.testing.assert_close(ours.batch["advantages"], theirs.batch["advantages"], rtol=EXACT32, atol=EXACT32)


@pytest.mark.parametrize("name", ["grpo", "grpo_passk"])
def test_the_std_is_switched_off_as_in_verl(name, section):
    config = OmegaConf.merge(section, {"norm_adv_by_std_in_grpo": False})
    theirs, ours = (random_proto(3, singletons=False) for _ in range(2))
    theirs = ray_trainer.compute_advantage(theirs, name, norm_adv_by_std_in_grpo=False, config=config)
    compute_advantage(ours, name, norm_adv_by_std_in_grpo=False, config=config)
    torch.testing.assert_close(ours.batch["advantages"], theirs.batch["advantages"], rtol=EXACT32, atol=EXACT32)


@pytest.mark.parametrize("name", ["grpo_vectorized", "gdpo"])
def test_the_std_is_switched_off_where_verls_orchestrator_forgets_to_pass_it_on(name, section):
    config = OmegaConf.merge(section, {"norm_adv_by_std_in_grpo": False})
    on, off, ours = (random_proto(3) for _ in range(3))
    ray_trainer.compute_advantage(on, name, norm_adv_by_std_in_grpo=True, config=section)
    ray_trainer.compute_advantage(off, name, norm_adv_by_std_in_grpo=False, config=config)
    compute_advantage(ours, name, norm_adv_by_std_in_grpo=False, config=config)
    assert torch.equal(on.batch["advantages"], off.batch["advantages"])
    assert (ours.batch["advantages"] - off.batch["advantages"]).abs().max() > 0.1


def test_the_scores_of_greedy_answers_go_to_those_who_ask_where_verl_hands_them_to_all(section):
    with pytest.raises(TypeError, match="unexpected keyword argument 'reward_baselines'"):
        ray_trainer.compute_advantage(random_proto(3, greedy=True), "grpo_vectorized", config=section)
    with_scores, without = random_proto(3, greedy=True), random_proto(3)
    for data in (with_scores, without):
        compute_advantage(data, "grpo_vectorized", config=section)
    assert torch.equal(with_scores.batch["advantages"], without.batch["advantages"])


def test_no_config_is_enough_for_gae_where_verl_asks_it_for_pf_ppo():
    with pytest.raises(AttributeError):
        ray_trainer.compute_advantage(random_proto(3), "gae")
    data = compute_advantage(random_proto(3), "gae")
    assert data.batch["advantages"].isfinite().all()


def test_epsilon_and_convention_of_the_config_reach_grpo_where_verl_hands_it_no_config(section):
    plain, wide, trl = (random_proto(3) for _ in range(3))
    compute_advantage(plain, "grpo", config=section)
    compute_advantage(wide, "grpo", config=verls_algorithm_section(epsilon=1.0))
    compute_advantage(trl, "grpo", config=verls_algorithm_section(convention="trl"))
    assert wide.batch["advantages"].abs().max() < plain.batch["advantages"].abs().max()
    assert (trl.batch["advantages"] - plain.batch["advantages"]).abs().max() > 0


def test_a_nan_score_is_refused_with_row_and_label_where_verl_trains_on_nan(section):
    theirs, ours = random_proto(3), random_proto(3)
    for data in (theirs, ours):
        data.batch["token_level_rewards"][2, 0] = torch.nan
    theirs = ray_trainer.compute_advantage(theirs, "grpo", config=section)
    assert theirs.batch["advantages"].isnan().any()
    label = repr(ours.non_tensor_batch["uid"][2])
    with pytest.raises(NonFiniteScoreError, match=rf"row 2 \(uid {label}\)"):
        compute_advantage(ours, "grpo", config=section)


def test_pf_ppo_is_refused_without_verl_to_do_it():
    with pytest.raises(BadValueError, match="use_pf_ppo=True is not offered"):
        compute_advantage(random_proto(3), "gae", config=VerlConfig(use_pf_ppo=True))


def test_our_config_has_verls_fields_and_defaults_one_by_one():
    ours = AlgoConfig()
    verls = VerlConfig()
    names = [field.name for field in dataclasses.fields(verls) if not field.name.startswith("_")]
    assert list(AlgoConfig.names())[: len(names)] == names
    for name in names:
        a, b = getattr(ours, name), getattr(verls, name)
        if dataclasses.is_dataclass(b):
            for inner in (f.name for f in dataclasses.fields(b) if not f.name.startswith("_")):
                assert getattr(a, inner) == getattr(b, inner), (name, inner)
        else:
            assert a == b, name


def test_our_config_is_built_from_verls_yaml_as_it_stands():
    plain = AlgoConfig.from_mapping(OmegaConf.load(YAML / "ppo_trainer.yaml").algorithm)
    section = verls_algorithm_section()
    composed = AlgoConfig.from_mapping(section)
    verls = omega_conf_to_dataclass(section)
    for name in AlgoConfig.names():
        if name in section and name not in ("kl_ctrl", "filter_groups", "rollout_correction"):
            assert composed[name] == plain[name] == verls[name] == section[name], name
    assert (composed.filter_groups.metric, composed.filter_groups.enable) == ("reward", False)
    assert composed.kl_ctrl.kl_coef == verls.kl_ctrl.kl_coef
    assert composed.rollout_correction["rollout_is_threshold"] == section.rollout_correction.rollout_is_threshold
