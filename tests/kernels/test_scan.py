"""The backward recurrence: the kernel against the loop over tokens, with gaps, blocks and poison."""

import pytest
import torch

from groupwise.advantages.kernels import scan as fused
from groupwise.advantages.recurrences import backward_scan

# The interpreter computes with numpy, which warns where a GPU quietly gives NaN.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid|divide|overflow):RuntimeWarning")

F64 = (torch.float64, torch.float64)


def on_host(tensor):
    return None if tensor is None else tensor.cpu()


def both(rewards, values, baselines, mask, factors, dtypes=F64):
    result = fused.backward_scan(rewards, values, baselines, mask, factors, dtypes)
    expected = backward_scan(*map(on_host, (rewards, values, baselines, mask)), factors, dtypes)
    return [x.cpu() for x in result], expected


@pytest.mark.parametrize("width", [1, 16, 17, 1024, 1500])
@pytest.mark.parametrize("factors", [(1.0, 1.0), (0.99, 0.95), (1.0, 0.9), (0.7, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("with_values", [True, False])
def test_the_kernel_is_the_loop(width, factors, with_values, device):
    rewards = torch.randn(3, width, device=device)
    values = torch.randn(3, width, device=device) if with_values else None
    mask = (torch.rand(3, width, device=device) < 0.7).long()
    for got, expected in zip(*both(rewards, values, None, mask, factors), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-11)
        assert (got[mask.cpu() == 0] == 0).all()


def test_baselines_are_taken_off_and_dtypes_are_obeyed(device):
    rewards = torch.randn(4, 50, dtype=torch.float64, device=device)
    baselines = torch.randn(4, device=device)
    mask = torch.ones(4, 50, dtype=torch.bool, device=device)
    mask[1, 20:30] = False
    mask[2] = False
    dtypes = (torch.float32, torch.bfloat16)
    got, expected = both(rewards, None, baselines, mask, (1.0, 1.0), dtypes)
    assert [x.dtype for x in got] == [torch.float32, torch.bfloat16]
    torch.testing.assert_close(got[0], expected[0])
    torch.testing.assert_close(got[1], expected[1], rtol=8e-3, atol=1e-2)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["reward", "value", "baseline"])
def test_a_response_token_that_is_not_finite_makes_its_row_nan(poison, where, device):
    rewards, values = torch.randn(2, 3, 40, device=device)
    baselines = torch.zeros(3, device=device)
    mask = torch.ones(3, 40, device=device)
    mask[:, 30:] = 0
    {"reward": rewards[1], "value": values[1], "baseline": baselines[1:]}[where][0] = poison
    rewards[2, 35] = poison
    for got in fused.backward_scan(rewards, values, baselines, mask, (0.9, 0.9), F64):
        assert got[1, :30].isnan().all()
        assert (got[:, 30:] == 0).all()
        assert got[[0, 2]].isfinite().all()


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("factors", [(1.0, 1.0), (0.9, 1.0), (0.0, 1.0)])
@pytest.mark.parametrize("token", [0, 700, 1499])
def test_without_values_a_reward_that_is_not_finite_makes_its_row_nan_wherever_it_stands(
    poison, factors, token, device
):
    rewards, mask = torch.randn(3, 1500, device=device), torch.ones(3, 1500, device=device)
    mask[:, 30:60] = 0
    rewards[1, token] = rewards[2, 40] = poison
    for got in fused.backward_scan(rewards, None, None, mask, factors, F64):
        assert got[1, mask[1] != 0].isnan().all()
        assert (got[:, 30:60] == 0).all()
        assert got[[0, 2]].isfinite().all()


def test_equal_rewards_to_go_leave_nothing_over_an_equal_baseline(device):
    # One reward per answer, at tokens of different blocks: every sum to go is that reward and nothing else.
    rewards = torch.zeros(3, 2500, device=device)
    rewards[[0, 1, 2], [3, 1500, 2499]] = 100.1
    mask = (torch.arange(2500, device=device) <= torch.tensor([[3], [1500], [2499]], device=device)).long()
    advantages, returns = fused.backward_scan(
        rewards, None, torch.full((3,), 100.1, device=device), mask, (1.0, 1.0), F64
    )
    assert (advantages == 0).all()
    assert (returns[mask != 0] == torch.tensor(100.1).double().item()).all()


def test_strided_inputs_are_read_where_they_stand(device):
    wide = torch.randn(3, 200, device=device)
    mask = (torch.rand(3, 400, device=device) < 0.8)[:, ::2]
    got, expected = both(wide[:, 50:150], wide[:, 100:], None, mask[:, :100], (0.9, 0.8))
    torch.testing.assert_close(got[0], expected[0], rtol=1e-12, atol=1e-12)
