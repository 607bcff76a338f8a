"""Packed groups on a GPU: log-probs and gradients are those of one plain pass per answer, in every form."""

from dataclasses import replace

import pytest
import torch

from gpu_path import (
    ADVANTAGES,
    ENTROPY,
    GROUPS,
    exact_policy,
    flat,
    packed_gradient,
    packed_log_probs,
    plain_gradient,
    plain_log_probs,
    relative_gap,
    sized_policy,
    updater_of,
)
from groupwise.config import ActorConfig, OptimConfig
from groupwise.policy import token_statistics
from groupwise.update.attention import SharedPrompts
from groupwise.update.flex import FlexGroups
from groupwise.update.form import choose_form
from groupwise.update.long_stretches import LongCall
from groupwise.update.merge import merge
from groupwise.update.pack import SHARED_ROWS, number_answers, pack
from groupwise.update.split import SplitGroups
from tiny_models import random_groups

# What torch and Triton have to say on a GPU is theirs; a warning of this package is an error.
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default", "error::groupwise.errors.GroupwiseWarning"),
]

BUDGETS = (10**6, 45)
# What a kernel may stumble over: single keys, no keys, rows longer than one block of keys.
LAYOUTS = {
    "uneven": GROUPS,
    "one place per answer": random_groups([5, 4], [[2, 2], [2]]),
    "answers of one token": random_groups([5, 3], [[1, 1], [1]]),
    "prompts of one token": random_groups([1, 1, 1], [[6], [2, 9], [1]]),
    "long": random_groups([150, 3], [[70, 1, 66], [90]]),
}


def test_each_precision_has_its_form():
    answers = number_answers(GROUPS)
    forms = {torch.float64: SharedPrompts, torch.float32: FlexGroups, torch.bfloat16: SplitGroups}
    for dtype, kind in forms.items():
        policy = sized_policy(dtype=dtype)
        (micro,) = pack(answers, 10**6, policy.device, choose_form(policy, answers))
        assert type(micro.attend) is kind


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_log_probs_in_float32_are_each_answers_alone(family, layout):
    policy, groups = sized_policy(family), LAYOUTS[layout]
    expected = plain_log_probs(policy, groups).double().cpu()
    form = choose_form(policy, number_answers(groups))
    for budget in (10**6, 220 if layout == "long" else 45):
        assert (packed_log_probs(policy, groups, form, budget) - expected).abs().max() < 1e-5
        assert (packed_log_probs(policy, groups, SHARED_ROWS, budget) - expected).abs().max() < 1e-5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_log_probs_in_bfloat16_are_no_further_from_exact_than_each_answers_alone(layout):
    policy, groups = sized_policy(dtype=torch.bfloat16), LAYOUTS[layout]
    expected = plain_log_probs(exact_policy(), groups).double().cpu()
    plain = plain_log_probs(policy, groups).double().cpu() - expected
    packed = packed_log_probs(policy, groups, choose_form(policy, number_answers(groups))) - expected
    # bfloat16 keeps 8 bits. What that does to a plain pass is measured; another order of rounding does about as much.
    # Few tokens make a rough measure, so it is never taken for less than half a percent.
    allowed = max(plain.square().mean().sqrt().item(), 5e-3)
    assert packed.square().mean().sqrt().item() < 1.5 * allowed
    assert packed.abs().max().item() < 6 * allowed


@pytest.mark.parametrize("compiles", [False, True])
def test_gradients_in_float32_are_those_of_one_plain_pass_per_answer(compiles):
    policy = sized_policy(compiles=compiles)
    expected_loss, expected = plain_gradient(policy, ENTROPY)
    for budget in BUDGETS:
        loss, gradient = packed_gradient(policy, replace(ENTROPY, micro_batch_tokens=budget))
        assert loss == pytest.approx(expected_loss, abs=1e-5)
        assert relative_gap(gradient, expected) < 1e-5


def test_gradients_in_float64_are_those_of_one_plain_pass_per_answer():
    policy = sized_policy(dtype=torch.float64)
    expected_loss, expected = plain_gradient(policy, ENTROPY)
    for budget in BUDGETS:
        loss, gradient = packed_gradient(policy, replace(ENTROPY, micro_batch_tokens=budget))
        assert loss == pytest.approx(expected_loss, abs=1e-10)
        assert relative_gap(gradient, expected) < 1e-10


