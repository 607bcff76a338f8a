"""`Updater`: groups with advantages to optimiser steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from groupwise.config import ActorConfig
from groupwise.errors import BadValueError
from groupwise.types import Completion, Float, Group
from groupwise.update.advantages import Advantages, as_rows, in_order
from groupwise.update.form import choose_form
from groupwise.update.metrics import average, combine
from groupwise.update.optimizer import Optimizer
from groupwise.update.pack import Answer, MicroBatch, number_answers, pack
from groupwise.update.schedule import learning_rate


class LossOutputs(Protocol):
    """A micro-batch's part of the loss and of the metrics; a metric named `.../max` is a maximum, others are sums."""

    @property
    def loss(self) -> Tensor: ...
    @property
    def metrics(self) -> Mapping[str, Tensor]: ...


Fields = Mapping[str, Any]
"""log_probs, old_log_probs, ref_log_probs, entropy, selected, sequence_ids [L]; prompt_ids [B]; advantages [B], or [L]
where per_token is True."""

LossOfStep = Callable[[Tensor, Tensor], Callable[[Fields], LossOutputs]]
"""Token counts and prompt numbers of all answers of one optimiser step -> the loss of each of its micro-batches."""

Select = Callable[[Fields], Tensor]
"""The fields of a whole optimiser step -> which of its tokens a loss treats apart."""


@dataclass
class MiniBatch:
    """What one optimiser step learns from. old and ref hold one log-probability per token, where they are needed."""

    answers: list[Answer]
    micro_batches: list[MicroBatch]
    advantages: Float[Tensor, "B_or_L"]
    per_token: bool
    sampled: Float[Tensor, "L"]
    old: Float[Tensor, "L"] | None = None
    ref: Float[Tensor, "L"] | None = None
    selected: Tensor | None = None


