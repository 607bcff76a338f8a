"""The parts of a run, built from its settings: everything that has a state, and the seam between the stages.

Building is also checking: a run whose parts do not fit each other is refused here, before any work starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groupwise.config import ActorConfig, DataConfig, RunConfig
from groupwise.errors import BadValueError
from groupwise.extensions import import_extensions
from groupwise.judging import Judge, check_estimator
from groupwise.objectives import (
    FixedKLController,
    LossInputs,
    LossOutputs,
    Totals,
    get_kl_controller,
    objective,
    plan,
    select_by_covariance,
)
from groupwise.policy import Policy, load_policy
from groupwise.rewards import requiring, reward_of
from groupwise.rollout import EmbeddedEngine
from groupwise.tasks import tasks_of
from groupwise.types import Group, Prompt, Sampling, Task
from groupwise.update import Advantages, Fields, LossOfStep, Updater

EMBEDDED = Path(__file__).parent / "assets" / "embedded"


class Parts:
    """Model, engine, tasks, reward, judge and updater of one run."""

    def __init__(self, config: RunConfig) -> None:
        if config.trainer.num_threads is not None:
            torch.set_num_threads(config.trainer.num_threads)
        torch.manual_seed(config.trainer.seed)
        self._config = config
        import_extensions(config.model.external_lib)
        check_estimator(config.algorithm)
        chosen = plan(config.actor)
        parts = config.algorithm.gdpo_reward_keys if config.algorithm.adv_estimator == "gdpo" else None
        self.reward = requiring(reward_of(config.reward), parts or ())
        self.policy = load_policy(config.model, EMBEDDED)
        rows = min(config.rollout.max_num_seqs, config.data.train_batch_size * config.rollout.n)
        self.engine = EmbeddedEngine(self.policy, rows, config.rollout.gpu_memory_utilization)
        tasks = tasks_of(config.data, config.trainer.seed)
        self.bad_rows = tasks.bad_rows
        self._source = tasks.train
        self.held_out = as_prompts(self.policy, tasks.held_out, config.data, "held-out")
        check_prompts(self.policy, tasks.listed or tasks.held_out, config)
        self._draws = torch.Generator()
        self._kl_loss = kl_loss_controller(config.actor)
        self.updater = Updater(
            self.policy,
            config.actor,
            loss_of_step(config, lambda: self._kl_loss.value),
            total_steps=config.trainer.total_training_steps,
            temperature=config.rollout.temperature,
            select=self._select if chosen.mode.needs_selection else None,
            keep_reference=config.algorithm.kl_in_reward,
        )
        self.judge = Judge(config.algorithm, self.updater, self._greedy_scores, self.policy.decode)

    def next_prompts(self, step: int) -> list[Prompt]:
        # What a step draws beside its answers depends on the seed and its number, not on the steps before it.
        self._draws.manual_seed((self._config.trainer.seed << 32) + step)
        tasks = self._source.next_batch(self._config.data.train_batch_size)
        return as_prompts(self.policy, tasks, self._config.data, step)

    def learn(self, groups: Sequence[Group], advantages: Advantages) -> dict[str, float]:
        """One batch's update, and what the KL does to its coefficient."""
        metrics = self.updater.step(groups, advantages)
        if self._config.actor.kl_in_loss:
            metrics["kl/loss_coef"] = self._kl_loss.value
            self._kl_loss.update(metrics.get("actor/kl", 0.0), sum(len(group.completions) for group in groups))
        return metrics

    def _greedy_scores(self, groups: Sequence[Group]) -> list[float | None]:
        sampling = replace(sampling_of(self._config), temperature=0.0)
        greedy = self.reward(self.engine.generate([group.prompt for group in groups], 1, sampling))
        return [group.completions[0].score for group in greedy]

    def _select(self, fields: Fields) -> Tensor:
        return select_by_covariance(LossInputs(**fields), self._config.actor, generator=self._draws)

    def is_finite(self) -> bool:
        """Whether every weight is a number."""
        return bool(torch.stack([p.detach().isfinite().all() for _, p in self.policy.parameters()]).all())

    def tensors(self) -> dict[str, Tensor]:
        """Weights and the updater's moments, by name."""
        weights = {f"model.{name}": parameter.detach() for name, parameter in self.policy.parameters()}
        tensors, _ = self.updater.state()
        return weights | {f"updater.{name}": tensor for name, tensor in tensors.items()}

    def numbers(self) -> dict[str, Any]:
        """Everything else, as JSON."""
        _, numbers = self.updater.state()
        return {
            "source": self._source.state(),
            "judge": self.judge.state(),
            "kl_loss": self._kl_loss.state(),
            "updater": numbers,
            "num_threads": torch.get_num_threads(),
        }

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Back to where `tensors` and `numbers` were taken."""
        with torch.no_grad():
            for name, parameter in self.policy.parameters():
                parameter.copy_(tensors[f"model.{name}"])
        prefix = "updater."
        own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        self.updater.load_state(own, numbers["updater"])
        self._source.load_state(numbers["source"])
        self.judge.load_state(numbers["judge"])
        self._kl_loss = type(self._kl_loss).from_state(numbers["kl_loss"])
        torch.set_num_threads(numbers["num_threads"])


def loss_of_step(config: RunConfig, kl_loss_coef: Callable[[], float]) -> LossOfStep:
    """What the updater asks for before an optimiser step: its loss, divided by the counts of the whole of it."""

    def begin(lengths: Tensor, prompt_ids: Tensor) -> Callable[[Fields], LossOutputs]:
        totals = Totals.count(lengths, prompt_ids, config.data.max_response_length)
        actor = replace(config.actor, kl_loss_coef=kl_loss_coef())
        return lambda fields: objective(LossInputs(**fields), actor, totals)

    return begin


def kl_loss_controller(actor: ActorConfig) -> FixedKLController:
    """Of the coefficient in front of the KL in the loss: it stays, unless a target steers it."""
    target, horizon = actor.kl_loss_target, actor.kl_loss_horizon
    settings = {"kl_coef": actor.kl_loss_coef, "target_kl": target, "horizon": horizon}
    return get_kl_controller(settings | {"type": "fixed" if target is None else "adaptive"})


def sampling_of(config: RunConfig, step: int = 0) -> Sampling:
    """How the answers of a step are drawn."""
    rollout = config.rollout
    return Sampling(
        max_tokens=config.data.max_response_length,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        seed=config.trainer.seed,
        step=step,
    )


def as_prompts(policy: Policy, tasks: Sequence[Task], data: DataConfig, step: object) -> list[Prompt]:
    """The tasks as the model reads them, each with a uid of its own."""
    return [Prompt(f"{step}-{place}", task, tokens_of(policy, task, data)) for place, task in enumerate(tasks)]


def tokens_of(policy: Policy, task: Task, data: DataConfig) -> tuple[int, ...]:
    """The prompt's tokens; refused where they are too many for the run, or for the model with an answer behind them."""
    tokens = policy.encode(task)
    if len(tokens) > data.max_prompt_length:
        raise BadValueError(
            f"the prompt of {task.key!r} has {len(tokens)} tokens, more than "
            f"data.max_prompt_length={data.max_prompt_length}; raise it or remove the prompt"
        )
    if policy.context is not None and len(tokens) + data.max_response_length > policy.context:
        raise BadValueError(
            f"the prompt of {task.key!r} has {len(tokens)} tokens; with "
            f"data.max_response_length={data.max_response_length} that is more than the model's context of "
            f"{policy.context}; lower data.max_response_length or remove the prompt"
        )
    return tokens


def check_prompts(policy: Policy, tasks: Sequence[Task], config: RunConfig) -> None:
    """Refuse, before anything is trained, a prompt that does not fit, alone or with the longest answer."""
    data, budget = config.data, config.actor.micro_batch_tokens
    longest = max((len(tokens_of(policy, task, data)) for task in tasks), default=0)
    # An answer's last token predicts nothing.
    needed = longest + data.max_response_length - 1
    if needed > budget:
        raise BadValueError(
            f"actor.micro_batch_tokens={budget} does not hold a prompt of {longest} tokens with an answer of "
            f"data.max_response_length={data.max_response_length}; raise it to {needed} or more"
        )
