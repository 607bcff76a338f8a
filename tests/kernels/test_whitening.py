"""Whitened answers: the kernel against the torch form, whatever the order of the rows."""

import pytest
import torch

from groupwise.advantages.kernels import whitening as fused
from groupwise.advantages.whitening import whiten_answers

# The interpreter computes with numpy, which warns where a GPU quietly gives NaN.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid|divide|overflow):RuntimeWarning")

EPS = 1e-8


def run(values, lengths, device):
    whitened, num_tokens = fused.whiten_answers(values.to(device), None if lengths is None else lengths.to(device), EPS)
    return whitened.cpu(), num_tokens.item()


@pytest.mark.parametrize("size", [2, 3, 8, 100])
@pytest.mark.parametrize("with_lengths", [torch.int64, torch.float64, None])
@pytest.mark.parametrize("with_nan", [False, True])
def test_the_kernel_is_the_torch_form(size, with_lengths, with_nan, device):
    values = torch.randn(size, dtype=torch.float64) * 3 + 5
    lengths = None if with_lengths is None else torch.randint(0, 9, (size,)).to(with_lengths)
    if lengths is not None:
        lengths[:2] = torch.tensor([3, 4])
    if with_nan and size > 2:
        values[2::3] = torch.nan
    whitened, num_tokens = run(values, lengths, device)
    # One rounding apart: the torch form multiplies by a reciprocal root of the device's own.
    torch.testing.assert_close(whitened, whiten_answers(values, lengths), rtol=4e-16, atol=0, equal_nan=True)
    counted = ~values.isnan()
    assert num_tokens == (counted.sum() if lengths is None else lengths[counted].sum())


def test_the_order_of_the_rows_shows_in_no_bit(device):
    values, lengths = torch.randn(200, dtype=torch.float64), torch.randint(0, 50, (200,))
    whitened, order = run(values, lengths, device)[0], torch.randperm(200)
    assert torch.equal(run(values[order], lengths[order], device)[0], whitened[order])


@pytest.mark.parametrize("value", [0.1, 0.35, 100.1, 1e6 + 0.1])
@pytest.mark.parametrize("size", [2, 3, 7, 100])
def test_equal_values_are_exactly_zero(value, size, device):
    values = torch.full((size,), value, dtype=torch.float64)
    assert run(values, torch.arange(1, size + 1), device)[0].tolist() == [0.0] * size


@pytest.mark.parametrize(("lengths", "count"), [([0, 0, 0, 9], 0), ([0, 1, 0, 9], 1)])
def test_over_no_token_or_one_the_result_is_zero(lengths, count, device):
    values = torch.tensor([5.0, 1.0, 2.0, torch.nan], dtype=torch.float64)
    whitened, num_tokens = run(values, torch.tensor(lengths), device)
    assert num_tokens == count
    assert whitened[:3].tolist() == [0.0] * 3
    assert whitened[3].isnan()