class Updater:
    """Teaches a policy from groups of answers, in place.

        updater = Updater(policy, config.actor, loss_of_step, total_steps=100)
        metrics = updater.step(groups, advantages)    # one advantage per answer, or one per token, in order

    keep_reference: hold on to the starting policy even where the loss has no KL term that needs it.
    The loss and its gradient are those of the whole optimiser step, however it is cut into micro-batches. A loss or
    gradient that is not finite costs the optimiser step and changes nothing.
    """

    def __init__(
        self,
        policy: Any,
        config: ActorConfig,
        loss_of_step: LossOfStep,
        *,
        total_steps: int,
        temperature: float = 1.0,
        select: Select | None = None,
        keep_reference: bool = False,
    ) -> None:
        self._policy = policy
        self._config = config
        self._loss_of_step = loss_of_step
        self._select = select
        self._total_steps = total_steps
        # A schedule that does not exist is refused now and not after the first batch.
        learning_rate(config.optim, 0, total_steps)
        # Greedy answers are judged by the distribution they are the peak of.
        self._temperature = temperature or 1.0
        self._optimizer = Optimizer(policy.parameters(), config.optim, config.grad_clip)
        self._reference: Any = policy.frozen_copy() if config.kl_in_loss or keep_reference else None
        self._num_steps = 0

    def step(self, groups: Sequence[Group], advantages: Advantages) -> dict[str, float]:
        """One batch: `ppo_epochs` times over its mini-batches, an optimiser step for each."""
        config = self._config
        minis = self._mini_batches(groups, advantages)
        rate = learning_rate(config.optim, self._num_steps, self._total_steps)
        # With one optimiser step the policy that sampled is the one that learns: no second forward pass.
        is_single = len(minis) * config.ppo_epochs == 1
        for mini in minis:
            if not is_single:
                mini.old = self._log_probs(self._policy, mini)
            if config.kl_in_loss:
                mini.ref = self._log_probs(self._reference, mini)
        rows = [self._optimiser_step(mini, rate) for _ in range(config.ppo_epochs) for mini in minis]
        self._num_steps += 1
        sync_steps = config.ref_model_sync_steps
        if self._reference is not None and sync_steps and self._num_steps % sync_steps == 0:
            self.refresh_reference()
        compiled = {"update/compiled": float(self._policy.num_compiled)} if self._policy.compiles else {}
        return {**average(rows), "lr": rate, **compiled}

    def refresh_reference(self) -> None:
        """The policy as it is now becomes the reference of the KL term."""
        self._reference = self._policy.frozen_copy()

    def log_probs(self, groups: Sequence[Group], *, reference: bool = False) -> list[Tensor]:
        """The log-probabilities of every answer's tokens, under the policy as it is or under the reference."""
        policy = self._reference if reference else self._policy
        if policy is None:
            raise BadValueError(
                "there is no reference policy; set actor.use_kl_loss or algorithm.use_kl_in_reward, with a coefficient "
                "above 0"
            )
        return self._split(groups, lambda mini: self._log_probs(policy, mini))

    def sum_pi_squared(self, groups: Sequence[Group]) -> list[Tensor]:
        """For every token of every answer the sum of the squared probabilities of all tokens there."""
        return self._split(groups, lambda mini: self._statistic(self._policy, mini, "sum_pi_squared"))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors by name, and plain numbers: all that the next step depends on, the policy's weights apart."""
        tensors, numbers = self._optimizer.state()
        if self._reference is not None:
            tensors |= {f"reference.{name}": p.detach() for name, p in self._reference.parameters()}
        return tensors, {**numbers, "num_steps": self._num_steps}

    def load_state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on as the updater did whose `state` this is."""
        prefix = "reference."
        weights = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        if weights:
            self._reference = self._reference or self._policy.frozen_copy()
            self._reference.load_weights(weights)
        self._optimizer.load_state(tensors, numbers)
        self._num_steps = numbers["num_steps"]

    def _mini_batches(self, groups: Sequence[Group], advantages: Advantages) -> list[MiniBatch]:
        values = as_rows(advantages, groups, self._policy.device)
        size = self._config.ppo_mini_batch_size or len(groups)
        if size < 1:
            raise BadValueError(f"actor.ppo_mini_batch_size={size}: give at least one prompt per optimiser step")
        minis: list[MiniBatch] = []
        seen = 0
        for start in range(0, len(groups), size):
            chosen = groups[start : start + size]
            count = sum(len(group.completions) for group in chosen)
            minis.append(self._mini_batch(chosen, values[seen : seen + count]))
            seen += count
        return minis

    def _mini_batch(self, groups: Sequence[Group], advantages: Tensor | list[Tensor]) -> MiniBatch:
        answers, device = number_answers(groups), self._policy.device
        sampled = [value for answer in answers for value in _sampled(answer.completion)]
        return MiniBatch(
            answers,
            pack(answers, self._config.micro_batch_tokens, device, choose_form(self._policy, answers)),
            in_order(advantages, [answer.number for answer in answers]),
            not isinstance(advantages, Tensor),
            torch.tensor(sampled, dtype=torch.float64, device=device),
        )

    def _optimiser_step(self, mini: MiniBatch, rate: float) -> dict[str, float]:
        if self._select is not None:
            mini.selected = self._choose(self._select, mini)
        device = self._policy.device
        lengths = torch.tensor([len(a.completion.token_ids) for a in mini.answers], dtype=torch.long, device=device)
        prompts = torch.tensor([answer.prompt for answer in mini.answers], dtype=torch.long, device=device)
        loss_of = self._loss_of_step(lengths, prompts)
        total = torch.zeros((), dtype=torch.float64, device=device)
        parts: list[Mapping[str, Tensor]] = []
        for micro in mini.micro_batches:
            outputs, drift = self._loss(micro, mini, loss_of)
            torch.autograd.backward(outputs.loss)
            self._optimizer.gather()
            total += outputs.loss.detach()
            parts.append({**outputs.metrics, **drift})
        norm = self._optimizer.step(rate, is_sound=bool(total.isfinite()))
        metrics = {"loss": total.item(), "grad_norm": norm, "update/micro_batches": float(len(mini.micro_batches))}
        return {**combine(parts), **metrics, "update/skipped": float(not self._optimizer.stepped)}

    def _loss(
        self, micro: MicroBatch, mini: MiniBatch, loss_of: Callable[[Fields], LossOutputs]
    ) -> tuple[LossOutputs, dict[str, Tensor]]:
        found = self._policy.token_statistics(
            micro.hidden(self._policy),
            micro.targets,
            temperature=self._temperature,
            entropy=True,
            entropy_gradient=self._config.entropy_coeff != 0,
        )
        fields = {
            "log_probs": found.log_probs,
            "entropy": found.entropy,
            "advantages": mini.advantages[micro.tokens if mini.per_token else micro.answers],
            "per_token": mini.per_token,
            "sequence_ids": micro.sequence_ids,
            "prompt_ids": micro.prompt_ids,
        }
        for name, values in (("old_log_probs", mini.old), ("ref_log_probs", mini.ref), ("selected", mini.selected)):
            fields[name] = None if values is None else values[micro.tokens]
        present = found.log_probs.detach() if mini.old is None else mini.old[micro.tokens]
        sampled = mini.sampled[micro.tokens]
        gap = torch.where(sampled.isnan(), 0.0, (present.double() - sampled).abs())
        known = (~mini.sampled.isnan()).sum()
        drift = {"rollout/log_prob_gap": gap.sum() / known, "rollout/log_prob_gap/max": gap.max()}
        return loss_of(fields), drift

    def _choose(self, select: Select, mini: MiniBatch) -> Tensor:
        log_probs = self._log_probs(self._policy, mini)
        answers, device = mini.answers, self._policy.device
        lengths = torch.tensor([len(answer.completion.token_ids) for answer in answers], device=device)
        numbers = torch.tensor([answer.number for answer in answers], device=device)
        return select(
            {
                "log_probs": log_probs,
                "old_log_probs": mini.old,
                "advantages": mini.advantages if mini.per_token else mini.advantages[numbers],
                "per_token": mini.per_token,
                "sequence_ids": torch.arange(len(answers), device=device).repeat_interleave(lengths),
                "prompt_ids": torch.tensor([answer.prompt for answer in answers], device=device),
            }
        )

    def _log_probs(self, policy: Any, mini: MiniBatch) -> Tensor:
        return self._statistic(policy, mini, "log_probs")

    @torch.no_grad()
    def _statistic(self, policy: Any, mini: MiniBatch, name: str) -> Tensor:
        """One number per token of the mini-batch."""
        found: Tensor | None = None
        for micro in mini.micro_batches:
            statistics = policy.token_statistics(
                micro.hidden(policy),
                micro.targets,
                temperature=self._temperature,
                sum_pi_squared=name == "sum_pi_squared",
            )
            values = getattr(statistics, name)
            if found is None:
                found = values.new_zeros(len(mini.sampled))
            found[micro.tokens] = values
        return torch.zeros(0, device=self._policy.device) if found is None else found

    def _split(self, groups: Sequence[Group], statistic: Callable[[MiniBatch], Tensor]) -> list[Tensor]:
        """A statistic of every answer's tokens; empty for an answer that is left out of training."""
        num_answers = sum(len(group.completions) for group in groups)
        mini = self._mini_batch(groups, torch.zeros(num_answers, device=self._policy.device))
        values = statistic(mini)
        found = [values[:0]] * num_answers
        for answer in mini.answers:
            found[answer.number] = values[answer.start : answer.start + len(answer.completion.token_ids)]
        return found


def _sampled(completion: Completion) -> tuple[float, ...]:
    """What the sampler said of every token; an engine that says nothing is not taken to have said 0."""
    is_known = len(completion.log_probs) == len(completion.token_ids)
    return completion.log_probs if is_known else (math.nan,) * len(completion.token_ids)
