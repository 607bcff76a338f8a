"""Rewards to scores and advantages to tokens: sums, masks and dtypes."""

import math

import numpy as np
import pytest
import torch

from groupwise.advantages.rows import (
    as_mask,
    as_scores,
    check_rows,
    check_tokens,
    count_tokens,
    result_dtype,
    spread_over_tokens,
    sum_rewards,
)
from groupwise.errors import BadValueError
from samples import f64, same_bits

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_a_score_is_the_plain_sum_in_any_dtype(dtype):
    rewards = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]]).to(dtype)
    assert same_bits(sum_rewards(rewards), f64([2.0, 0.0, 3.0]))


def test_low_precision_rewards_are_summed_in_float32_or_better():
    # In bfloat16 1 + 255 * 1/256 stops at 1 (steps of 1/128 above 1 round the addend away half the time); 512 ones
    # stop at 256; in float16 the sum of 70 000 ones is infinite.
    steps = torch.full((1, 256), 1 / 256, dtype=torch.bfloat16)
    steps[0, 0] = 1.0
    assert sum_rewards(steps).tolist() == [1 + 255 / 256]
    assert sum_rewards(torch.ones(1, 512, dtype=torch.bfloat16)).tolist() == [512.0]
    assert sum_rewards(torch.ones(1, 70_000, dtype=torch.float16)).tolist() == [70_000.0]


def test_small_integers_do_not_wrap_around():
    assert sum_rewards(torch.full((1, 3), 100, dtype=torch.int8)).tolist() == [300.0]
    assert sum_rewards(torch.full((1, 3), 200, dtype=torch.uint8)).tolist() == [600.0]


def test_float64_rewards_are_summed_in_float64():
    assert sum_rewards(f64([[1.0, 2.0**-40]])).tolist() == [1 + 2.0**-40]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_becomes_nan(bad):
    assert sum_rewards(torch.tensor([[1.0, bad], [1.0, 2.0]])).isnan().tolist() == [True, False]
    assert as_scores(torch.tensor([bad, 3.0])).isnan().tolist() == [True, False]


def test_rows_that_hold_the_same_numbers_have_the_same_score_wherever_they_stand():
    row = torch.rand(1001)
    for rewards in (row.expand(37, -1), row.expand(37, -1).contiguous(), row[:, None].expand(-1, 37).contiguous().T):
        assert len(set(sum_rewards(rewards).tolist())) == 1


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_whatever_is_not_zero_in_a_mask_counts(dtype):
    mask = torch.tensor([[1, 0, 1], [0, 0, 1]]).to(dtype)
    assert as_mask(mask).tolist() == [[True, False, True], [False, False, True]]
    assert count_tokens(mask).tolist() == [2, 1]
    assert spread_over_tokens(f64([1.5, -2.0]), mask, torch.float32).tolist() == [[1.5, 0.0, 1.5], [0.0, 0.0, -2.0]]


def test_a_fractional_mask_counts_whole():
    mask = torch.tensor([[0.5, 0.0, -1.0, 1e-30]])
    assert spread_over_tokens(f64([3.0]), mask, torch.float32).tolist() == [[3.0, 0.0, 3.0, 3.0]]


def test_a_half_precision_mask_counts_beyond_what_its_dtype_can_sum():
    assert count_tokens(torch.ones(1, 70_000, dtype=torch.float16)).tolist() == [70_000]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -3.5, -0.0])
def test_a_masked_position_is_exactly_zero_whatever_the_value(dtype, value):
    tokens = spread_over_tokens(f64([value]), torch.tensor([[True, False, True]]), dtype)
    assert tokens.dtype == dtype
    assert tokens[0, 1].item() == 0.0
    assert math.copysign(1.0, tokens[0, 1].item()) == 1.0
    torch.testing.assert_close(tokens[0, [0, 2]].double(), f64([value, value]), equal_nan=True)


def test_a_mask_that_is_not_contiguous_is_read_where_it_stands():
    mask = torch.tensor([[1, 0], [0, 1], [1, 1]]).T
    assert spread_over_tokens(f64([2.0, 5.0]), mask, torch.float32).tolist() == [[2.0, 0.0, 2.0], [0.0, 5.0, 5.0]]
    half = torch.tensor([[True, False, False, True]])[:, ::2]
    assert spread_over_tokens(f64([2.0]), half, torch.float32).tolist() == [[2.0, 0.0]]


@pytest.mark.parametrize(
    ("rewards", "mask", "expected"),
    [
        (torch.float32, torch.float32, torch.float32),
        (torch.float32, torch.bool, torch.float32),
        (torch.float64, torch.float32, torch.float64),
        (torch.float32, torch.float64, torch.float64),
        (torch.bfloat16, torch.int64, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float16, torch.bfloat16, torch.float32),
        (torch.float16, torch.bool, torch.float16),
        (torch.int64, torch.float16, torch.float16),
        (torch.int64, torch.int64, torch.float32),
        (torch.bool, torch.bool, torch.float32),
        (torch.uint8, torch.int8, torch.float32),
    ],
)
def test_the_result_has_the_promoted_dtype_or_the_default_where_that_is_not_floating(rewards, mask, expected):
    assert result_dtype(torch.zeros(1, dtype=rewards), torch.zeros(1, dtype=mask)) == expected


def test_the_default_dtype_is_torchs_own_at_the_time():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert result_dtype(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.bool)) == torch.float64
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    ("rewards", "mask", "message"),
    [
        ([[0.0]], torch.zeros(1, 1), r"token_level_rewards is a list; it must be a torch tensor, \[answers, tokens\]"),
        (torch.zeros(1, 1), np.zeros((1, 1)), r"response_mask is a ndarray; .*torch.as_tensor makes one"),
        (torch.zeros(3), torch.zeros(3, 1), r"token_level_rewards has shape \(3,\) .*two-dimensional"),
        (torch.zeros(3, 1), torch.zeros(3), r"response_mask has shape \(3,\) .*two-dimensional, \[answers, tokens\]"),
        (torch.zeros(1, 2, 3), torch.zeros(1, 2), r"token_level_rewards has shape \(1, 2, 3\)"),
        (torch.zeros(2, 2, dtype=torch.complex64), torch.zeros(2, 2), "dtype torch.complex64; it must be real"),
        (torch.zeros(2, 2), torch.zeros(3, 2), "response_mask has 3 rows on cpu but token_level_rewards has 2 on cpu"),
        (torch.zeros(2, 2), torch.zeros(2, 2, device="meta"), "2 rows on meta .*the same answers on one device"),
    ],
)
def test_rewards_and_mask_that_do_not_belong_together_are_refused(rewards, mask, message):
    with pytest.raises(BadValueError, match=message):
        check_rows(rewards, mask)


def test_rewards_and_mask_may_have_different_widths_where_only_the_sum_counts():
    check_rows(torch.zeros(2, 1), torch.zeros(2, 5))


@pytest.mark.parametrize(
    ("name", "mask", "other"),
    [("response_mask", (2, 4), (2, 3)), ("values", (2, 3), (2, 4)), ("values", (2, 3), (3,))],
)
def test_tensors_over_other_tokens_are_refused_by_name(name, mask, other):
    with pytest.raises(BadValueError, match=rf"{name} has shape .* but token_level_rewards has \(2, 3\); both must be"):
        check_tokens(torch.zeros(2, 3), torch.zeros(mask), values=torch.zeros(other))


def test_a_tensor_that_is_not_there_is_not_checked():
    check_tokens(torch.zeros(2, 3), torch.zeros(2, 3), values=None)