@pytest.mark.parametrize("layout", ["one place per answer", "answers of one token", "prompts of one token", "long"])
def test_gradients_of_odd_layouts_in_both_precisions(layout):
    groups = LAYOUTS[layout]
    advantages = ADVANTAGES[: sum(len(group.completions) for group in groups)]
    policy = sized_policy()
    _, expected = plain_gradient(policy, ENTROPY, groups, advantages)
    assert relative_gap(packed_gradient(policy, ENTROPY, groups, advantages)[1], expected) < 1e-5
    in_bfloat16(sized_policy(dtype=torch.bfloat16), groups, advantages)


@pytest.mark.parametrize(("compiles", "checkpoints"), [(False, False), (False, True), (True, False), (True, True)])
def test_gradients_in_bfloat16_are_no_further_from_exact_than_those_of_plain_passes(compiles, checkpoints):
    in_bfloat16(sized_policy(dtype=torch.bfloat16, compiles=compiles, checkpoints=checkpoints), GROUPS, ADVANTAGES)


def in_bfloat16(policy, groups, advantages, budgets=(10**6, 250)):
    """The gradient's distance from the exact one is that of the plain bfloat16 passes, as far as chance goes: both are
    made of roundings to 8 bits, a percent or so of the norm."""
    _, exact = plain_gradient(exact_policy(), ENTROPY, groups, advantages)
    _, plain = plain_gradient(policy, ENTROPY, groups, advantages)
    assert relative_gap(plain, exact) < 0.05
    for budget in budgets:
        _, gradient = packed_gradient(policy, replace(ENTROPY, micro_batch_tokens=budget), groups, advantages)
        assert relative_gap(gradient, exact) < 1.5 * max(relative_gap(plain, exact), 0.01)


def test_long_prompts_go_to_cudnn_where_it_takes_them_and_change_no_number():
    # Of 1100 and 1300 keys cuDNN is given 1024 and 1280, FlashAttention the rest, and the short prompt between them.
    groups = random_groups([1100, 40, 1300], [[300, 1, 90], [20], [500]])
    policy = sized_policy(dtype=torch.bfloat16)
    (micro,) = pack(number_answers(groups), 10**6, policy.device, choose_form(policy, number_answers(groups)))
    is_hopper = torch.cuda.get_device_capability() >= (9, 0)
    assert isinstance(micro.attend.layout.across, LongCall) is is_hopper
    assert isinstance(micro.attend.layout.prompts, LongCall) is is_hopper
    expected = plain_log_probs(exact_policy(), groups).double().cpu()
    plain = plain_log_probs(policy, groups).double().cpu() - expected
    packed = packed_log_probs(policy, groups, choose_form(policy, number_answers(groups))) - expected
    assert packed.square().mean().sqrt() < 1.5 * plain.square().mean().sqrt()
    in_bfloat16(policy, groups, ADVANTAGES[:5], budgets=(10**6, 1800))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fused_merge_is_the_plain_one(dtype):
    # 37 tokens of 3 heads of 24: no power of two. One part of a token has all the weight, or next to none.
    parts = tuple(torch.randn(37, 3, 24).to(dtype) for _ in range(2))
    sums = torch.randn(3, 37) * 20, torch.randn(3, 37) * 20
    expected, expected_sums = torch.empty(37, 3, 24, dtype=dtype), torch.empty(3, 37)
    merge(parts, sums, expected, expected_sums)
    # Into the middle of larger tensors.
    found, found_sums = torch.zeros(50, 3, 24, dtype=dtype, device="cuda"), torch.zeros(3, 50, device="cuda")
    on_card = [tuple(t.cuda() for t in pair) for pair in (parts, sums)]
    merge(*on_card, found[5:42], found_sums[:, 5:42])
    # Weights are exponentials of differences of up to 60, whose own rounding they magnify.
    tolerance = 1e-5 if dtype == torch.float32 else 2**-8
    assert torch.allclose(found[5:42].cpu().float(), expected.float(), rtol=tolerance, atol=tolerance)
    assert torch.allclose(found_sums[:, 5:42].cpu(), expected_sums, rtol=1e-5, atol=1e-5)
    assert not found[:5].any()
    assert not found[42:].any()
    assert not found_sums[:, 42:].any()


