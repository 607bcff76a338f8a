"""A user's policy loss in verl's signature: the tensors and the config it gets, and what becomes of its numbers."""

from dataclasses import replace

import pytest
import torch

from groupwise.config import ActorConfig
from groupwise.errors import BadValueError, UnknownNameError
from groupwise.objectives import (
    LOSS_MODES,
    POLICY_LOSS_REGISTRY,
    LossInputs,
    agg_loss,
    get_policy_loss_fn,
    objective,
    plan,
    register_policy_loss,
)
from objectives.batches import pack, random_answers, totals_of


@pytest.fixture(autouse=True)
def _registry():
    """What a test registers is gone after it."""
    before = dict(POLICY_LOSS_REGISTRY)
    yield
    POLICY_LOSS_REGISTRY.clear()
    POLICY_LOSS_REGISTRY.update(before)


def copied(name):
    """verl's function of that name, under one of the user's."""

    @register_policy_loss(f"my_{name}")
    def mine(**arguments):
        return get_policy_loss_fn(name)(**arguments)


def gradient(inputs, config, totals):
    outputs = objective(inputs, config, totals)
    return outputs, torch.autograd.grad(outputs.loss, inputs.log_probs)[0]


@pytest.mark.parametrize("name", sorted(set(LOSS_MODES) - {"clip_cov", "kl_cov", "gpg", "reinforce"}))
@pytest.mark.parametrize("aggregate", ["token-mean", "seq-mean-token-sum-norm", "seq-mean-token-mean"])
def test_the_loss_of_that_name_in_the_users_hands_is_the_same(name, aggregate):
    if LOSS_MODES[name].forced:
        aggregate = LOSS_MODES[name].aggregate
    copied(name)
    config = ActorConfig(
        loss_mode=name, loss_agg_mode=aggregate, clip_ratio_low=0.1, clip_ratio=0.3, dro_beta=0.5, use_kl_loss=True
    )
    for seed in range(3):
        answers = random_answers(seed)
        expected, expected_gradient = gradient(pack(answers), config, totals_of(answers))
        found, found_gradient = gradient(pack(answers), replace(config, loss_mode=f"my_{name}"), totals_of(answers))
        assert found.loss.item() == pytest.approx(expected.loss.item(), rel=1e-10)
        torch.testing.assert_close(found_gradient, expected_gradient, atol=1e-10, rtol=0)
        for key in ("actor/ppo_kl", "actor/pg_clipfrac", "actor/kl", "actor/entropy", "actor/loss"):
            assert found.metrics[key].item() == pytest.approx(expected.metrics[key].item(), abs=1e-6), key


def part(inputs, rows):
    """The answers `rows` of a batch as a micro-batch of their own."""
    chosen = torch.isin(inputs.sequence_ids, torch.tensor(rows))
    numbers = torch.full((len(inputs.prompt_ids),), -1)
    numbers[rows] = torch.arange(len(rows))
    tokens = ("old_log_probs", "ref_log_probs", "entropy", "selected")
    return LossInputs(
        log_probs=inputs.log_probs[chosen],
        advantages=inputs.advantages[rows],
        sequence_ids=numbers[inputs.sequence_ids[chosen]],
        prompt_ids=inputs.prompt_ids[rows],
        **{name: getattr(inputs, name)[chosen] for name in tokens},
    )


