"""What every recipe promises: the loss is the step's, however it is cut, padded or ordered."""

from dataclasses import fields, replace

import pytest
import torch

from groupwise.config import ActorConfig
from groupwise.errors import BadValueError, MissingFieldError
from groupwise.objectives import AGGREGATES, RECIPES, LossInputs, Totals, combine_metrics, objective
from objectives.batches import MAX_LENGTH, pack, random_answers, totals_of

TOKEN_FIELDS = ("log_probs", "old_log_probs", "sequence_ids", "ref_log_probs", "entropy", "selected")


def full(recipe, **changes):
    """Every term of the loss at once."""
    given = {"dro_beta": 0.5, "use_kl_loss": True, "kl_loss_coef": 0.3, "entropy_coeff": 0.2}
    return ActorConfig(recipe=recipe, **given | changes)


def step(parts, config, totals):
    """One optimiser step: losses, gradients in the order of the parts' tokens, combined metrics."""
    outputs = [objective(part, config, totals) for part in parts]
    gradients = [torch.autograd.grad(o.loss, part.log_probs)[0] for o, part in zip(outputs, parts, strict=True)]
    return sum(o.loss.detach() for o in outputs), torch.cat(gradients), combine_metrics([o.metrics for o in outputs])


def assert_same(found, expected, tolerance=1e-12):
    for a, b in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    assert found[2].keys() == expected[2].keys()
    for name, value in expected[2].items():
        torch.testing.assert_close(found[2][name], value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_same_for_every_micro_batch_size(recipe, size):
    for seed in range(4):
        answers = random_answers(seed)
        totals = totals_of(answers)
        parts = [pack(answers[i : i + size]) for i in range(0, len(answers), size)]
        assert_same(step(parts, full(recipe), totals), step([pack(answers)], full(recipe), totals))


@pytest.mark.parametrize("mode", AGGREGATES)
def test_the_same_for_every_micro_batch_size_in_float32(mode):
    answers = random_answers(0, num_answers=40)
    config, totals = full("grpo", loss_agg_mode=mode), totals_of(answers)
    parts = [pack(answers[i : i + 3], torch.float32) for i in range(0, len(answers), 3)]
    _, cut, _ = step(parts, config, totals)
    _, whole, _ = step([pack(answers, torch.float32)], config, totals)
    assert (cut - whole).norm() <= 1e-6 * whole.norm()


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_order_of_tokens_and_answers_does_not_matter(recipe):
    answers = random_answers(2)
    inputs, totals = pack(answers), totals_of(answers)
    expected = step([inputs], full(recipe), totals)
    tokens = torch.randperm(len(inputs.log_probs))
    rows = torch.randperm(len(answers))
    place = torch.empty_like(rows)
    place[rows] = torch.arange(len(rows))
    moved = {name: getattr(inputs, name).detach()[tokens] for name in TOKEN_FIELDS}
    moved["log_probs"].requires_grad_()
    moved["sequence_ids"] = place[moved["sequence_ids"]]
    shuffled = LossInputs(**moved, advantages=inputs.advantages[rows], prompt_ids=inputs.prompt_ids[rows])
    found = step([shuffled], full(recipe), totals)
    back = torch.empty_like(found[1])
    back[tokens] = found[1]
    assert_same((found[0], back, found[2]), expected)


@pytest.mark.parametrize("garbage", [0.0, float("nan"), float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize("recipe", RECIPES)
def test_masked_tokens_change_nothing(recipe, garbage):
    answers = random_answers(4)
    inputs, totals = pack(answers), totals_of(answers)
    num_tokens = len(inputs.log_probs)
    order = torch.randperm(num_tokens + 9)
    kept = order.argsort()[:num_tokens]

    def with_pads(values, fill):
        return torch.cat([values.detach(), torch.full((9,), fill, dtype=values.dtype)])[order]

    padded = {name: with_pads(getattr(inputs, name), garbage) for name in TOKEN_FIELDS[:2] + TOKEN_FIELDS[3:5]}
    padded["log_probs"].requires_grad_()
    mask = with_pads(torch.ones(num_tokens, dtype=torch.bool), False)
    # The third answer has no tokens: its pads must not make it one that counts.
    ids, selected = with_pads(inputs.sequence_ids, 2), with_pads(inputs.selected, True)
    advantages = inputs.advantages.index_fill(0, torch.tensor([2]), garbage)
    found = step(
        [
            LossInputs(
                **padded,
                advantages=advantages,
                sequence_ids=ids,
                prompt_ids=inputs.prompt_ids,
                selected=selected,
                mask=mask,
            )
        ],
        full(recipe),
        totals,
    )
    expected = step([inputs], full(recipe), totals)
    assert_same((found[0], found[1][kept], found[2]), expected)
    assert (found[1][~mask] == 0).all()


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("totals", [Totals.count([0, 0], [0, 1], MAX_LENGTH), Totals.count([5, 6], [0, 1], MAX_LENGTH)])
def test_nothing_but_masked_tokens_is_exactly_0(recipe, totals):
    nan = torch.full((4,), float("nan"), requires_grad=True)
    ids = torch.tensor([0, 0, 1, 1])
    off = torch.zeros(4, dtype=torch.bool)
    inputs = LossInputs(nan, nan, nan[:2], ids, ids[1:3], ref_log_probs=nan, entropy=nan, mask=off, selected=off)
    outputs = objective(inputs, full(recipe), totals)
    outputs.loss.backward()
    assert outputs.loss.item() == 0
    assert torch.equal(nan.grad, torch.zeros(4))
    assert all(value.item() == 0 for value in outputs.metrics.values())


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_tokens_at_all_is_exactly_0(recipe):
    none = torch.zeros(0, requires_grad=True)
    ids = torch.zeros(0, dtype=torch.int64)
    inputs = LossInputs(none, none, none, ids, ids, ref_log_probs=none, entropy=none, selected=none.bool())
    outputs = objective(inputs, full(recipe), Totals.count([], [], MAX_LENGTH))
    outputs.loss.backward()
    assert outputs.loss.item() == 0


@pytest.mark.parametrize("recipe", sorted(set(RECIPES) - {"dro", "kl_cov"}))
def test_an_advantage_of_0_teaches_nothing(recipe):
    answers = random_answers(5)
    inputs = pack(answers, advantages=torch.zeros(len(answers), dtype=torch.float64))
    outputs = objective(inputs, ActorConfig(recipe=recipe), totals_of(answers))
    outputs.loss.backward()
    assert outputs.loss.item() == 0
    assert torch.equal(inputs.log_probs.grad, torch.zeros_like(inputs.log_probs))


def test_the_length_of_dr_grpo_is_the_configs_or_else_the_runs():
    answers = random_answers(1)
    inputs, totals = pack(answers), totals_of(answers)
    by_run = objective(inputs, ActorConfig(recipe="dr_grpo"), totals).loss.item()
    by_config = objective(inputs, ActorConfig(recipe="dr_grpo", loss_scale_factor=4 * MAX_LENGTH), totals).loss.item()
    assert by_run == pytest.approx(4 * by_config)
    with pytest.raises(BadValueError, match="a length of 0 cannot divide a loss"):
        objective(inputs, ActorConfig(recipe="dr_grpo", loss_scale_factor=0), totals)


def test_a_nan_that_counts_is_seen():
    answers = random_answers(6)
    broken = pack(answers).log_probs.detach().clone()
    broken[0] = float("nan")
    assert objective(pack(answers, log_probs=broken), ActorConfig(), totals_of(answers)).loss.isnan()


def test_advantages_per_token_are_those_per_answer_spread():
    answers = random_answers(7)
    inputs, totals = pack(answers), totals_of(answers)
    spread = replace(inputs, advantages=inputs.advantages[inputs.sequence_ids], per_token=True)
    for recipe in RECIPES:
        found, expected = (step([given], full(recipe), totals) for given in (spread, inputs))
        assert_same(found, expected)


def test_the_terms_add_up():
    answers = random_answers(8)
    inputs, totals = pack(answers), totals_of(answers)
    policy = objective(inputs, ActorConfig(recipe="dapo"), totals).loss
    config = full("dapo", kl_loss_type="k1")
    outputs = objective(inputs, config, totals)
    kl, entropy = (inputs.log_probs - inputs.ref_log_probs).mean(), inputs.entropy.mean()
    assert outputs.loss.item() == pytest.approx((policy + 0.3 * kl - 0.2 * entropy).item())
    assert outputs.metrics["actor/pg_loss"].item() == pytest.approx(policy.item())
    assert outputs.metrics["actor/kl"].item() == pytest.approx(kl.item())
    assert outputs.metrics["actor/kl_loss"].item() == pytest.approx(kl.item())
    assert outputs.metrics["actor/entropy"].item() == pytest.approx(entropy.item())
    assert outputs.metrics["actor/loss"].item() == pytest.approx(outputs.loss.item())


def test_entropy_without_a_coefficient_is_only_a_metric():
    answers = random_answers(9)
    inputs, totals = pack(answers), totals_of(answers)
    broken = replace(inputs, entropy=torch.full_like(inputs.entropy, float("nan")))
    outputs = objective(broken, ActorConfig(), totals)
    assert outputs.loss.item() == objective(replace(inputs, entropy=None), ActorConfig(), totals).loss.item()
    assert outputs.metrics["actor/entropy"].isnan()


def test_low_precision_log_probs_are_summed_in_float32():
    # 4096 tokens of 1/4096 each: bfloat16 would stop growing at 2^-4
    log_probs = torch.full((4096,), -1.0, dtype=torch.bfloat16, requires_grad=True)
    ids = torch.zeros(4096, dtype=torch.int64)
    outputs = objective(LossInputs(log_probs, None, torch.ones(1), ids, ids[:1]), ActorConfig(), Totals(4096, 1))
    outputs.loss.backward()
    assert outputs.loss.dtype == torch.float32
    assert outputs.loss.item() == -1
    assert log_probs.grad.dtype == torch.bfloat16


def test_metrics_are_detached_tensors():
    answers = random_answers(0)
    outputs = objective(pack(answers), full("grpo"), totals_of(answers))
    assert outputs.loss.requires_grad
    assert all(value.shape == () and not value.requires_grad for value in outputs.metrics.values())


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_gradient_goes_through_the_policy_alone(recipe):
    answers = random_answers(0)
    old, advantages = (
        getattr(pack(answers), name).clone().requires_grad_() for name in ("old_log_probs", "advantages")
    )
    inputs = pack(answers, old_log_probs=old, advantages=advantages)
    objective(inputs, full(recipe), totals_of(answers)).loss.backward()
    assert inputs.log_probs.grad is not None
    assert (old.grad, advantages.grad) == (None, None)


def test_inputs_are_not_changed():
    answers = random_answers(0)
    inputs = pack(answers)
    before = {f.name: getattr(inputs, f.name) for f in fields(inputs)}
    copies = {name: value.detach().clone() for name, value in before.items() if isinstance(value, torch.Tensor)}
    for recipe in RECIPES:
        objective(inputs, full(recipe), totals_of(answers)).loss.backward()
    assert all(torch.equal(before[name], copy) for name, copy in copies.items())


@pytest.mark.parametrize(
    ("missing", "config"),
    [("ref_log_probs", ActorConfig(use_kl_loss=True)), ("entropy", ActorConfig(entropy_coeff=0.1))],
)
def test_a_field_that_a_term_needs_is_named(missing, config):
    answers = random_answers(0)
    with pytest.raises(MissingFieldError, match=f"the loss needs '{missing}', one value per response token"):
        objective(pack(answers, **{missing: None}), config, totals_of(answers))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("old_log_probs", torch.float64),
        ("sequence_ids", torch.int64),
        ("ref_log_probs", torch.float64),
        ("entropy", torch.float64),
        ("weights", torch.float64),
        ("mask", torch.bool),
        ("selected", torch.bool),
    ],
)
def test_a_field_of_the_wrong_length_is_refused(name, dtype):
    with pytest.raises(BadValueError, match=rf"{name} has shape \(3,\) for \d+ tokens; give one value per response"):
        pack(random_answers(0), **{name: torch.zeros(3, dtype=dtype)})


def test_advantages_of_the_wrong_length_are_refused():
    with pytest.raises(BadValueError, match=r"advantages have shape \(3,\) for \d+ tokens of 7 answers; give one per"):
        pack(random_answers(0), advantages=torch.zeros(3))
    with pytest.raises(BadValueError, match="or one per token with per_token=True"):
        pack(random_answers(0), per_token=True)
