"""The library on a GPU: the same numbers as on the CPU, the same bits run after run, through the fused kernels."""

import numpy as np
import pytest
import torch

from groupwise.advantages import (
    ADV_ESTIMATOR_REGISTRY,
    Groups,
    RunningBaseline,
    advantages_from_scores,
    compute_optimal_token_baseline_advantage,
    kernels,
)
from groupwise.advantages.orchestrator import compute_advantage
from groupwise.advantages.recurrences import backward_scan
from groupwise.advantages.whitening import whiten_answers
from groupwise.config import AlgoConfig
from groupwise.errors import GroupwiseWarning
from samples import same_bits

pytestmark = pytest.mark.gpu

NAMES = sorted(ADV_ESTIMATOR_REGISTRY)


class Batch:
    def __init__(self, rows, width, device, mask_dtype=torch.int64):
        generator = torch.Generator().manual_seed(rows * width)

        def uniform():
            return torch.rand(rows, width, generator=generator)

        lengths = torch.randint(1, width + 1, (rows,), generator=generator)
        mask = torch.arange(width) < lengths[:, None]
        rewards = torch.zeros(rows, width)
        rewards[torch.arange(rows), lengths - 1] = torch.randn(rows, generator=generator)
        fields = {
            "token_level_rewards": rewards,
            "response_mask": mask.to(mask_dtype),
            "values": uniform(),
            "reward_baselines": torch.randn(rows, generator=generator),
            "old_log_probs": -uniform(),
            "sum_pi_squared": uniform(),
            "step_mask": (uniform() < 0.1).long(),
        }
        self.batch = {name: tensor.to(device) for name, tensor in fields.items()}
        parts = torch.rand(2, rows, generator=generator).numpy()
        uids = np.array([f"uid-{row % (rows // 8):08d}" for row in range(rows)], dtype=object)
        self.non_tensor_batch = {"uid": uids, "format": parts[0], "accuracy": parts[1]}
        self.meta_info = {"baseline": RunningBaseline()}


def advantages(name, device, rows=64, width=300):
    config = AlgoConfig(gdpo_reward_keys=("format", "accuracy"), gamma=0.99, lam=0.95)
    data = compute_advantage(Batch(rows, width, device), name, gamma=0.99, lam=0.95, config=config)
    return data.batch["advantages"], data.batch["returns"]


@pytest.mark.parametrize("name", NAMES)
def test_every_estimator_gives_the_numbers_of_the_cpu(name):
    for on_gpu, on_cpu in zip(advantages(name, "cuda"), advantages(name, "cpu"), strict=True):
        assert on_gpu.is_cuda
        # float32 results of float64 arithmetic; row sums are taken in float32 on the CPU and float64 on the GPU.
        torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_every_estimator_repeats_bit_for_bit(name):
    first, again = advantages(name, "cuda"), advantages(name, "cuda")
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "maxrl", "pass_at_k", "grpo_passk", "opo"])
def test_scores_have_the_bits_of_the_cpu_whatever_the_row_order(estimator):
    scores = torch.randn(512, dtype=torch.float64)
    labels = torch.arange(512) // 8
    expected = advantages_from_scores(scores, labels, estimator)
    order = torch.randperm(512)
    on_gpu = advantages_from_scores(scores[order].cuda(), labels[order].cuda(), estimator)
    assert torch.equal(on_gpu.cpu(), expected[order])


def test_a_group_too_large_for_the_kernel_takes_the_torch_form():
    scores = torch.randn(kernels.LARGEST_GROUP + 1, dtype=torch.float64)
    index = torch.zeros(len(scores), dtype=torch.int64)
    groups = Groups.of(index, device="cuda")
    assert kernels.group_moments(groups, scores.cuda()) is None
    torch.testing.assert_close(
        advantages_from_scores(scores.cuda(), groups).cpu(), advantages_from_scores(scores, index), rtol=1e-12, atol=0
    )