@pytest.mark.parametrize("aggregate", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
def test_a_loss_that_divides_by_the_counts_of_the_step_does_not_depend_on_the_micro_batches(aggregate):
    copied("vanilla")
    config = ActorConfig(loss_mode="my_vanilla", loss_agg_mode=aggregate)
    answers = random_answers(3)
    inputs, totals = pack(answers), totals_of(answers)
    whole, expected = gradient(inputs, config, totals)
    parts = [objective(part(inputs, rows), config, totals) for rows in ([0, 3], [1, 2, 4, 5], [6])]
    total = sum(output.loss for output in parts)
    assert total.item() == pytest.approx(whole.loss.item(), rel=1e-12)
    torch.testing.assert_close(torch.autograd.grad(total, inputs.log_probs)[0], expected, atol=1e-12, rtol=0)
    # A metric of the function's is a mean over its tokens: parts weigh as many tokens as they have.
    for name in ("actor/ppo_kl", "actor/pg_clipfrac"):
        found = sum(output.metrics[name].item() for output in parts)
        assert found == pytest.approx(whole.metrics[name].item(), abs=1e-6)


def test_the_function_sees_rows_of_answers_and_verls_config():
    seen = {}

    @register_policy_loss("mine")
    def mine(
        old_log_prob,
        log_prob,
        advantages,
        response_mask,
        loss_agg_mode="token-mean",
        config=None,
        rollout_is_weights=None,
    ):
        seen.update(locals())
        loss = agg_loss(-advantages * log_prob, response_mask, loss_agg_mode, **config.global_batch_info)
        return loss, {"mine/ratio/max": 7.0, "mine/share": torch.tensor(0.5)}

    inputs = LossInputs(
        # Answers of two, none and one token, their tokens out of order.
        log_probs=torch.tensor([-1.0, -3.0, -2.0], requires_grad=True),
        old_log_probs=None,
        advantages=torch.tensor([10.0, 20.0, 30.0]),
        sequence_ids=torch.tensor([0, 2, 0]),
        prompt_ids=torch.tensor([0, 0, 1]),
        weights=torch.tensor([0.1, 0.2, 0.3]),
    )
    config = ActorConfig(loss_mode="mine", loss_agg_mode="token-mean", loss_scale_factor=9, clip_ratio_high=0.28)
    totals = totals_of(random_answers(0))
    outputs = objective(inputs, config, replace(totals, num_tokens=6))
    assert seen["log_prob"].tolist() == seen["old_log_prob"].tolist() == [[-1.0, -2.0], [0.0, 0.0], [-3.0, 0.0]]
    assert seen["response_mask"].tolist() == [[1, 1], [0, 0], [1, 0]]
    assert seen["response_mask"].dtype == torch.long
    assert seen["advantages"].tolist() == [[10.0, 10.0], [0.0, 0.0], [30.0, 0.0]]
    assert seen["rollout_is_weights"][0].tolist() == pytest.approx([0.1, 0.3])
    given = seen["config"]
    assert (given.clip_ratio, given.clip_ratio_low, given["clip_ratio_high"], given.get("clip_ratio_c")) == (
        0.2,
        0.2,
        0.28,
        3.0,
    )
    assert given.policy_loss.loss_mode == "mine"
    assert given.policy_loss.get("clip_cov_ratio") == 2e-4
    assert given.global_batch_info == {
        "dp_size": 1,
        "batch_num_tokens": 6,
        "global_batch_size": totals.num_sequences,
        "loss_scale_factor": 9,
    }
    # (10 * 1 + 10 * 2 + 30 * 3) / 6 tokens of the step; three of its six tokens are here.
    assert outputs.loss.item() == 20.0
    assert outputs.metrics["mine/ratio/max"].item() == 7.0
    assert outputs.metrics["mine/share"].item() == 0.25


def test_advantages_per_token_reach_the_function():
    @register_policy_loss("mine")
    def mine(old_log_prob, log_prob, advantages, response_mask, **rest):
        assert advantages.tolist() == [[1.0, 2.0], [3.0, 0.0]]
        return (log_prob * response_mask).sum(), {}

    inputs = LossInputs(
        log_probs=torch.tensor([-1.0, -2.0, -4.0], requires_grad=True),
        old_log_probs=None,
        advantages=torch.tensor([1.0, 2.0, 3.0]),
        sequence_ids=torch.tensor([0, 0, 1]),
        prompt_ids=torch.tensor([0, 0]),
        per_token=True,
    )
    assert objective(inputs, ActorConfig(loss_mode="mine"), totals_of(random_answers(0))).loss.item() == -7.0


@pytest.mark.parametrize("wrong", [0.5, torch.zeros(3)])
def test_a_loss_that_is_no_single_number_is_refused(wrong):
    @register_policy_loss("mine")
    def mine(**arguments):
        return wrong, {}

    answers = random_answers(0)
    with pytest.raises(
        BadValueError, match=r"policy loss 'mine' returned a .* where a tensor without dimensions is due"
    ):
        objective(pack(answers), ActorConfig(loss_mode="mine"), totals_of(answers))


def test_a_name_that_nobody_registered_is_refused_with_the_nearest():
    copied("vanilla")
    with pytest.raises(UnknownNameError, match="unknown loss mode 'my_vanila'; the nearest is 'my_vanilla'"):
        plan(ActorConfig(loss_mode="my_vanila"))
