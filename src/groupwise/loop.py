"""The training loop: the algorithm box of the paper, and what keeps it alive.

    for every step:
        prompts    = tasks.next_batch()
        groups     = engine.generate(prompts, n)          # every prompt, n answers
        groups     = reward(groups)                       # every answer, a score
        advantages = judge(groups)                        # who did better than their siblings
        policy     = updater.step(groups, advantages)     # more of that

This is the only module that knows all the stages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from groupwise.config import RunConfig
from groupwise.errors import TrainingStoppedError, unwritten
from groupwise.evaluation import EVALUATION_STEP, evaluate
from groupwise.observe import Console
from groupwise.overrides import as_dict, refuse_changes
from groupwise.parts import Parts, sampling_of
from groupwise.signals import StopRequest
from groupwise.store.attempts import Attempts
from groupwise.store.checkpoint import Checkpoint, load_newest, rotate, save_checkpoint
from groupwise.store.ledger import Metrics, forget_rollouts, write_rollouts
from groupwise.types import Group
from groupwise.watch import Watch


def train(config: RunConfig, parts: Parts, run_dir: Path, console: Console, stop: StopRequest) -> bool:
    """Train from the newest checkpoint, or from the start, to the last step or a signal; whether to the last."""
    run = Run(config, parts, run_dir, console)
    run.resume()
    last = config.trainer.total_training_steps
    if run.step == 0 and not run.metrics.size:
        run.record({"step": 0, **run.evaluate()})
    while run.step < last and stop.exit_code is None:
        row = run.train_step()
        if run.step % config.trainer.test_freq == 0 or run.step == last:
            row |= run.evaluate()
        run.record(row)
        if run.step % config.trainer.save_freq == 0 or run.step == last or stop.exit_code is not None:
            run.save()
    if run.step == last:
        run.finish()
    return run.step == last


class Run:
    """One run: its parts, its step, and the files it keeps."""

    def __init__(self, config: RunConfig, parts: Parts, run_dir: Path, console: Console) -> None:
        self.config, self.parts, self.console = config, parts, console
        self.metrics = Metrics(run_dir / "metrics.jsonl")
        self._rollouts, self._checkpoints = run_dir / "rollouts", run_dir / "checkpoints"
        self.step = 0
        self._attempt = Attempts(console.note)
        self._watch = Watch(config, console.note)

    def train_step(self) -> dict[str, Any]:
        """One round of the algorithm; the row of metrics it earned."""
        config, parts, clock = self.config, self.parts, _Clock(self.console.doing)
        self.step += 1
        prompts = clock("rollout", lambda: parts.next_prompts(self.step))
        sampling = sampling_of(config, self.step)
        groups = clock("rollout", lambda: parts.engine.generate(prompts, config.rollout.n, sampling))
        groups = clock("reward", lambda: parts.reward(groups))
        judgement = clock("advantage", lambda: parts.judge(groups))
        self.console.answers(groups, judgement.advantages)
        update = clock("update", lambda: parts.learn(groups, judgement.to_learn))
        clock("store", lambda: self._keep_answers(groups, judgement.advantages))
        num_tokens = sum(len(answer.token_ids) for group in groups for answer in group.completions)
        row = {"step": self.step, **judgement.metrics, **update, **clock.metrics(num_tokens)}
        self._watch(row, groups, weights_are_finite=parts.is_finite())
        return row

    def evaluate(self) -> dict[str, Any]:
        started = time.perf_counter()
        self.console.doing("evaluation")
        parts, data = self.parts, self.config.data
        sampling = sampling_of(self.config, EVALUATION_STEP)
        found = evaluate(parts.engine, parts.held_out, parts.reward, sampling, data.val_n)
        if "failed" in found:
            share = f"{found['failed']:.0%} of the held-out questions"
            self.console.note(f"step {self.step}: the reward of {share} failed; they count as wrong")
        seconds = time.perf_counter() - started
        return {**{f"eval/{name}": value for name, value in found.items()}, "time/evaluation": seconds}

    def record(self, row: Mapping[str, Any]) -> None:
        self._attempt("metrics.jsonl", self.step, lambda: self.metrics.append(row))
        self.console.step(dict(row))
        if self._watch.hopeless:
            raise TrainingStoppedError(self._watch.hopeless)

    def save(self) -> None:
        if self._watch.is_sound:
            self._attempt("a checkpoint", self.step, self._save)

    def finish(self) -> None:
        try:
            self.metrics.flush()
        except OSError as error:
            raise unwritten("metrics.jsonl", self.config.trainer.run_dir, error) from error

    def _save(self) -> None:
        # A checkpoint stands for the rows before it: they go first.
        self.metrics.flush()
        numbers = {
            **self.parts.numbers(),
            "metrics_size": self.metrics.size,
            "config": as_dict(self.config),
        }
        checkpoint = Checkpoint(self.step, self.parts.tensors(), numbers)
        save_checkpoint(self._checkpoints, checkpoint, self.config.trainer.max_ckpt_to_keep)

    def _keep_answers(self, groups: Sequence[Group], advantages: Sequence[float]) -> None:
        self._attempt("the rollouts", self.step, lambda: write_rollouts(self._rollouts, self.step, groups, advantages))

    def resume(self) -> None:
        """Go back to the newest checkpoint that verifies: state, metrics and rollouts as they were then."""
        checkpoint, reasons = load_newest(self._checkpoints)
        for reason in reasons:
            self.console.note(reason)
        if checkpoint is not None:
            refuse_changes(checkpoint.numbers["config"], self.config)
            self.parts.load(checkpoint.tensors, checkpoint.numbers)
            self.step = checkpoint.step
            self.console.note(f"resumed after step {self.step}")
            # A run killed between a checkpoint and the removal of an older one left one too many.
            rotate(self._checkpoints, self.step, self.config.trainer.max_ckpt_to_keep)
        if not self.metrics.cut_back(checkpoint.numbers["metrics_size"] if checkpoint else 0):
            self.console.note("metrics.jsonl is shorter than it was: the rows that are missing stay missing")
        self.console.progress.recall(self.metrics.rows())
        forget_rollouts(self._rollouts, self.step)


class _Clock:
    """Seconds per phase, under `time/`: what may differ between two runs of one seed. say: is told the phase."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._started = time.perf_counter()
        self._spent: dict[str, float] = {}

    def __call__(self, phase: str, work: Callable[[], Any]) -> Any:
        self._say(phase)
        started = time.perf_counter()
        result = work()
        self._spent[phase] = self._spent.get(phase, 0.0) + time.perf_counter() - started
        return result

    def metrics(self, num_tokens: int) -> dict[str, float]:
        total = time.perf_counter() - self._started
        phases = {f"time/{phase}": seconds for phase, seconds in self._spent.items()}
        return {"time/step": total, **phases, "time/tokens_per_second": num_tokens / total}
