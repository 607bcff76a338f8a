"""Two attentions merged, against the torch form."""

import pytest
import torch

from groupwise.update.kernels import merge as kernel
from groupwise.update.merge import merge


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_parts_are_those_of_the_torch_form(device, dtype):
    # 37 tokens of 3 heads of 24: no power of two. One part of a token has all the weight, or next to none.
    parts = tuple(torch.randn(37, 3, 24, device=device).to(dtype) for _ in range(2))
    sums = tuple(torch.randn(3, 37, device=device) * 20 for _ in range(2))
    expected, expected_sums = torch.empty(37, 3, 24, dtype=dtype), torch.empty(3, 37)
    merge(tuple(part.cpu() for part in parts), tuple(of_part.cpu() for of_part in sums), expected, expected_sums)
    # Into the middle of larger tensors.
    found, found_sums = torch.zeros(50, 3, 24, dtype=dtype, device=device), torch.zeros(3, 50, device=device)
    kernel.merge(parts, sums, found[5:42], found_sums[:, 5:42])
    # Weights are exponentials of differences of up to 60, whose own rounding they magnify. Triton's interpreter cuts to
    # bfloat16 where a GPU rounds.
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(found[5:42].cpu(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found_sums[:, 5:42].cpu(), expected_sums, rtol=1e-5, atol=1e-5)
    assert not any(rest.any() for rest in (found[:5], found[42:], found_sums[:, :5], found_sums[:, 42:]))
