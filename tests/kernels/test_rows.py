"""Row sums and spreading: every dtype, ragged widths, strided inputs, values that are not finite."""

import pytest
import torch

from groupwise.advantages.kernels import rows as fused

# The interpreter computes with numpy, which warns where a GPU quietly gives NaN.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid|divide|overflow):RuntimeWarning")

WIDTHS = [1, 7, 300]
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.uint8, torch.bool]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_rewards_are_summed_in_float64(width, dtype, device):
    rewards = torch.randn(5, width).to(dtype).to(device)
    torch.testing.assert_close(fused.sum_rewards(rewards), rewards.double().sum(1), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_rewards_are_summed_exactly(dtype, device):
    rewards = torch.randint(0, 2, (5, 300)).to(dtype).to(device)
    assert torch.equal(fused.sum_rewards(rewards), rewards.long().sum(1).double())


def test_large_integers_do_not_lose_their_last_digit(device):
    rewards = torch.tensor([[2**53, 1, 1]], device=device)
    # 2^53 + 1 is not a float64; added as integers the two ones survive.
    assert fused.sum_rewards(rewards).item() == 2**53 + 2


def test_scores_that_are_not_finite_are_nan(device):
    inf = float("inf")
    rewards = torch.tensor([[inf, 0.0], [-inf, 1.0], [inf, -inf], [float("nan"), 0.0], [1.0, 2.0]], device=device)
    scores = fused.sum_rewards(rewards)
    assert scores.isnan().tolist() == [True, True, True, True, False]
    assert scores[4].item() == 3.0


def test_strided_rewards_and_masks_are_read_where_they_stand(device):
    matrix = torch.randn(6, 40, device=device)
    for view in (matrix[:, 3:17], matrix[::2], matrix.T):
        torch.testing.assert_close(fused.sum_rewards(view), view.double().sum(1), rtol=1e-14, atol=1e-14)
        values = torch.randn(len(view), dtype=torch.float64, device=device)
        spread = fused.spread_over_tokens(values, view > 0, torch.float64)
        assert torch.equal(spread, torch.where(view > 0, values[:, None], 0.0))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mask_dtype", [*INTEGERS, torch.float32, torch.bfloat16])
def test_spreading_writes_the_rounded_value_or_zero(width, dtype, mask_dtype, device):
    values = torch.randn(5, dtype=torch.float64, device=device)
    mask = (torch.rand(5, width, device=device) < 0.5).to(mask_dtype)
    spread = fused.spread_over_tokens(values, mask, dtype)
    expected = torch.where(mask != 0, values.to(dtype)[:, None], 0)
    assert spread.dtype == dtype
    if dtype is torch.bfloat16 and device.type == "cpu":
        # The interpreter cuts the low half of a float32 off where a GPU rounds: one unit in the last place.
        torch.testing.assert_close(spread, expected, rtol=2**-7, atol=0)
    else:
        assert torch.equal(spread, expected)


def test_nan_is_spread_to_response_tokens_only(device):
    values = torch.tensor([float("nan"), 2.0], dtype=torch.float64, device=device)
    spread = fused.spread_over_tokens(values, torch.tensor([[1, 0], [0, 1]], device=device), torch.float32)
    assert spread[0, 0].isnan()
    assert spread[0, 1].item() == 0.0
    assert spread[1].tolist() == [0.0, 2.0]
