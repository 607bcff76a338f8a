"""What `learn_gpu.py` teaches: questions of the built-in families as chats, and the reward both sides use.

A row of `FAMILIES` is a family of `groupwise.tasks` with its difficulty and the words to ask in. Training questions and
held-out ones are disjoint, as the families split them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.rewards.extraction import answer_number
from groupwise.tasks.generated import GeneratedTasks, held_out_sample
from groupwise.types import Task

NUM_TRAINING = 8192


@dataclass(frozen=True)
class ChatFamily:
    """asks: a format of the numbers in the family's own prompt, in their order."""

    task: str
    difficulty: int
    asks: str

    def row(self, task: Task) -> dict[str, Any]:
        numbers = re.findall(r"\d+", str(task.prompt))
        prompt = [{"role": "user", "content": self.asks.format(*numbers)}]
        return {"prompt": prompt, "answer": task.answer, "data_source": self.task}


FAMILIES = {
    "two-digit addition": ChatFamily("sums", 2, "What is {0} + {1}? Answer with the number only."),
    "three-digit addition": ChatFamily("sums", 3, "What is {0} + {1}? Answer with the number only."),
    "products": ChatFamily("products", 2, "What is {0} * {1}? Answer with the number only."),
}


@dataclass(frozen=True)
class Files:
    """Where a family's questions lie."""

    train: Path
    held_out: Path

    @classmethod
    def write(cls, name: str, folder: Path, num_held_out: int) -> Files:
        family = FAMILIES[name]
        folder.mkdir(parents=True, exist_ok=True)
        slug = name.replace(" ", "-")
        files = cls(folder / f"{slug}-train.jsonl", folder / f"{slug}-held-out.jsonl")
        drawn = GeneratedTasks(family.task, family.difficulty, seed=0)
        _write(files.train, family, [drawn[place] for place in range(NUM_TRAINING)])
        _write(files.held_out, family, held_out_sample(family.task, family.difficulty, num_held_out))
        return files


def read_rows(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]


def right(completions: list[list[dict[str, str]]], answer: list[str], **_: Any) -> list[float]:
    """1 where the number an answer ends up with is the right one; TRL's signature, which both sides take."""
    told = [answer_number(messages[0]["content"]) for messages in completions]
    return [float(number is not None and number == int(truth)) for number, truth in zip(told, answer, strict=True)]


def close(completions: list[list[dict[str, str]]], answer: list[str], **_: Any) -> list[float]:
    """The reward: 1 for the right number; for another whole number half the share of its digits that stand where they
    should, counted from the last; 0 for none."""
    told = [answer_number(messages[0]["content"]) for messages in completions]
    shares = [_digits_in_place(number, truth) for number, truth in zip(told, answer, strict=True)]
    return [1.0 if share == 1.0 else 0.5 * share for share in shares]


def _digits_in_place(number: Any, truth: str) -> float:
    if number is None or number != int(number) or number < 0:
        return 0.0
    told = str(int(number))
    same = sum(mine == true for mine, true in zip(reversed(told), reversed(truth), strict=False))
    return same / max(len(told), len(truth))


def _write(path: Path, family: ChatFamily, tasks: list[Task]) -> None:
    path.write_text("".join(json.dumps(family.row(task)) + "\n" for task in tasks), encoding="utf-8")
