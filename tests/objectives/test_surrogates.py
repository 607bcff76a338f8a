"""Every loss mode under every aggregate beside a plain loop, and by hand."""

from dataclasses import replace
from math import exp, log

import pytest
import torch

from groupwise.config import ActorConfig
from groupwise.errors import BadValueError, MissingFieldError
from groupwise.objectives import AGGREGATES, LOSS_MODES, LossInputs, Settings, Totals, objective, plan
from objectives.batches import MAX_LENGTH, pack, random_answers, totals_of
from oracles import objectives as oracle

NUMBERS = {
    "clip_ratio_low": 0.15,
    "clip_ratio_high": 0.3,
    "clip_ratio_c": 1.6,
    "tau_pos": 1.3,
    "tau_neg": 2.1,
    "dro_beta": 0.7,
    "ppo_kl_coef": 0.4,
}


def one_token(log_ratio, advantage, old=-1.0, **changes):
    """Loss and gradient of a single token, by the log-ratio of its policies."""
    log_probs = torch.tensor([old + log_ratio], dtype=torch.float64, requires_grad=True)
    inputs = LossInputs(
        log_probs=log_probs,
        old_log_probs=torch.tensor([old], dtype=torch.float64),
        advantages=torch.tensor([advantage], dtype=torch.float64),
        sequence_ids=torch.tensor([0]),
        prompt_ids=torch.tensor([0]),
        selected=torch.tensor([changes.pop("selected", False)]),
    )
    outputs = objective(inputs, ActorConfig(loss_agg_mode="token-sum", **changes), Totals(1, 1))
    outputs.loss.backward()
    return outputs.loss.item(), log_probs.grad.item(), outputs.metrics


@pytest.mark.parametrize("mode", AGGREGATES)
@pytest.mark.parametrize("name", LOSS_MODES)
def test_loss_and_gradient_are_those_of_the_loops(name, mode):
    config = ActorConfig(loss_mode=name, loss_agg_mode=mode, **NUMBERS)
    settings = plan(config).settings
    for seed in range(6):
        for spread in (0.2, 1.0):
            answers = random_answers(seed, spread)
            inputs = pack(answers)
            outputs = objective(inputs, config, totals_of(answers))
            outputs.loss.backward()
            expected = oracle.loss(name, mode, answers, settings, MAX_LENGTH)
            assert outputs.loss.item() == pytest.approx(expected, rel=1e-7, abs=1e-9)
            slopes = oracle.gradient(name, mode, answers, settings, MAX_LENGTH)
            assert inputs.log_probs.grad.tolist() == pytest.approx(slopes, rel=1e-5, abs=1e-8)


def test_gspo_has_the_gradient_of_the_ratio_of_whole_answers():
    settings = Settings(clip_low=0.15, clip_high=0.3)
    config = ActorConfig(recipe="gspo", clip_ratio_low=0.15, clip_ratio_high=0.3)
    for seed in range(6):
        answers = [answer for answer in random_answers(seed) if answer.lp]
        inputs = pack(answers)
        outputs = objective(inputs, config, totals_of(answers))
        outputs.loss.backward()
        values = [oracle.gspo_of_one_answer(answer, settings) for answer in answers]
        assert outputs.loss.item() == pytest.approx(sum(values) / len(answers))
        slopes, step = [], 1e-6
        for answer in answers:
            for t, lp in enumerate(answer.lp):
                sides = []
                for moved in (lp + step, lp - step):
                    answer.lp[t] = moved
                    sides.append(oracle.gspo_of_one_answer(answer, settings))
                answer.lp[t] = lp
                slopes.append((sides[0] - sides[1]) / (2 * step) / len(answers))
        assert inputs.log_probs.grad.tolist() == pytest.approx(slopes, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("name", sorted(set(LOSS_MODES) - {"geo_mean"}))
@pytest.mark.parametrize("advantage", [1.5, -0.5])
def test_at_the_old_policy_the_gradient_is_minus_the_advantage(name, advantage):
    assert one_token(0.0, advantage, loss_mode=name, dro_beta=1.0)[1] == pytest.approx(-advantage)


@pytest.mark.parametrize("name", LOSS_MODES)
def test_without_old_log_probs_the_ratio_is_1(name):
    answers = random_answers(3)
    config = ActorConfig(loss_mode=name, dro_beta=1.0)
    alone = pack(answers, old_log_probs=None)
    beside = replace(alone, old_log_probs=alone.log_probs.detach())
    totals = totals_of(answers)
    first, second = objective(alone, config, totals), objective(beside, config, totals)
    assert torch.equal(first.loss, second.loss)
    assert first.metrics["actor/ratio/max"].item() == 1
    assert first.metrics["actor/ppo_kl"].item() == 0
    gradients = [torch.autograd.grad(outputs.loss, alone.log_probs)[0] for outputs in (first, second)]
    assert torch.equal(*gradients)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        # inside the bounds: -A r, and its slope in lp is the same
        (1.1, 2.0, -2.2, -2.2),
        # above 1 + 0.3 with A > 0: held at -1.3 A, no gradient
        (1.5, 2.0, -2.6, 0.0),
        # below 1 - 0.2 with A > 0: not held, the token may come back
        (0.5, 2.0, -1.0, -1.0),
        # below 0.8 with A < 0: held at 0.8
        (0.5, -2.0, 1.6, 0.0),
        # above 1.3 with A < 0: not held until c = 3
        (2.0, -2.0, 4.0, 4.0),
        (5.0, -2.0, 6.0, 0.0),
    ],
)
def test_dual_clip_by_hand(ratio, advantage, loss, gradient):
    found = one_token(log(ratio), advantage, clip_ratio_low=0.2, clip_ratio_high=0.3, clip_ratio_c=3.0)
    assert found[:2] == (pytest.approx(loss), pytest.approx(gradient))


