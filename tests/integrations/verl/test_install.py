"""`install()` in this process: verl's own orchestrator, registry and modules, on a real DataProto."""

import sys

import pytest
import torch
import verl
from verl.trainer.ppo import core_algos, ray_trainer
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from groupwise import advantages
from groupwise.advantages import ADV_ESTIMATOR_REGISTRY, RunningBaseline, register_adv_est, register_outcome_estimator
from groupwise.errors import BadValueError, GroupwiseError, MissingFieldError, UnknownNameError, UnsupportedVersionError
from groupwise.integrations.verl import install, installed, uninstall
from integrations.verl.batches import CASES, GDPO_KEYS, ORCHESTRATED
from integrations.verl.protocol import random_proto, verls_algorithm_section

VERLS = {case.name for case in CASES}
OURS_ALONE = sorted(set(ADV_ESTIMATOR_REGISTRY) - VERLS)


@pytest.fixture(scope="module")
def section():
    return verls_algorithm_section(gdpo_reward_keys=GDPO_KEYS, gamma=0.9, lam=0.8)


@pytest.fixture
def own_name():
    """A name for an estimator of the test's own, gone from both registries afterwards."""
    yield "median_baseline"
    for registry in (ADV_ESTIMATOR_REGISTRY, advantages.OUTCOME_ESTIMATORS, core_algos.ADV_ESTIMATOR_REGISTRY):
        registry.pop("median_baseline", None)


def state_of_verl():
    """Everything `install` may touch."""
    attributes = {name: value for name, value in vars(core_algos).items() if name.startswith("compute_")}
    orchestrators = [sys.modules[name].compute_advantage for name in ORCHESTRATED]
    return dict(core_algos.ADV_ESTIMATOR_REGISTRY), attributes, orchestrators


def batch_for(name, seed=3, singletons=False):
    """With what the estimators ask for that verl's rollout does not provide."""
    data = random_proto(seed, singletons, greedy=name == "remax")
    if name == "grpo_process":
        data.batch["step_mask"] = data.batch["response_mask"].clone()
    if name == "running_baseline":
        data.meta_info["baseline"] = RunningBaseline()
    return data


@pytest.mark.parametrize("name", sorted(ADV_ESTIMATOR_REGISTRY))
def test_verls_trainer_gets_our_advantages_under_every_name(name, section):
    expected = advantages.compute_advantage(batch_for(name), name, 0.9, 0.8, config=section)
    with installed():
        data = ray_trainer.compute_advantage(batch_for(name), name, 0.9, 0.8, config=section)
    for field in ("advantages", "returns"):
        assert torch.equal(data.batch[field], expected.batch[field])


@pytest.mark.parametrize("name", sorted(VERLS | {"dr_grpo", "maxrl", "pass_at_k", "shrinkage"}))
def test_verls_own_orchestrator_gets_our_advantages_through_its_registry_and_attributes(name, section):
    expected = advantages.compute_advantage(batch_for(name), name, 0.9, 0.8, config=section)
    with installed(orchestrator=False):
        assert ray_trainer.compute_advantage.__module__ == "verl.trainer.ppo.ray_trainer"
        data = ray_trainer.compute_advantage(batch_for(name), name, 0.9, 0.8, config=section)
    for field in ("advantages", "returns"):
        assert torch.equal(data.batch[field], expected.batch[field])


@pytest.mark.parametrize("member", list(core_algos.AdvantageEstimator), ids=lambda member: member.value)
def test_verls_lookups_find_ours(member):
    install()
    found = core_algos.get_adv_estimator_fn(member)
    assert found is core_algos.ADV_ESTIMATOR_REGISTRY[member.value]
    assert found.__wrapped__ is ADV_ESTIMATOR_REGISTRY[member.value]
    function = {case.name: case.function for case in CASES}[member.value]
    assert getattr(core_algos, function) is getattr(advantages, function)


def test_the_orchestrator_is_replaced_wherever_it_has_been_imported():
    install()
    replaced = {sys.modules[name].compute_advantage for name in ORCHESTRATED}
    assert len(replaced) == 1
    assert replaced.pop().__module__ == "groupwise.integrations.verl"


def test_the_trainer_for_many_trajectories_gets_ours_too(section):
    data = random_proto(3, singletons=False)
    keys = [f"prompt_{row}_0" for row in range(len(data))]
    data.batch["token_level_rewards"].fill_(0)
    data.batch["token_level_rewards"][:, 0] = 100.1
    data.batch["response_mask"].fill_(1)
    data.non_tensor_batch["uid"][:] = "one prompt"
    theirs = compute_advantage_for_multi_trajectories(data, keys, "grpo", config=section).batch["advantages"].clone()
    with installed():
        ours = compute_advantage_for_multi_trajectories(data, keys, "grpo", config=section).batch["advantages"]
    assert theirs.abs().max() > 0.1
    assert torch.count_nonzero(ours) == 0


def test_uninstall_restores_exactly_what_was_there():
    before = state_of_verl()
    install()
    assert state_of_verl() != before
    uninstall()
    assert state_of_verl() == before


@pytest.mark.parametrize("orchestrator", [True, False])
def test_installing_and_uninstalling_twice_is_harmless(orchestrator):
    before = state_of_verl()
    install()
    install(orchestrator=orchestrator)
    assert (ray_trainer.compute_advantage is before[2][0]) is not orchestrator
    uninstall()
    uninstall()
    assert state_of_verl() == before


