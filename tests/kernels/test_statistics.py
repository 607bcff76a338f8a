"""Group statistics: the kernel and the torch form give the same bits."""

import pytest
import torch

from groupwise.advantages import CONVENTIONS, Groups, group_relative
from groupwise.advantages.best_of_k import grpo_passk
from groupwise.advantages.kernels import statistics as fused
from samples import same_bits

# The interpreter computes with numpy, which warns where a GPU quietly gives NaN.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid|divide|overflow):RuntimeWarning")


def batch(sizes, device, scale=1.0):
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    order = torch.randperm(len(labels))
    labels = [labels[row] for row in order.tolist()]
    scores = torch.randn(len(labels), dtype=torch.float64) * scale + 3 * scale
    return scores.to(device), Groups.of(labels, device=device), scores, Groups.of(labels)


SIZES = [[8] * 6, [1, 2, 3, 5, 8, 13, 33], [1], [2], [257, 4]]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e6])
def test_moments_have_the_bits_of_the_torch_form(sizes, scale, device):
    scores, groups, host_scores, host_groups = batch(sizes, device, scale)
    lows, rises, squares = fused.group_moments(groups, scores)
    expected = host_groups.moments(host_scores)
    assert torch.equal(lows.cpu(), expected.lows)
    assert torch.equal(rises.cpu(), expected.mean_rises)
    assert torch.equal(squares.cpu(), expected.square_sums)


@pytest.mark.parametrize("name", [name for name, row in CONVENTIONS.items() if row.centre == "group"])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("scaled", [True, False])
def test_every_convention_has_the_bits_of_the_torch_form(name, sizes, scaled, device):
    row = CONVENTIONS[name]
    scores, groups, host_scores, host_groups = batch(sizes, device)
    scaled_here = scaled and row.scale == "std"
    raw_singletons = row.singleton == "score"
    result = fused.group_relative(scores, groups, row.ddof, row.eps, scaled_here, raw_singletons)
    assert torch.equal(result.cpu(), group_relative(host_scores, host_groups, row, divide_by_std=scaled))


@pytest.mark.parametrize("sizes", [[8] * 6, [2, 3, 5, 8, 13, 33], [2], [257, 4]])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("coarse", [True, False])
def test_the_lead_of_the_best_has_the_bits_of_the_torch_form(sizes, scaled, coarse, device):
    scores, groups, host_scores, host_groups = batch(sizes, device)
    if coarse:
        # Whole numbers: some groups have two that are best.
        scores, host_scores = scores.round(), host_scores.round()
    scores[-1] = host_scores[-1] = torch.nan
    result = fused.best_over_second(scores, groups, 1e-6, scaled)
    assert same_bits(result.cpu(), grpo_passk(host_scores, host_groups, norm_adv_by_std_in_grpo=scaled))


def test_without_a_runner_up_there_is_no_lead(device):
    scores = torch.tensor([3.0, 1.0, 1.0, 0.0, torch.nan], dtype=torch.float64, device=device)
    groups = Groups.of(["alone", "tied", "tied", "tied", "broken"], device=device)
    assert fused.best_over_second(scores, groups, 0.0, True)[:4].tolist() == [0.0] * 4
    assert fused.best_over_second(scores, groups, 0.0, True)[4].isnan()


def test_equal_scores_give_exactly_zero(device):
    scores = torch.full((24,), 100.1, dtype=torch.float64, device=device)
    groups = Groups.of([row % 3 for row in range(24)], device=device)
    assert fused.group_relative(scores, groups, 1, 1e-9, True, True).tolist() == [0.0] * 24


def test_nan_spoils_its_own_group_only(device):
    scores = torch.tensor([1.0, float("nan"), 5.0, 1.0, 2.0, 3.0], dtype=torch.float64, device=device)
    groups = Groups.of([0, 0, 0, 1, 1, 1], device=device)
    advantages = fused.group_relative(scores, groups, 1, 0.0, True, True)
    assert advantages[:3].isnan().all()
    # (1 - 2, 2 - 2, 3 - 2) over a std of 1
    assert advantages[3:].tolist() == [-1.0, 0.0, 1.0]
    assert fused.group_moments(groups, scores)[0].isnan().tolist() == [True, False]


def test_a_label_without_rows_is_left_alone(device):
    groups = Groups.of([0, 1, 1], device=device).select(torch.tensor([1, 2], device=device))
    lows, rises, squares = fused.group_moments(groups, torch.tensor([4.0, 6.0], dtype=torch.float64, device=device))
    assert (lows.tolist(), rises.tolist(), squares.tolist()) == ([0.0, 4.0], [0.0, 1.0], [0.0, 2.0])
