"""The library on a GPU: the same numbers as on the CPU, the same bits run after run, through the fused kernels."""

import numpy as np
import pytest
import torch

from groupwise.advantages import ADV_ESTIMATOR_REGISTRY, Groups, RunningBaseline, advantages_from_scores, kernels
from groupwise.advantages.orchestrator import compute_advantage
from groupwise.config import AlgoConfig

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
