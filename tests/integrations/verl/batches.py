"""Random batches with every field an estimator of verl's may ask for, and the list of those estimators."""

from __future__ import annotations

import inspect
import uuid
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Case:
    """One of verl's estimators, and on which batches and how closely it can agree with ours.

    singletons: verl's rule for an answer alone in its group is also ours. bool_mask: verl's survives one.
    exact64: how far verl's own arithmetic strays from the formula in float64.
    """

    name: str
    function: str
    singletons: bool = True
    bool_mask: bool = True
    exact64: float = 1e-12

    @property
    def has_norm(self) -> bool:
        return self.name in ("grpo", "grpo_vectorized", "gdpo", "grpo_passk")


# verl whitens with 1e-8 added to the number of tokens, of which there may be two.
WHITENED = 1e-7

CASES = [
    # Its loop computes 1 - mask, which torch refuses for bool.
    Case("gae", "compute_gae_advantage_return", bool_mask=False, exact64=WHITENED),
    # The 1 + epsilon that divides the score of a lone answer is a float32 number.
    Case("grpo", "compute_grpo_outcome_advantage", exact64=1e-7),
    # Its statistics are float32 whatever the rewards are.
    Case("grpo_vectorized", "compute_grpo_vectorized_outcome_advantage", exact64=1e-5),
    # Its reward parts and weights are float32.
    Case("gdpo", "compute_gdpo_outcome_advantage", exact64=1e-5),
    # Both refuse an answer alone in its group.
    Case("grpo_passk", "compute_grpo_passk_outcome_advantage", singletons=False),
    Case("reinforce_plus_plus", "compute_reinforce_plus_plus_outcome_advantage", bool_mask=False, exact64=WHITENED),
    Case(
        "reinforce_plus_plus_baseline",
        "compute_reinforce_plus_plus_baseline_outcome_advantage",
        exact64=WHITENED,
    ),
    Case("rloo", "compute_rloo_outcome_advantage"),
    # verl's gives an answer alone in its group 0, against its own loop, which gives the score.
    Case("rloo_vectorized", "compute_rloo_vectorized_outcome_advantage", singletons=False),
    Case("opo", "compute_opo_outcome_advantage"),
    Case("remax", "compute_remax_outcome_advantage"),
    # Its factor, answers over nonzero scores, is a float32 number.
    Case("gpg", "compute_gpg_outcome_advantage", exact64=1e-6),
    # epsilon=1e-8 stands under the whole baseline in verl, under its rise above the lowest return in ours.
    Case("optimal_token_baseline", "compute_optimal_token_baseline_advantage", exact64=1e-6),
    Case("tir_optimal_token_baseline", "compute_multi_turn_optimal_token_baseline_advantage", exact64=1e-6),
]

# float32 keeps 7 digits; verl's float32 means and deviations lose about one of them on these batches.
EXACT32 = 2e-5

# The modules that hold verl's orchestrator, under its own name or imported by it.
ORCHESTRATED = (
    "verl.trainer.ppo.ray_trainer",
    "verl.trainer.ppo.v1.utils",
    "verl.experimental.separation.ray_trainer",
)

GDPO_KEYS = ["format", "accuracy"]
PROMPT_LENGTH = 3


def random_batch(
    seed: int,
    dtype: torch.dtype = torch.float64,
    mask_dtype: torch.dtype | None = None,
    singletons: bool = True,
) -> dict[str, Any]:
    """Uneven groups in shuffled rows, gaps and pads in the mask, an empty answer now and then.

    Rewards are multiples of 1/64: float32 sums of them are exact, so that a difference comes from statistics alone.
    """
    chance, generator = Random(seed), torch.Generator().manual_seed(seed)
    sizes = [chance.randint(1 if singletons else 2, 6) for _ in range(chance.randint(2, 6))]
    rows = [group for group, size in enumerate(sizes) for _ in range(size)]
    chance.shuffle(rows)
    num_rows, num_tokens = len(rows), chance.randint(2, 12)
    labels = [str(uuid.UUID(int=chance.getrandbits(128))) for _ in sizes] if seed % 2 else list(range(len(sizes)))
    mask = random_mask(chance, rows, num_tokens)
    rewards = torch.randint(-16, 17, (num_rows, num_tokens), generator=generator) / 64
    rewards[:, -1] += torch.randint(0, 9, (num_rows,), generator=generator) / 8
    pi = 0.05 + 0.75 * torch.rand(num_rows, num_tokens, generator=generator, dtype=torch.float64)
    rest = (1 - pi) ** 2 * torch.rand(num_rows, num_tokens, generator=generator, dtype=torch.float64)
    tokens = torch.ones(num_rows, PROMPT_LENGTH + num_tokens, dtype=torch.int64)
    tokens[:, PROMPT_LENGTH:] = mask
    parts = {key: [chance.randint(0, 8) / 8 for _ in rows] for key in GDPO_KEYS}
    return {
        "token_level_rewards": rewards.to(dtype),
        "response_mask": mask.to(dtype if mask_dtype is None else mask_dtype),
        "index": np.array([labels[group] for group in rows], dtype=object),
        "values": torch.randn(num_rows, num_tokens, generator=generator, dtype=torch.float64).to(dtype),
        "reward_baselines": (torch.randint(0, 9, (num_rows,), generator=generator) / 8).to(dtype),
        "old_log_probs": pi.log().to(dtype),
        "sum_pi_squared": (pi**2 + rest).to(dtype),
        "rollout_is_weights": (0.5 + torch.rand(num_rows, num_tokens, generator=generator)).to(dtype),
        "gamma": 0.9,
        "lam": 0.8,
        "non_tensor_batch": {key: np.array(values, dtype=object) for key, values in parts.items()},
        "batch": {"prompts": torch.ones(num_rows, PROMPT_LENGTH, dtype=torch.int64), "attention_mask": tokens},
    }


def random_mask(chance: Random, rows: list[int], num_tokens: int) -> torch.Tensor:
    """Prefixes with holes; at least one answer of every group has a token, at least two tokens in all."""
    mask = torch.zeros(len(rows), num_tokens, dtype=torch.int64)
    for row, group in enumerate(rows):
        first_of_group = row == rows.index(group)
        length = chance.randint(1 if first_of_group else 0, num_tokens)
        mask[row, :length] = torch.tensor([int(chance.random() < 0.8) for _ in range(length)])
        if first_of_group:
            mask[row, 0] = 1
    return mask


def call(function: Any, fields: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Call an estimator with the fields its signature names."""
    names = inspect.signature(function).parameters
    return function(**{name: value for name, value in fields.items() if name in names})