def test_gradients_add_up_in_one_launch_as_one_by_one():
    shapes = [(3,), (129, 64), (8192,), (8193,), (1,)]
    first, second = ([torch.randn(shape, device="cuda").bfloat16() for shape in shapes] for _ in range(2))
    sums = [torch.full(shape, torch.nan, device="cuda") for shape in shapes]
    # Imported here: without a GPU there may be no Triton.
    from groupwise.update.kernels import add_up

    assert add_up.applies(sums, first)
    add_up.add_up(sums, first, is_first=True)
    add_up.add_up(sums, second, is_first=False)
    for total, a, b in zip(sums, first, second, strict=True):
        assert torch.equal(total, a.float() + b.float())
    # Not in one piece, of another type, elsewhere, not at a multiple of 16 bytes.
    for grads in ([first[1].t()], [first[0].float()], [first[0], first[1].cpu()], [first[2][1:]]):
        assert not add_up.applies(sums[: len(grads)], grads)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("entropy", [False, True])
def test_the_fused_head_is_the_plain_one_forward_and_backward(dtype, tolerance, entropy):
    # Two blocks of the vocabulary and a rest. bfloat16 rounds the logits' gradient to 8 bits before it is multiplied.
    policy = sized_policy(dtype=dtype, vocab_size=9001)
    hidden = torch.randn(70, 64, device="cuda").to(dtype).requires_grad_()
    tokens, weights = torch.randint(9001, (70,), device="cuda"), torch.randn(2, 70, device="cuda")
    head = policy.model.get_output_embeddings().weight
    found = []
    for statistics in (policy.token_statistics, plain_statistics(policy)):
        got = statistics(hidden, tokens, temperature=0.7, entropy=True, entropy_gradient=entropy)
        loss = (weights[0] * got.log_probs).sum() + (weights[1] * got.entropy).sum()
        found.append((got.log_probs, got.entropy, *torch.autograd.grad(loss, [hidden, head])))
    for ours, theirs in zip(*found, strict=True):
        assert relative_gap(flat([ours.detach()]), flat([theirs.detach()])) < tolerance
    assert policy._fusible_head(hidden) is head


def plain_statistics(policy):
    return lambda hidden, tokens, **options: token_statistics(
        policy.logits, hidden, tokens, policy.vocab_size, **options
    )


def test_updates_too_small_for_bfloat16_add_up_in_the_master_weights():
    # AdamW steps of 1e-5 on weights near 0.1, whose bfloat16 neighbours are 5e-4 apart.
    moved = {}
    for masters in (True, False):
        policy = sized_policy(dtype=torch.bfloat16)
        start = flat([p.detach() for _, p in policy.parameters()])
        config = ActorConfig(optim=OptimConfig(lr=1e-5, lr_scheduler_type="constant", master_weights=masters))
        updater = updater_of(policy, config)
        for _ in range(10):
            updater.step(GROUPS, ADVANTAGES)
        optimizer = updater._optimizer
        for name, parameter in policy.parameters():
            assert torch.equal(optimizer._learned[name].detach().to(parameter.dtype), parameter.detach())
        moved[masters] = (flat([p.detach() for p in optimizer._learned.values()]) - start).abs().mean().item()
    # Ten steps of 1e-5 in much the same direction; without masters nearly all of them are lost.
    assert 3e-5 < moved[True] < 1e-4
    assert moved[False] < moved[True] / 3


def test_state_goes_on_where_it_was_taken():
    config = ActorConfig(optim=OptimConfig(lr=1e-3))
    policy = sized_policy(dtype=torch.bfloat16)
    updater = updater_of(policy, config)
    updater.step(GROUPS, ADVANTAGES)
    tensors, numbers = updater.state()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    weights = {name: p.detach().clone() for name, p in policy.parameters()}
    expected = updater.step(GROUPS, ADVANTAGES)
    other = sized_policy(dtype=torch.bfloat16, seed=1)
    again = updater_of(other, config)
    other.load_weights(weights)
    again.load_state(tensors, numbers)
    found = again.step(GROUPS, ADVANTAGES)
    # The card may add gradients up in another order: a float32 rounding of a bfloat16 gradient.
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-5)
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-2)
    for ours, theirs in zip(again._optimizer._learned.values(), updater._optimizer._learned.values(), strict=True):
        assert (ours - theirs).abs().mean() < 1e-4
