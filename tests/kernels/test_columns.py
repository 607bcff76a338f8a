"""Optimal token baselines by columns: the two kernels against the torch form, with gaps, failures and broken rows."""

import pytest
import torch

from groupwise.advantages import Groups, compute_optimal_token_baseline_advantage
from groupwise.advantages.kernels import columns as fused

# The interpreter computes with numpy, which warns where a GPU quietly gives NaN.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid|divide|overflow):RuntimeWarning")

F64 = torch.float64
close = {"rtol": 1e-12, "atol": 1e-12, "equal_nan": True}


def batch(rows, width, dtype=torch.float32):
    rewards, spare = torch.randn(rows, width).to(dtype), torch.rand(rows, width).to(dtype)
    probabilities = torch.rand(rows, width) * 0.9 + 0.05
    squares = probabilities.square() + (1 - probabilities).square() * spare
    return (
        rewards,
        (torch.rand(rows, width) < 0.8).long(),
        probabilities.log().to(dtype),
        squares.to(dtype),
        spare + 0.5,
    )


def run(tokens, labels, device, failed=None, tail=True, epsilon=1e-8, dtype=F64):
    tokens = tuple(None if x is None else x.to(device) for x in tokens)
    groups = Groups.of(labels, device=device)
    takes_part = None if failed is None else ~torch.tensor(failed, device=device)
    result = fused.token_baselines(tokens, takes_part, groups, epsilon, dtype, tail)
    return [x.cpu() for x in result]


def expected(tokens, labels, failed=None, tail=True, epsilon=1e-8):
    rewards, mask, log_probs, squares, rho = tokens
    return compute_optimal_token_baseline_advantage(
        rewards.double(), mask, labels, log_probs, squares, rho, tail, epsilon, failed=failed
    )


# One group of many, some of few, one alone, and rows in mixed order; one block of tokens and several.
LABELS = list("abacabaadeaaeab")


@pytest.mark.parametrize("width", [1, 16, 100, 1100])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("tail", [True, False])
def test_the_kernels_are_the_torch_form(width, weighted, tail, device):
    tokens = batch(len(LABELS), width)
    tokens = tokens if weighted else (*tokens[:4], None)
    for got, wanted in zip(run(tokens, LABELS, device, tail=tail), expected(tokens, LABELS, tail=tail), strict=True):
        torch.testing.assert_close(got, wanted, **close)
        assert (got[tokens[1] == 0] == 0).all()


@pytest.mark.parametrize("tail", [True, False])
@pytest.mark.parametrize("lengths", [[6, 3, 3], [6, 6, 2], [5, 0, 0], [0, 0, 0], [4]])
def test_the_longest_answer_has_no_baseline_where_it_is_alone_in_front(lengths, tail, device):
    rewards, _, log_probs, squares, _ = batch(len(lengths), 8)
    mask = torch.arange(8) < torch.tensor(lengths)[:, None]
    tokens = (rewards, mask, log_probs, squares, None)
    got, wanted = run(tokens, [0] * len(lengths), device, tail=tail), expected(tokens, [0] * len(lengths), tail=tail)
    torch.testing.assert_close(got[0], wanted[0], **close)


@pytest.mark.parametrize("tail", [True, False])
def test_failed_answers_take_no_part(tail, device):
    tokens = batch(len(LABELS), 40)
    failed = [row in (0, 1, 6, 14) for row in range(len(LABELS))]
    tokens[0][0], tokens[2][6] = torch.nan, torch.inf
    got, wanted = run(tokens, LABELS, device, failed, tail), expected(tokens, LABELS, failed, tail)
    for left, right in zip(got, wanted, strict=True):
        torch.testing.assert_close(left, right, **close)
        assert (left[failed] == 0).all()


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("which", ["rewards", "log_probs", "squares", "rho"])
@pytest.mark.parametrize("column", [0, 1050])
def test_what_is_not_finite_stays_in_its_group(poison, which, column, device):
    tokens = batch(6, 1100)
    tokens[1][:, [0, 1050]] = 1
    tokens[["rewards", "mask", "log_probs", "squares", "rho"].index(which)][2, column] = poison
    labels = [0, 1, 0, 1, 0, 1]
    got, wanted = run(tokens, labels, device), expected(tokens, labels)
    for left, right in zip(got, wanted, strict=True):
        torch.testing.assert_close(left, right, **close)
    assert got[0][1::2].isfinite().all()


@pytest.mark.parametrize("score", [0.1, 0.35, 100.1, 1e6 + 0.1])
def test_equal_returns_are_exactly_zero(score, device):
    _, _, log_probs, squares, rho = batch(5, 30)
    rewards = torch.zeros(5, 30)
    rewards[:, 7] = score
    mask = torch.arange(30) < torch.tensor([[8], [8], [8], [8], [8]])
    assert (run((rewards, mask, log_probs, squares, rho), [0] * 5, device)[0] == 0).all()


def test_epsilon_is_added_to_the_energy(device):
    tokens = batch(6, 20)
    got, wanted = run(tokens, [0] * 6, device, epsilon=3.0), expected(tokens, [0] * 6, epsilon=3.0)
    torch.testing.assert_close(got[0], wanted[0], **close)


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.uint8, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_dtype_is_read_and_the_one_asked_for_is_written(mask_dtype, dtype, device):
    rewards, mask, *others = batch(6, 20, torch.bfloat16)
    tokens = (rewards, mask.to(mask_dtype), *others)
    got, wanted = run(tokens, [0, 1] * 3, device, dtype=dtype), expected(tokens, [0, 1] * 3)
    for left, right in zip(got, wanted, strict=True):
        assert left.dtype == dtype
        # bfloat16 in steps of 2^-8; the interpreter cuts where a GPU rounds.
        rtol = 2**-7 if dtype is torch.bfloat16 else 1e-7
        torch.testing.assert_close(left.double(), right, rtol=rtol, atol=1e-7)


def test_strided_inputs_are_read_where_they_stand(device):
    wide = [x[:, 10:50] for x in batch(6, 60)]
    got, wanted = run(wide, [0, 1] * 3, device), expected(wide, [0, 1] * 3)
    torch.testing.assert_close(got[0], wanted[0], **close)
