"""The `data` section of a run's configuration to its training prompts and its held-out tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from groupwise.config import DataConfig
from groupwise.errors import BadValueError
from groupwise.tasks.files import BadRow, load_tasks
from groupwise.tasks.generated import GeneratedTasks, held_out_sample
from groupwise.tasks.source import EpochTasks, PromptSource
from groupwise.types import Task


@dataclass(frozen=True)
class RunTasks:
    """What a run asks. `held_out` is the same for every seed, and empty where there are files to train on and
    none to evaluate on. listed: the tasks of `train`, where they come from files."""

    train: PromptSource
    held_out: list[Task]
    bad_rows: list[BadRow] = field(default_factory=list)
    listed: list[Task] = field(default_factory=list)


def tasks_of(data: DataConfig, seed: int) -> RunTasks:
    """Files where `data.train_files` are given, otherwise the built-in task; `data.val_files` go with either."""
    if data.val_size < 0:
        raise BadValueError(f"data.val_size={data.val_size}: use 0 for no evaluation, or a number of prompts")
    held_out, bad_rows = _held_out(data)
    if not data.train_files:
        generated = GeneratedTasks(data.task, data.difficulty, seed)
        return RunTasks(PromptSource(generated), held_out, bad_rows)
    loaded = load_tasks(data.train_files, data.max_bad_rows)
    epochs = EpochTasks(loaded.tasks, seed, shuffle=data.shuffle, fingerprint=loaded.fingerprint)
    return RunTasks(PromptSource(epochs), held_out, [*loaded.bad_rows, *bad_rows], loaded.tasks)


def _held_out(data: DataConfig) -> tuple[list[Task], list[BadRow]]:
    if data.val_files:
        loaded = load_tasks(data.val_files, data.max_bad_rows, key="data.val_files")
        return _at_most(loaded.tasks, data.val_size), loaded.bad_rows
    if data.train_files:
        return [], []
    return held_out_sample(data.task, data.difficulty, data.val_size), []


def _at_most(tasks: list[Task], size: int) -> list[Task]:
    """All, or a sample from all over the files, in their order."""
    if len(tasks) <= size:
        return tasks
    chosen = Random("held out").sample(range(len(tasks)), size)  # noqa: S311 - repeatable, not secret
    return [tasks[place] for place in sorted(chosen)]