def test_what_was_clipped_is_counted():
    high = one_token(log(1.5), 1.0)[2]
    low = one_token(log(5.0), -1.0)[2]
    assert (high["actor/pg_clipfrac"].item(), high["actor/pg_clipfrac_lower"].item()) == (1, 0)
    assert (low["actor/pg_clipfrac"].item(), low["actor/pg_clipfrac_lower"].item()) == (0, 1)
    assert high["actor/ratio"].item() == pytest.approx(1.5)
    assert high["actor/ppo_kl"].item() == pytest.approx(-log(1.5))


def test_cispo_keeps_a_gradient_beyond_the_bound():
    # ratio 3 held at 1.2; lp = -1 + log 3
    loss, gradient, metrics = one_token(log(3.0), 2.0, loss_mode="cispo")
    assert loss == pytest.approx(-1.2 * 2 * (log(3.0) - 1))
    assert gradient == pytest.approx(-2.4)
    assert metrics["actor/pg_clipfrac"].item() == 1


def test_sapo_at_ratio_1_is_minus_two_over_tau():
    # sigmoid(0) = 1/2, times 4 / tau
    assert one_token(0.0, 1.0, loss_mode="sapo", tau_pos=2.0)[0] == pytest.approx(-1.0)
    assert one_token(0.0, -1.0, loss_mode="sapo", tau_neg=4.0)[0] == pytest.approx(0.5)


def test_dppo_tv_looks_at_probabilities():
    # From 0.5 to 0.6: moved 0.1. The ratio 1.2 would be within 0.2, the move is outside 0.05.
    inside = one_token(log(1.2), 1.0, old=log(0.5), loss_mode="dppo_tv", clip_ratio=0.15)
    outside = one_token(log(1.2), 1.0, old=log(0.5), loss_mode="dppo_tv", clip_ratio=0.05)
    assert inside[1] == pytest.approx(-1.2)
    assert outside[:2] == (0.0, 0.0)
    # a rare token may grow tenfold: from 0.001 to 0.01
    assert one_token(log(10.0), 1.0, old=log(0.001), loss_mode="dppo_tv", clip_ratio=0.05)[1] == pytest.approx(-10.0)
    # with A < 0 an upward move is no reason to stop
    assert one_token(log(1.2), -1.0, old=log(0.5), loss_mode="dppo_tv", clip_ratio=0.05)[1] == pytest.approx(1.2)


def test_dppo_kl_of_two_coins():
    # q = 1/2, p = 3/4: 0.5 log(2/3) + 0.5 log(2) = 0.5 log(4/3) = 0.1438
    assert one_token(log(1.5), 1.0, old=log(0.5), loss_mode="dppo_kl", clip_ratio=0.1439)[1] == pytest.approx(-1.5)
    assert one_token(log(1.5), 1.0, old=log(0.5), loss_mode="dppo_kl", clip_ratio=0.1438)[1] == 0.0


def test_dro_by_hand():
    # -(lp A - beta/2 x^2) at lp = -0.5, x = 0.5, A = 2, beta = 4: 1 + 0.5; slope -A + beta x = 0
    assert one_token(0.5, 2.0, loss_mode="dro", dro_beta=4.0)[:2] == (pytest.approx(1.5), pytest.approx(0.0))


