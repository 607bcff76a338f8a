"""The KL penalty as part of the reward, with its coefficient, which may follow the KL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from groupwise.config import AlgoConfig
from groupwise.objectives import get_kl_controller, kl_in_reward
from groupwise.objectives.kl import get_kl_estimator


class KLInReward:
    """Every token loses coefficient * KL of its reward. https://arxiv.org/abs/1909.08593.

    Called with the log-probabilities of every answer's tokens under the policy that sampled them and under the
    reference: what each token loses, a negative number where the policy is likelier to say it, and `kl/reward`, the
    mean over answers of their mean KL. The coefficient moves afterwards.
    """

    def __init__(self, algorithm: AlgoConfig) -> None:
        get_kl_estimator(algorithm.kl_penalty)
        self._kind = algorithm.kl_penalty
        self._controller = get_kl_controller(algorithm.kl_ctrl)

    def __call__(
        self, log_probs: Sequence[Tensor], ref_log_probs: Sequence[Tensor]
    ) -> tuple[list[Tensor], dict[str, float]]:
        lengths = [len(row) for row in log_probs]
        policy, reference = torch.cat(list(log_probs)), torch.cat(list(ref_log_probs))
        owners = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).to(policy.device)
        coefficient = self._controller.value
        penalties, kl = kl_in_reward(policy, reference, owners, len(lengths), coefficient, self._kind)
        self._controller.update(kl.item(), len(lengths))
        return list(torch.split(penalties.cpu(), lengths)), {"kl/reward": kl.item(), "kl/reward_coef": coefficient}

    def state(self) -> dict[str, float]:
        return self._controller.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._controller = type(self._controller).from_state(state)