def test_the_block_form_uninstalls_after_an_error():
    before = state_of_verl()
    with pytest.raises(ZeroDivisionError), installed():
        raise ZeroDivisionError
    assert state_of_verl() == before


def test_what_others_put_there_meanwhile_survives(own_name):
    install()

    @core_algos.register_adv_est(own_name)
    def theirs(**fields):
        raise NotImplementedError

    core_algos.ADV_ESTIMATOR_REGISTRY["rloo"] = patched = lambda **fields: None
    before = core_algos.compute_opo_outcome_advantage
    uninstall()
    assert core_algos.ADV_ESTIMATOR_REGISTRY[own_name] is theirs
    assert core_algos.ADV_ESTIMATOR_REGISTRY["rloo"] is patched
    assert core_algos.compute_opo_outcome_advantage is not before
    core_algos.ADV_ESTIMATOR_REGISTRY["rloo"] = core_algos.compute_rloo_outcome_advantage


def test_a_module_that_imports_the_orchestrator_while_it_is_ours_gets_verls_back(monkeypatch):
    original = ray_trainer.compute_advantage
    install()
    late = type(sys)("late_trainer")
    late.compute_advantage = ray_trainer.compute_advantage
    monkeypatch.setitem(sys.modules, "late_trainer", late)
    uninstall()
    assert late.compute_advantage is original


def test_an_estimator_of_ones_own_needs_no_second_install_under_our_orchestrator(own_name, section):
    install()

    @register_outcome_estimator(own_name)
    def median_baseline(scores, groups):
        medians = [scores[groups.ids == g].median() for g in range(groups.num_groups)]
        return scores - groups.spread(torch.stack(medians))

    data = ray_trainer.compute_advantage(random_proto(3), own_name, config=section)
    assert data.batch["advantages"].abs().max() > 0
    assert own_name not in core_algos.ADV_ESTIMATOR_REGISTRY
    install()
    assert own_name in core_algos.ADV_ESTIMATOR_REGISTRY


@pytest.mark.parametrize("orchestrator", [True, False])
def test_an_estimator_gets_the_fields_its_signature_names_and_no_others(own_name, section, orchestrator):
    @register_adv_est(own_name)
    def short(token_level_rewards, response_mask):
        return token_level_rewards * response_mask, token_level_rewards

    install(orchestrator=orchestrator)
    data = ray_trainer.compute_advantage(random_proto(3, greedy=True), own_name, config=section)
    assert torch.equal(data.batch["returns"], data.batch["token_level_rewards"])


def test_an_estimator_that_only_verl_knows_is_called_as_verl_calls_it(own_name, section):
    seen = {}

    @core_algos.register_adv_est(own_name)
    def theirs(token_level_rewards, response_mask, config, index):
        seen.update(config=config, index=index)
        return token_level_rewards, token_level_rewards

    install()
    data = ray_trainer.compute_advantage(random_proto(3), own_name, config=section)
    assert seen["config"] is section
    assert seen["index"] is data.non_tensor_batch["uid"]


def test_one_name_for_two_estimators_is_refused(own_name):
    core_algos.register_adv_est(own_name)(lambda **fields: None)
    register_adv_est(own_name)(lambda **fields: None)
    with pytest.raises(BadValueError, match=f"advantage estimator '{own_name}' is .* in verl's registry and"):
        install()


@pytest.mark.parametrize(
    ("name", "field"), [("grpo_process", "step_mask"), ("running_baseline", "baseline"), ("remax", "reward_baselines")]
)
@pytest.mark.parametrize("orchestrator", [True, False])
def test_state_that_nobody_hands_over_is_named(name, field, orchestrator, section):
    install(orchestrator=orchestrator)
    with pytest.raises(MissingFieldError, match=f"estimator '{name}' needs '{field}'") as caught:
        ray_trainer.compute_advantage(random_proto(3), name, config=section)
    assert ("install(orchestrator=True)" in str(caught.value)) is not orchestrator


def test_an_unknown_name_is_refused_with_the_nearest(section):
    install()
    with pytest.raises(UnknownNameError, match="the nearest is 'maxrl'"):
        ray_trainer.compute_advantage(random_proto(3), "max_rl", config=section)


def test_pf_ppo_is_still_done_by_verl_on_our_advantages(section):
    config = verls_algorithm_section(use_pf_ppo=True)
    install()
    torch.manual_seed(0)
    data = random_proto(3)
    resampled = ray_trainer.compute_advantage(data, "gae", 0.9, 0.8, config=config)
    assert resampled is not data
    torch.manual_seed(0)
    expected = advantages.compute_advantage(random_proto(3), "gae", 0.9, 0.8, config=section)
    again = core_algos.compute_pf_ppo_reweight_data(expected, config.pf_ppo.reweight_method, config.pf_ppo.weight_pow)
    assert torch.equal(resampled.batch["advantages"], again.batch["advantages"])


@pytest.mark.parametrize("version", ["0.8.0", "0.10.0", "1.0"])
def test_another_verl_is_refused_and_left_alone(version, monkeypatch):
    monkeypatch.setattr(verl, "__version__", version)
    before = state_of_verl()
    with pytest.raises(UnsupportedVersionError, match=rf"verl {version} is installed.*install verl==0\.9\.1") as caught:
        install()
    assert isinstance(caught.value, GroupwiseError)
    assert state_of_verl() == before