def test_the_fused_kernels_are_in_use():
    scores = torch.randn(64, dtype=torch.float64, device="cuda")
    groups = Groups.of([row // 8 for row in range(64)], device="cuda")
    assert kernels.group_moments(groups, scores) is not None
    assert kernels.sum_rewards(scores[:, None]) is not None
    assert kernels.spread_over_tokens(scores, scores[:, None] > 0, torch.float32) is not None
    assert kernels.best_over_second(scores, groups, 1e-6, scaled=True) is not None
    assert kernels.whiten_answers(scores, None, 1e-8) is not None
    tokens = (scores[:, None],) * 4
    assert (
        kernels.token_baselines((*tokens, None), None, groups, 1e-8, torch.float32, handle_zero_tail=True) is not None
    )


@pytest.mark.parametrize("scaled", [True, False])
def test_the_lead_of_the_best_has_the_bits_of_the_cpu_ties_and_nan_included(scaled):
    scores = torch.randn(512, dtype=torch.float64)
    scores[:256] = scores[:256].round()
    scores[500] = torch.nan
    labels = torch.arange(512) // 8
    options = {"estimator": "grpo_passk", "norm_adv_by_std_in_grpo": scaled}
    on_gpu = advantages_from_scores(scores.cuda(), labels, **options).cpu()
    assert same_bits(on_gpu, advantages_from_scores(scores, labels, **options))


@pytest.mark.parametrize("size", [2, 100, kernels.LARGEST_BATCH, kernels.LARGEST_BATCH + 1])
def test_whitened_answers_are_those_of_the_cpu_whatever_the_row_order(size):
    values, lengths = torch.randn(size, dtype=torch.float64) * 3 + 5, torch.randint(1, 500, (size,))
    values[size // 3] = values[size // 3] if size == 2 else torch.nan
    on_gpu = whiten_answers(values.cuda(), lengths.cuda())
    # The sums are the CPU's bit for bit; the reciprocal root after them may be one rounding off.
    torch.testing.assert_close(on_gpu.cpu(), whiten_answers(values, lengths), rtol=1e-15, atol=0, equal_nan=True)
    order = torch.randperm(size)
    again = whiten_answers(values[order].cuda(), lengths[order].cuda())
    assert same_bits(again, on_gpu[order.cuda()])


@pytest.mark.parametrize("count", [0, 1])
def test_whitening_over_too_few_tokens_warns_on_a_gpu_too(count):
    lengths = torch.tensor([0, count, 0], device="cuda")
    with pytest.warns(GroupwiseWarning, match=rf"whitening over {count} response tokens"):
        assert whiten_answers(torch.rand(3, dtype=torch.float64, device="cuda"), lengths).eq(0).all()


def columns_batch(device, rows=72, width=2500):
    """Float64 throughout, gaps in the mask, groups of 9 in mixed order."""
    draw = torch.Generator().manual_seed(0)
    rewards, spare = torch.randn(2, rows, width, generator=draw, dtype=torch.float64)
    probabilities = torch.rand(rows, width, generator=draw, dtype=torch.float64) * 0.9 + 0.05
    lengths = torch.randint(0, width + 1, (rows, 1), generator=draw)
    mask = (torch.rand(rows, width, generator=draw) < 0.9) & (torch.arange(width) < lengths)
    squares = probabilities.square() + (1 - probabilities).square() * 0.5
    given = (rewards, mask, probabilities.log(), squares, spare.exp())
    return [x.to(device) for x in given], [row % (rows // 9) for row in range(rows)]


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("failures", [True, False])
def test_token_baselines_by_columns_are_those_of_the_cpu(weighted, failures):
    def run(device):
        (rewards, mask, log_probs, squares, rho), labels = columns_batch(device)
        failed = [row % 10 == 0 for row in range(len(labels))] if failures else None
        rewards[5, 40] = torch.nan
        mask[5, 40] = True
        weights = rho if weighted else None
        return compute_optimal_token_baseline_advantage(
            rewards, mask, labels, log_probs, squares, weights, failed=failed
        )

    for on_gpu, on_cpu in zip(run("cuda"), run("cpu"), strict=True):
        # Sums over 2500 tokens and 9 answers, taken in another order.
        torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("factors", [(1.0, 1.0), (0.99, 1.0)])
def test_the_sum_to_go_is_that_of_the_cpu_over_many_blocks(factors):
    (rewards, mask, *_), _ = columns_batch("cpu", width=9001)
    baselines = torch.randn(len(rewards), dtype=torch.float64)
    given = (rewards, None, baselines, mask)
    there = backward_scan(*(None if x is None else x.cuda() for x in given), factors)
    for on_gpu, on_cpu in zip(there, backward_scan(*given, factors), strict=True):
        torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=1e-10, atol=1e-10)


def test_labels_reach_the_gpu_in_one_piece_and_the_tables_are_those_of_the_cpu():
    for labels in (list("abcab"), np.repeat(np.array(["x", "y", "z"], dtype=object), 3), torch.arange(7) % 2):
        here, there = Groups.of(labels), Groups.of(labels, device="cuda")
        for name in ("ids", "sizes", "order", "starts"):
            assert torch.equal(getattr(there, name).cpu(), getattr(here, name))
            assert getattr(there, name).data_ptr() % 16 == 0
