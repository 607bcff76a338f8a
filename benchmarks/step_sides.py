"""The two sides of `step_gpu.py`: a GRPO step of ours and of TRL's GRPOTrainer, timed phase by phase."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from floor import Work
from processes import tell
from random_model import Shape, make_model, make_prompts

from groupwise.types import Group

LEARNING_RATE = 1e-6
NUM_PROMPTS = 256


@dataclass(frozen=True)
class Order:
    """What a side is asked to do. micro_batch_tokens: of our update, None for the default."""

    shape: Shape
    device: str
    work: Work
    steps: int
    micro_batch_tokens: int | None = None

    @property
    def answers(self) -> int:
        return self.work.prompts * self.work.n


@dataclass
class Report:
    """Seconds of every phase of every step so far; told again after each."""

    device: str
    notes: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, **phases: float) -> None:
        for phase, seconds in phases.items():
            self.seconds.setdefault(phase, []).append(seconds)
        peak, reserved = peak_bytes(self.device), reserved_bytes(self.device)
        tell({"seconds": self.seconds, "peak": peak, "reserved": reserved, "notes": self.notes})


class OurSide:
    """The stages of `groupwise train` under its default settings, but for the sizes and the learning rate."""

    def __init__(self, order: Order) -> None:
        from groupwise.config import ActorConfig, DataConfig, OptimConfig, RolloutConfig, RunConfig
        from groupwise.judging import Judge
        from groupwise.parts import loss_of_step
        from groupwise.policy.load import wrap
        from groupwise.rewards.user_reward import user_scorer
        from groupwise.rewards.verdicts import scored_by
        from groupwise.rollout import EmbeddedEngine
        from groupwise.types import Task
        from groupwise.update import Updater

        self.work = work = order.work
        actor = {} if order.micro_batch_tokens is None else {"micro_batch_tokens": order.micro_batch_tokens}
        self.config = config = RunConfig(
            data=DataConfig(
                train_batch_size=work.prompts,
                max_prompt_length=work.prompt_tokens,
                max_response_length=work.answer_tokens,
            ),
            rollout=RolloutConfig(n=work.n),
            actor=ActorConfig(**actor, optim=OptimConfig(lr=LEARNING_RATE)),
        )
        model, tokenizer = make_model(order.shape, order.device)
        self.policy = wrap(model, tokenizer, compiles=config.model.compile and order.device == "cuda")
        rows = min(config.rollout.max_num_seqs, order.answers)
        self.engine = EmbeddedEngine(self.policy, rows, config.rollout.gpu_memory_utilization)
        self.updater = Updater(self.policy, config.actor, loss_of_step(config, lambda: 0.0), total_steps=100)
        self.reward, self.judge = scored_by(user_scorer(letters_used)), Judge(config.algorithm)
        texts = make_prompts(NUM_PROMPTS, work.prompt_tokens)
        self.tasks = [Task(str(place), text, "") for place, text in enumerate(texts)]

    def rollout(self, step: int) -> list[Group]:
        from groupwise.parts import as_prompts, sampling_of

        count = self.work.prompts
        chosen = [self.tasks[(step * count + place) % len(self.tasks)] for place in range(count)]
        prompts = as_prompts(self.policy, chosen, self.config.data, step)
        return self.engine.generate(prompts, self.work.n, sampling_of(self.config, step))


def ours(order: Order) -> None:
    """Step after step, timed."""
    side, clock, report = OurSide(order), clock_of(order.device), Report(order.device)
    for step in range(order.steps):
        marks = [clock()]
        groups = side.rollout(step)
        marks.append(clock())
        groups = side.reward(groups)
        judgement = side.judge(groups)
        marks.append(clock())
        metrics = side.updater.step(groups, judgement.to_learn)
        marks.append(clock())
        gap = {"log-prob gap": metrics["rollout/log_prob_gap"], "largest": metrics["rollout/log_prob_gap/max"]}
        tokens = sum(len(answer.token_ids) for group in groups for answer in group.completions)
        report.notes = {"answer tokens": tokens, **gap}
        rollout, judging, update = (end - start for start, end in pairwise(marks))
        report.add(step=marks[-1] - marks[0], rollout=rollout, judge=judging, update=update)


def trl(order: Order) -> None:
    """TRL's trainer as it comes: `generate` of transformers, its own optimizer, gradient checkpoints on."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    work, clock = order.work, clock_of(order.device)
    is_gpu = order.device == "cuda"
    model, tokenizer = make_model(order.shape, order.device)
    report = Report(order.device)
    spent: dict[str, list[float]] = {"_generate": [], "_generate_and_score_completions": []}

    class Clock(TrainerCallback):
        """A step from its beginning to behind the optimizer's; the update is what is left of it."""

        started = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.started = clock()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            step = clock() - self.started
            rollout, prepared = (spent[name][-1] for name in ("_generate", "_generate_and_score_completions"))
            report.add(step=step, rollout=rollout, judge=prepared - rollout, update=step - prepared)

    def reward(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        report.notes = {"answer tokens": sum(map(len, completion_ids))}
        return letters_used(completions)

    config = GRPOConfig(
        output_dir="runs/trl", per_device_train_batch_size=order.answers, num_generations=work.n,
        max_completion_length=work.answer_tokens, max_steps=order.steps, logging_steps=1, report_to=[],
        bf16=is_gpu, use_cpu=not is_gpu, save_strategy="no", beta=0.0, learning_rate=LEARNING_RATE, disable_tqdm=True,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model,
        args=config,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_list([{"prompt": text} for text in make_prompts(NUM_PROMPTS, work.prompt_tokens)]),
        callbacks=[Clock()],
    )
    for name, seconds in spent.items():
        setattr(trainer, name, timed(getattr(trainer, name), seconds, clock))
    trainer.train()


def letters_used(completions: list[str], **_: Any) -> list[float]:
    """A reward that tells random answers apart."""
    return [len(set(text)) / 50 for text in completions]


def timed(inner: Callable[..., Any], seconds: list[float], clock: Callable[[], float]) -> Callable[..., Any]:
    """The same function; each call adds its seconds."""

    def wrapper(*positional: Any, **named: Any) -> Any:
        started = clock()
        result = inner(*positional, **named)
        seconds.append(clock() - started)
        return result

    return wrapper


def clock_of(device: str) -> Callable[[], float]:
    """Seconds, once the device has done what it was given."""

    def clock() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    return clock


def peak_bytes(device: str) -> int:
    """Of the GPU's memory; on a CPU of the process's."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reserved_bytes(device: str) -> int:
    """What torch's allocator took of the GPU for that, gaps and graphs included; on a CPU the process."""
    return torch.cuda.max_memory_reserved() if device == "cuda" else peak_bytes(device)


SIDES = {"ours": ours, "trl": trl}
