"""Every policy loss of verl 0.9.1 beside ours, value and gradient, on random batches of one micro-batch.

Where ours differs on purpose, both values stand side by side at the end.
"""

import inspect

import pytest
import torch
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig as VerlConfig
from verl.workers.config import PolicyLossConfig

from groupwise import objectives
from groupwise.objectives import LOSS_MODES, agg_loss, get_policy_loss_fn, kl_penalty

SEEDS = range(12)
MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"]
NAMES = sorted(set(core_algos.POLICY_LOSS_REGISTRY) - {"bypass_mode"})
KL_NAMES = ["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"]
# verl adds 1e-8 to the counts it divides by.
EXACT64 = 1e-7
EXACT32 = 2e-5


def verl_config(**changes):
    policy_loss = PolicyLossConfig(clip_cov_lb=0.05, clip_cov_ratio=0.2, kl_cov_ratio=0.1, dro_beta=0.3)
    given = {"strategy": "fsdp", "rollout_n": 1, "use_dynamic_bsz": True, "policy_loss": policy_loss}
    return VerlConfig(**given | changes)


def random_batch(seed, dtype=torch.float64, spread=0.5, empty=True):
    """Log-probabilities of two policies not far apart, gaps in the mask, sometimes an empty answer."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2 + seed % 5, 3 + seed % 7)
    old = -3 * torch.rand(shape, generator=generator, dtype=torch.float64) - 0.01
    log_prob = -(old + spread * torch.randn(shape, generator=generator, dtype=torch.float64)).abs()
    advantages = torch.randn(shape[0], 1, generator=generator, dtype=torch.float64).expand(shape)
    mask = (torch.rand(shape, generator=generator) < 0.8).to(dtype)
    mask[:, 0] = 1
    if empty and seed % 3 == 0:
        mask[0] = 0
    weights = 0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)
    tensors = (old, log_prob, advantages * mask, mask, weights)
    return [tensor.to(dtype).contiguous() for tensor in tensors]


def value_and_gradient(function, batch, mode, config, weighted):
    old, log_prob, advantages, mask, weights = batch
    log_prob = log_prob.clone().requires_grad_()
    torch.manual_seed(1)  # clip_cov draws
    loss, metrics = function(old, log_prob, advantages, mask, mode, config, weights if weighted else None)
    return loss.detach(), torch.autograd.grad(loss, log_prob)[0], metrics


def assert_agrees(name, batch, mode, config, weighted, tolerance):
    ours = value_and_gradient(get_policy_loss_fn(name), batch, mode, config, weighted)
    theirs = value_and_gradient(core_algos.get_policy_loss_fn(name), batch, mode, config, weighted)
    torch.testing.assert_close(ours[0], theirs[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(ours[1], theirs[1], rtol=tolerance, atol=tolerance)
    for key, value in theirs[2].items():
        if (name, key) != ("kl_cov", "actor/ppo_kl"):
            assert isinstance(ours[2][key], float)
            assert ours[2][key] == pytest.approx(value, rel=1e-5, abs=1e-6), key


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_same_loss_gradient_and_metrics_as_verl(name, mode, weighted):
    for seed in SEEDS:
        # verl's geo_mean counts an empty answer in its mean.
        batch = random_batch(seed, empty=name != "geo_mean")
        assert_agrees(name, batch, mode, verl_config(), weighted, EXACT64)


@pytest.mark.parametrize("name", NAMES)
def test_same_in_float32(name):
    for seed in SEEDS:
        batch = random_batch(seed, torch.float32, empty=name != "geo_mean")
        assert_agrees(name, batch, "token-mean", verl_config(), False, EXACT32)


@pytest.mark.parametrize("name", NAMES)
def test_same_with_other_bounds_and_far_policies(name):
    # ratios up to exp(±10): every bound is at work
    config = verl_config(clip_ratio_low=0.1, clip_ratio_high=0.4, clip_ratio_c=1.5, tau_pos=2.0, tau_neg=0.5)
    for seed in SEEDS:
        batch = random_batch(seed, spread=4.0, empty=name != "geo_mean")
        assert_agrees(name, batch, "token-mean", config, False, EXACT64)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "geo_mean"])
@pytest.mark.parametrize("mode", MODES)
def test_same_with_the_counts_of_the_whole_step(name, mode):
    info = {"dp_size": 2, "batch_num_tokens": 77, "global_batch_size": 9, "loss_scale_factor": 32}
    for seed in SEEDS:
        config = verl_config()
        config.global_batch_info.update(info)
        assert_agrees(name, random_batch(seed), mode, config, False, EXACT64)


def test_reinforce_is_verls_unregistered_function():
    for seed in SEEDS:
        ours = value_and_gradient(get_policy_loss_fn("reinforce"), random_batch(seed), "token-mean", None, True)
        theirs = value_and_gradient(
            core_algos.compute_policy_loss_reinforce, random_batch(seed), "token-mean", verl_config(), True
        )
        for a, b in zip(ours[:2], theirs[:2], strict=True):
            torch.testing.assert_close(a, b, rtol=EXACT64, atol=EXACT64)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("whole", [{}, {"dp_size": 3, "batch_num_tokens": 50, "global_batch_size": 8}])
@pytest.mark.parametrize("scale", [None, 16])
def test_agg_loss(mode, whole, scale):
    for seed in SEEDS:
        _, losses, _, mask, _ = random_batch(seed)
        given = (losses, mask, mode)
        ours = agg_loss(*given, **whole, loss_scale_factor=scale)
        theirs = core_algos.agg_loss(*given, **whole, loss_scale_factor=scale)
        torch.testing.assert_close(ours, theirs, rtol=EXACT64, atol=EXACT64)


@pytest.mark.parametrize("name", [name + plus for name in KL_NAMES for plus in ("", "+")])
@pytest.mark.parametrize("spread", [0.5, 10.0], ids=["near", "far"])
def test_kl_penalty(name, spread):
    for seed in SEEDS:
        old, log_prob, *_ = random_batch(seed, spread=spread)
        results = []
        for function in (kl_penalty, core_algos.kl_penalty):
            leaf = log_prob.clone().requires_grad_()
            value = function(leaf, old, name)
            results.append((value.detach(), torch.autograd.grad(value.sum(), leaf)[0]))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["fixed", "adaptive"])
def test_kl_controllers(kind):
    from verl.trainer.config import KLControlConfig

    config = KLControlConfig(type=kind, kl_coef=0.01, horizon=100, target_kl=0.1)
    ours, theirs = objectives.get_kl_controller(config), core_algos.get_kl_controller(config)
    for current in (0.0, 0.05, 0.1, 0.11, 5.0):
        ours.update(current, 16)
        theirs.update(current, 16)
        assert ours.value == pytest.approx(theirs.value, rel=1e-14)


@pytest.mark.parametrize("kind", ["kl", "low_var_kl", "k2"])
def test_kl_in_reward(kind):
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import apply_kl_penalty

    for seed in SEEDS:
        # an empty answer counts in verl's mean over answers
        old, log_prob, _, mask, _ = random_batch(seed, empty=False)
        fields = {"token_level_scores": torch.zeros_like(old), "old_log_probs": log_prob, "ref_log_prob": old}
        data = DataProto.from_dict(tensors=fields | {"response_mask": mask})
        data, metrics = apply_kl_penalty(data, core_algos.FixedKLController(0.3), kl_penalty=kind)
        counted = mask.bool()
        ids = torch.arange(len(mask))[:, None].expand(mask.shape)[counted]
        rewards, current = objectives.kl_in_reward(log_prob[counted], old[counted], ids, len(mask), 0.3, kind)
        torch.testing.assert_close(rewards, data.batch["token_level_rewards"][counted], rtol=1e-12, atol=1e-12)
        assert current.item() == pytest.approx(metrics["actor/reward_kl_penalty"], rel=1e-6)


def test_the_registry_has_verls_names():
    assert {*NAMES, "reinforce"} == set(LOSS_MODES)


@pytest.mark.parametrize("name", NAMES)
def test_signature_is_verls(name):
    theirs = inspect.signature(core_algos.get_policy_loss_fn(name)).parameters
    ours = inspect.signature(get_policy_loss_fn(name)).parameters
    assert list(ours) == list(theirs)
    for key, parameter in theirs.items():
        # verl's geo_mean has a default that it does not look at.
        if (name, key) != ("geo_mean", "loss_agg_mode"):
            assert (ours[key].default, ours[key].kind) == (parameter.default, parameter.kind)
    assert get_policy_loss_fn(name).__name__ == core_algos.get_policy_loss_fn(name).__name__


@pytest.mark.parametrize("function", ["agg_loss", "kl_penalty"])
def test_helpers_have_verls_signature(function):
    ours, theirs = (inspect.signature(getattr(of, function)).parameters for of in (objectives, core_algos))
    assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in theirs.values()]


# Differences on purpose.


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "token-sum"])
def test_nothing_but_masked_positions_is_0_where_verl_has_nan(mode):
    losses, mask = torch.ones(2, 3), torch.zeros(2, 3)
    assert agg_loss(losses, mask, mode).item() == 0
    assert core_algos.agg_loss(losses, mask, mode).isnan()


@pytest.mark.parametrize("name", NAMES)
def test_nan_at_a_masked_position_reaches_no_gradient(name):
    old, log_prob, advantages, mask, weights = random_batch(1)
    clean = value_and_gradient(
        get_policy_loss_fn(name), (old, log_prob, advantages, mask, weights), "seq-mean-token-mean", verl_config(), True
    )
    off = mask == 0
    dirty = [torch.where(off, float("nan"), tensor) for tensor in (old, log_prob, advantages)]
    batch = (*dirty, mask, torch.where(off, float("nan"), weights))
    ours = value_and_gradient(get_policy_loss_fn(name), batch, "seq-mean-token-mean", verl_config(), True)
    assert torch.equal(ours[0], clean[0])
    assert torch.equal(ours[1], clean[1])
    assert ours[2] == clean[2]
    theirs = value_and_gradient(core_algos.get_policy_loss_fn(name), batch, "seq-mean-token-mean", verl_config(), True)
    assert theirs[1].isnan().any() or theirs[0].isnan()


def test_geo_mean_leaves_an_empty_answer_out_of_the_mean():
    # Ratio 1 and advantage 1 in two answers, of which one is empty: -1 over 1 answer; verl: (-1 + 0) over 2.
    zeros, mask = torch.zeros(2, 3), torch.tensor([[1.0, 1, 1], [0, 0, 0]])
    given = (zeros, zeros.clone().requires_grad_(), mask.clone(), mask)
    assert get_policy_loss_fn("geo_mean")(*given, config=verl_config())[0].item() == -1
    assert core_algos.get_policy_loss_fn("geo_mean")(*given, config=verl_config())[0].item() == pytest.approx(-0.5)


def test_ppo_kl_of_kl_cov_is_signed_like_that_of_the_others():
    # log-ratios +1 and -1: their mean is 0, that of their absolute values 1
    old, log_prob, ones = torch.tensor([[-2.0, -2.0]]), torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2)
    ours = get_policy_loss_fn("kl_cov")(old, log_prob, ones, ones, config=verl_config())[1]
    theirs = core_algos.get_policy_loss_fn("kl_cov")(old, log_prob.clone(), ones, ones, config=verl_config())[1]
    assert (ours["actor/ppo_kl"], theirs["actor/ppo_kl"]) == (0.0, pytest.approx(1.0))


def test_without_a_config_the_defaults_are_verls():
    batch = random_batch(4)
    for name in NAMES:
        if name == "dro":
            with pytest.raises(ValueError, match=r"set actor\.dro_beta above 0"):
                get_policy_loss_fn(name)(*batch[:4])
            continue
        with pytest.raises(AssertionError):
            core_algos.get_policy_loss_fn(name)(*batch[:4])
        config = VerlConfig(
            strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, clip_ratio_c=LOSS_MODES[name].defaults.clip_c
        )
        ours = value_and_gradient(get_policy_loss_fn(name), batch, "token-mean", None, False)
        theirs = value_and_gradient(core_algos.get_policy_loss_fn(name), batch, "token-mean", config, False)
        for a, b in zip(ours[:2], theirs[:2], strict=True):
            torch.testing.assert_close(a, b, rtol=EXACT64, atol=EXACT64)


def test_a_log_ratio_beyond_20_does_not_overflow_in_the_covariance_losses():
    # verl holds the log-ratio within ±20 in most losses but not in these two.
    old, log_prob, ones = torch.tensor([[-800.0, -1.0]]), torch.tensor([[-0.5, -1.0]]), torch.ones(1, 2)
    for name in ("clip_cov", "kl_cov"):
        ours = get_policy_loss_fn(name)(old, log_prob, -ones, ones, config=verl_config())[0]
        theirs = core_algos.get_policy_loss_fn(name)(old, log_prob.clone(), -ones, ones, config=verl_config())[0]
        assert ours.isfinite()
        assert theirs.isinf()
