"""One training on a CPU by two trainers, step by step: our loop, and TRL's GRPOTrainer given the same settings.

    python benchmarks/cpu_sides.py trl --evaluate-every 5 data.task=sums actor.optim.lr=2e-4

Settings are Groupwise's. The same model files, prompts in the same order, reward function, held-out questions and
learning rates go to both. A turn is one step and says how long its phases took; a held-out evaluation comes after the
step, outside its time, by the same code on the same weights.

A step of ours is the loop's own (`Run.train_step`), its answers written to the disk included. A step of TRL's goes
from the trainer's `on_step_begin` to its `on_step_end`: sampling, rewards, advantages, gradient, clipping, AdamW.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from turns import is_my_turn, say

from groupwise.config import RunConfig
from groupwise.evaluation import evaluate
from groupwise.loop import Run
from groupwise.observe import Console
from groupwise.overrides import read_overrides
from groupwise.parts import EMBEDDED, Parts, sampling_of
from groupwise.rewards.loading import load_function
from groupwise.rewards.task_reward import TaskScorer
from groupwise.rewards.verdicts import Item
from groupwise.tasks import tasks_of
from groupwise.types import Task
from groupwise.update.schedule import learning_rate

SIDES = ("ours", "trl")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--evaluate-every", type=int, default=0, help="steps; 0 never evaluates")
    arguments = parser.parse_args()
    config, _ = read_overrides(arguments.settings)
    with tempfile.TemporaryDirectory() as folder:
        side = ours if arguments.side == "ours" else trl
        side(config, arguments.evaluate_every, Path(folder))


def ours(config: RunConfig, evaluate_every: int, folder: Path) -> None:
    """The loop that `groupwise train` runs."""
    parts = Parts(config)
    with Path(os.devnull).open("w") as nowhere:
        run = Run(config, parts, folder, Console(config.trainer.total_training_steps, nowhere))
        say(begun(config, parts, evaluate_every))
        while run.step < config.trainer.total_training_steps and is_my_turn():
            processor = time.process_time()
            row = run.train_step()
            processor = time.process_time() - processor
            run.record(row)
            seconds = {phase: row[f"time/{phase}"] for phase in ("rollout", "reward", "advantage", "update", "step")}
            seconds["judge"] = seconds.pop("reward") + seconds.pop("advantage")
            found: dict[str, Any] = {"outside": outside_share(row)}
            found |= {"seconds": seconds, "processor": processor, "tokens": answer_tokens(row, config)}
            say(found | looked(config, parts, evaluate_every, run.step))


def trl(config: RunConfig, evaluate_every: int, folder: Path) -> None:
    """TRL's trainer. `parts` lends it the reward, and evaluates: the weights are copied into its policy."""
    from transformers import TrainerCallback

    parts = Parts(config)
    trainer = make_trainer(config, folder)
    spent: dict[str, float] = {}
    for name in ("_generate", "_generate_and_score_completions"):
        clock_method(trainer, name, spent)

    class Turns(TrainerCallback):  # type: ignore[misc]
        """Waits for its turn before a step and says after it what it took."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if not is_my_turn():
                raise NoMoreTurnsError
            self.processor, self.start = time.process_time(), time.perf_counter()

        def on_step_end(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
            step = time.perf_counter() - self.start
            prepared, rollout = spent["_generate_and_score_completions"], spent["_generate"]
            seconds = {"rollout": rollout, "judge": prepared - rollout, "update": step - prepared, "step": step}
            lengths = trainer._metrics["train"]["completions/mean_length"][-1]
            tokens = round(lengths * config.data.train_batch_size * config.rollout.n)
            found = {"seconds": seconds, "processor": time.process_time() - self.processor, "tokens": tokens}
            if evaluate_every:
                parts.policy.load_weights({name: p.detach() for name, p in trainer.model.named_parameters()})
            say(found | looked(config, parts, evaluate_every, state.global_step))

    trainer.add_callback(Turns())
    say(begun(config, parts, evaluate_every))
    try:
        trainer.train()
    except NoMoreTurnsError:
        return


class NoMoreTurnsError(Exception):
    """The parent has seen enough."""


def make_trainer(config: RunConfig, folder: Path) -> Any:
    """GRPOTrainer with the settings of `config`, as far as a default run of ours has them."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    data, optim, steps = config.data, config.actor.optim, config.trainer.total_training_steps
    path = str(EMBEDDED) if config.model.path == "embedded" else config.model.path
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    tasks = tasks_of(data, config.trainer.seed).train.next_batch(data.train_batch_size * steps)
    rows = [{"prompt": task.prompt, "answer": task.answer, "data_source": task.data_source} for task in tasks]
    arguments = GRPOConfig(
        output_dir=str(folder), use_cpu=True, seed=config.trainer.seed, max_steps=steps,
        per_device_train_batch_size=data.train_batch_size * config.rollout.n, steps_per_generation=1,
        num_iterations=config.actor.ppo_epochs, num_generations=config.rollout.n, shuffle_dataset=False,
        max_completion_length=data.max_response_length, temperature=config.rollout.temperature,
        beta=0.0, loss_type="grpo", scale_rewards="group", epsilon=0.2, max_grad_norm=config.actor.grad_clip,
        learning_rate=optim.lr, weight_decay=optim.weight_decay, gradient_checkpointing=False, bf16=False,
        save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    adamw = torch.optim.AdamW(
        model.parameters(), lr=optim.lr, betas=optim.betas, weight_decay=optim.weight_decay, fused=True
    )
    rates = torch.optim.lr_scheduler.LambdaLR(adamw, lambda step: learning_rate(optim, step, steps) / optim.lr)
    return GRPOTrainer(
        model=model,
        args=arguments,
        processing_class=tokenizer,
        reward_funcs=reward_in_trl(config),
        train_dataset=Dataset.from_list(rows),
        optimizers=(adamw, rates),
    )


def reward_in_trl(config: RunConfig) -> Callable[..., list[float]]:
    """The user's function in TRL's signature, or the built-in task's checker in it."""
    if config.reward.function is not None:
        function: Callable[..., list[float]] = load_function(config.reward.function)
        return function
    scorer = TaskScorer()

    def reward(prompts: Any, completions: Any, answer: Any, data_source: Any, **_: Any) -> list[float]:
        columns = zip(prompts, completions, answer, data_source, strict=True)
        items = [Item(Task("", prompt, truth, source), text) for prompt, text, truth, source in columns]
        return [verdict.score or 0.0 for verdict in scorer.judge(items)]

    return reward


def clock_method(owner: Any, name: str, spent: dict[str, float]) -> None:
    """`spent[name]`: seconds of the newest call."""
    inner = getattr(owner, name)

    def clocked(*positional: Any, **named: Any) -> Any:
        start = time.perf_counter()
        result = inner(*positional, **named)
        spent[name] = time.perf_counter() - start
        return result

    setattr(owner, name, clocked)


def begun(config: RunConfig, parts: Parts, evaluate_every: int) -> dict[str, Any]:
    """The first thing said: ready for the first step."""
    return {"threads": torch.get_num_threads()} | looked(config, parts, evaluate_every, 0)


def looked(config: RunConfig, parts: Parts, evaluate_every: int, step: int) -> dict[str, Any]:
    """What the step leaves beside its times: held-out greedy accuracy where it is due, and what dynamo has compiled."""
    dynamo = sys.modules.get("torch._dynamo")
    last = config.trainer.total_training_steps
    found: dict[str, Any] = {"compiled": dynamo.utils.counters["frames"]["total"] if dynamo else 0}
    found["is_last"] = step == last
    if evaluate_every and (step % evaluate_every == 0 or step == last):
        found |= evaluate(parts.engine, parts.held_out, parts.reward, sampling_of(config), 1)
    return found


def outside_share(row: dict[str, float]) -> float:
    """Of a step of ours, what is neither rollout nor reward nor update."""
    return 1 - (row["time/rollout"] + row["time/reward"] + row["time/update"]) / row["time/step"]


def answer_tokens(row: dict[str, Any], config: RunConfig) -> int:
    return round(row["response_length/mean"] * config.data.train_batch_size * config.rollout.n)


if __name__ == "__main__":
    main()
