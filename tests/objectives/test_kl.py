"""KL estimators by hand and against exact expectations; controllers."""

from math import exp

import pytest
import torch

from groupwise.config import ActorConfig, KLControlConfig
from groupwise.errors import BadValueError, UnknownNameError
from groupwise.objectives import (
    KL_ESTIMATORS,
    AdaptiveKLController,
    FixedKLController,
    get_kl_controller,
    kl_in_reward,
    kl_penalty,
    plan,
)
from oracles import objectives as oracle

LOG_PROBS = torch.tensor([-0.5, -2.0, -1.0], dtype=torch.float64)
REF = torch.tensor([-1.0, -0.7, -1.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "value", "slope"),
    [
        # lp - ref = log 2
        ("k1", 0.6931471805599453, 1.0),
        ("abs", 0.6931471805599453, 1.0),
        ("k2", 0.2402265069591007, 0.6931471805599453),
        # 1/2 + log 2 - 1; slope 1 - 1/2
        ("k3", 0.1931471805599453, 0.5),
        ("k1+", 0.6931471805599453, 0.6931471805599453),
        ("k3+", 0.1931471805599453, 0.6931471805599453),
    ],
)
def test_by_hand(name, value, slope):
    log_prob = torch.tensor([0.6931471805599453 - 3], dtype=torch.float64, requires_grad=True)
    found = kl_penalty(log_prob, torch.tensor([-3.0], dtype=torch.float64), name)
    found.backward()
    assert found.item() == pytest.approx(value)
    assert log_prob.grad.item() == pytest.approx(slope)


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_values_are_those_of_the_loop(name):
    pairs = zip(LOG_PROBS.tolist(), REF.tolist(), strict=True)
    expected = [oracle.kl(name, lp, ref) for lp, ref in pairs]
    assert kl_penalty(LOG_PROBS, REF, name).tolist() == pytest.approx(expected)
    assert kl_penalty(LOG_PROBS, REF, f"{name}+").tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_gradients_are_those_of_finite_differences(name):
    log_probs = torch.tensor([-0.5, -2.0, -1.3], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda lp: kl_penalty(lp, REF, name), (log_probs,))


def expected_gradient(name):
    """Of the estimator in a loss, over every token of a small vocabulary, and of the KL divergence itself."""
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.0, 0.5, -0.4, 0.2], dtype=torch.float64).log_softmax(0)
    log_probs = logits.log_softmax(0)
    sampled = (log_probs.exp().detach() * kl_penalty(log_probs, reference, name)).sum()
    true = (log_probs.exp() * (log_probs - reference)).sum()
    return [torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (sampled, true)]


@pytest.mark.parametrize("name", ["k2", "k1+", "k3+", "low_var_kl+", "abs+"])
def test_with_a_plus_the_expected_gradient_is_that_of_the_divergence(name):
    found, true = expected_gradient(name)
    torch.testing.assert_close(found, true)


def test_without_it_k1_teaches_nothing_and_k3_something_else():
    found, true = expected_gradient("k1")
    torch.testing.assert_close(found, torch.zeros_like(found))
    found, true = expected_gradient("k3")
    assert (found - true).abs().max() > 0.05


def test_k3_is_held_and_then_has_no_gradient():
    # exp(30) would be 1e13: held at 10
    log_prob = torch.tensor([-31.0], requires_grad=True)
    value = kl_penalty(log_prob, torch.tensor([-1.0]), "k3")
    value.backward()
    assert (value.item(), log_prob.grad.item()) == (10.0, 0.0)
    straight = torch.tensor([-31.0], requires_grad=True)
    value = kl_penalty(straight, torch.tensor([-1.0]), "k3+")
    value.backward()
    assert (value.item(), straight.grad.item()) == (10.0, -30.0)