def test_geo_mean_by_hand():
    # log-ratios 0.1 and 0.9 (held at 0.4): exp((0.1 + 0.4) / 2); the held token has no gradient
    log_probs = torch.tensor([-0.9, -0.1], dtype=torch.float64, requires_grad=True)
    inputs = LossInputs(
        log_probs, -torch.ones(2).double(), torch.tensor([1.0]), torch.tensor([0, 0]), torch.tensor([0])
    )
    loss = objective(inputs, ActorConfig(recipe="gmpo"), Totals(2, 1)).loss
    loss.backward()
    assert loss.item() == pytest.approx(-exp(0.25))
    assert log_probs.grad.tolist() == pytest.approx([-exp(0.25) / 2, 0.0])


def test_the_covariance_losses_by_hand():
    assert one_token(0.1, 2.0, loss_mode="clip_cov", selected=True)[:2] == (0.0, 0.0)
    # -A r + 0.5 |x|
    found = one_token(0.1, 2.0, loss_mode="kl_cov", ppo_kl_coef=0.5, selected=True)
    assert found[:2] == (pytest.approx(-2 * exp(0.1) + 0.05), pytest.approx(-2 * exp(0.1) + 0.5))


@pytest.mark.parametrize("name", sorted(set(LOSS_MODES) - {"dro"}))
def test_a_ratio_far_away_overflows_nowhere(name):
    for log_ratio in (-900.0, 900.0):
        loss, gradient, metrics = one_token(log_ratio, -1.0, old=-1000.0, loss_mode=name)
        assert torch.tensor([loss, gradient, *metrics.values()]).isfinite().all()


def test_the_exponent_is_held_within_20_for_tokens_and_10_for_answers():
    # beyond it neither value nor gradient moves
    given = {"clip_ratio_c": float("inf"), "old": -50.0}
    assert one_token(25.0, -1.0, loss_mode="vanilla", **given)[:2] == (pytest.approx(exp(20)), 0.0)
    assert one_token(15.0, -1.0, loss_mode="vanilla", **given)[:2] == (pytest.approx(exp(15)), pytest.approx(exp(15)))
    assert one_token(15.0, -1.0, loss_mode="gspo", **given)[:2] == (pytest.approx(exp(10)), 0.0)
    assert one_token(9.0, -1.0, loss_mode="gspo", **given)[:2] == (pytest.approx(exp(9)), pytest.approx(exp(9)))


def test_importance_weights_multiply_the_loss_and_have_no_gradient():
    answers = random_answers(1)
    weights = torch.rand(len(pack(answers).log_probs), dtype=torch.float64, requires_grad=True)
    inputs = pack(answers, weights=weights)
    config = ActorConfig(recipe="reinforce")
    loss = objective(inputs, config, totals_of(answers)).loss
    loss.backward()
    assert weights.grad is None
    spread = inputs.advantages[inputs.sequence_ids]
    expected = -(spread * inputs.log_probs * weights).sum() / 6  # 7 answers, one empty
    assert loss.item() == pytest.approx(expected.item())


def test_importance_weights_of_geo_mean_are_geometric_means():
    # one answer with ratio 1: -A sqrt(4 * 9)
    zeros = torch.zeros(2, dtype=torch.float64)
    one = torch.tensor([0])
    inputs = LossInputs(zeros, zeros, torch.tensor([1.0]), torch.tensor([0, 0]), one, weights=torch.tensor([4.0, 9.0]))
    assert objective(inputs, ActorConfig(recipe="gmpo"), Totals(2, 1)).loss.item() == pytest.approx(-6.0)


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_a_covariance_loss_without_its_tokens_is_refused(name):
    answers = random_answers(0)
    with pytest.raises(MissingFieldError, match=f"loss mode '{name}' treats the tokens of highest covariance over"):
        objective(pack(answers, selected=None), ActorConfig(recipe=name), totals_of(answers))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip_ratio_low": -0.1}, r"clip_ratio_low=-0\.1, clip_ratio_high=0\.2: both are distances"),
        ({"clip_ratio_c": 1.0}, r"clip_ratio_c=1\.0: the bound on the ratio must be above 1"),
        ({"tau_neg": 0.0}, r"tau_pos=1\.0, tau_neg=0\.0: both divide"),
        ({"clip_cov_ratio": 0.0}, r"clip_cov_ratio=0\.0: a share of the tokens"),
        ({"kl_cov_ratio": 2.0}, r"kl_cov_ratio=2\.0: a share of the tokens"),
        ({"recipe": "dro"}, r"dro_beta=None: DRO has no default weight"),
        ({"recipe": "dro", "dro_beta": -1.0}, r"dro_beta=-1\.0: DRO has no default weight"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(BadValueError, match=message):
        plan(ActorConfig(**changes))