def test_unknown_estimators_are_refused():
    for name in ("full", "k4", "k3++"):
        with pytest.raises(UnknownNameError, match="unknown KL penalty"):
            kl_penalty(LOG_PROBS, REF, name)
    with pytest.raises(UnknownNameError, match="unknown KL penalty 'low_var'; the nearest is 'low_var_kl'"):
        plan(ActorConfig(use_kl_loss=True, kl_loss_type="low_var"))


def test_a_fixed_coefficient_stays():
    controller = get_kl_controller(KLControlConfig(kl_coef=0.02))
    controller.update(5.0, 100)
    assert controller.value == 0.02
    assert get_kl_controller(None).value == 0.001


def test_an_adaptive_coefficient_follows_the_divergence():
    controller = get_kl_controller({"type": "adaptive", "kl_coef": 0.5, "target_kl": 0.1, "horizon": 100})
    controller.update(0.11, 10)  # 10% above: 1 + 0.1 * 10 / 100
    assert controller.value == pytest.approx(0.5 * 1.01)
    controller.update(9.0, 10)  # far above counts as 20%
    assert controller.value == pytest.approx(0.5 * 1.01 * 1.02)
    controller.update(0.0, 10)  # far below as well
    assert controller.value == pytest.approx(0.5 * 1.01 * 1.02 * 0.98)


@pytest.mark.parametrize("controller", [FixedKLController(0.3), AdaptiveKLController(0.3, 0.1, 50)])
def test_a_controller_goes_on_from_its_state(controller):
    controller.update(0.13, 7)
    state = controller.state()
    assert all(isinstance(value, int | float) for value in state.values())
    again = type(controller).from_state(state)
    for one in (controller, again):
        one.update(0.08, 7)
    assert again.value == controller.value
    assert again.state() == controller.state()


def test_controllers_that_make_no_sense_are_refused():
    with pytest.raises(BadValueError, match=r"kl_ctrl\.horizon=0, kl_ctrl\.target_kl=0\.1: both divide"):
        AdaptiveKLController(0.1, 0.1, 0)
    with pytest.raises(BadValueError, match=r"kl_ctrl\.target_kl=0\.0: both divide"):
        AdaptiveKLController(0.1, 0.0, 10)
    with pytest.raises(UnknownNameError, match=r"unknown kl_ctrl\.type 'adaptve'; the nearest is 'adaptive'"):
        get_kl_controller({"type": "adaptve"})


def test_the_exponent_is_held_within_20():
    far = kl_penalty(torch.tensor([100.0]), torch.tensor([-100.0]), "k3")
    # exp(-20) + 20 - 1, held at 10
    assert far.item() == min(10.0, exp(-20) + 19)


def test_kl_in_reward_by_hand():
    # Answers of 2, 0 and 1 tokens; KL 0.5, -1.3 and 0: means -0.4 and 0 over the two that have tokens.
    rewards, current = kl_in_reward(LOG_PROBS, REF, torch.tensor([0, 0, 2]), 3, coefficient=0.1)
    assert rewards.tolist() == pytest.approx([-0.05, 0.13, 0.0])
    assert current.item() == pytest.approx(-0.2)
    squared, _ = kl_in_reward(LOG_PROBS, REF, torch.tensor([0, 0, 2]), 3, coefficient=0.1, kind="k2")
    assert squared.tolist() == pytest.approx([-0.0125, -0.0845, 0.0])
    nothing, current = kl_in_reward(LOG_PROBS[:0], REF[:0], torch.zeros(0, dtype=torch.int64), 2, coefficient=0.1)
    assert (nothing.shape, current.item()) == ((0,), 0.0)


def test_kl_in_reward_has_no_gradient_and_sums_bfloat16_in_float32():
    log_probs = LOG_PROBS.bfloat16().requires_grad_()
    rewards, current = kl_in_reward(log_probs, REF.bfloat16(), torch.tensor([0, 0, 0]), 1, coefficient=1.0)
    assert rewards.dtype == current.dtype == torch.float32
    assert not rewards.requires_grad
