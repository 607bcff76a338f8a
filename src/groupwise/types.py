"""The nouns every stage speaks, and the letters in every shape annotation, defined once.

    B   answers in the batch (rows), whatever group they are in
    G   groups in the batch, one per prompt label
    N   answers in one group, where the groups of one size are laid out as a table
    T   tokens of an answer, padding included
    K   parts of a reward (format, accuracy, ...)
    S   steps of all answers together, in process-level estimators
    L   response tokens of all answers together, packed without padding

`Float[Tensor, "B T"]` is read by people and by the type checker. It costs nothing at run time: without
GROUPWISE_CHECK_SHAPES the names below are plain shims and jaxtyping is never imported. The tests set the
variable and check every annotated call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING or os.environ.get("GROUPWISE_CHECK_SHAPES"):
    from jaxtyping import Bool, Float, Float64, Int, Num, Shaped
else:

    class _Unchecked:
        """`Float[Tensor, "B T"]` without jaxtyping is just `Tensor`."""

        def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
            return item[0]

    Bool = Float = Float64 = Int = Num = Shaped = _Unchecked


@dataclass(frozen=True)
class Task:
    """One question with a checkable answer, before a tokenizer has seen it.

        Task(key="sums/train/17", prompt="12+34=", answer="46", data_source="sums")

    key: names the question across steps. prompt: text, or chat messages for the tokenizer's template. answer:
    the ground truth.
    """

    key: str
    prompt: str | list[dict[str, str]]
    answer: Any
    data_source: str = ""
    extra_info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompt:
    """A task in one step of a run, as the model reads it.

        Prompt(uid="3-0", task=Task(...), token_ids=(4, 9, 2))

    uid: names the group of its answers, unique in the run: step and place in the batch, so that the same question
    asked twice forms two groups.
    """

    uid: str
    task: Task
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Completion:
    """One answer: its tokens (the end-of-sequence token is one), their sampled log-probabilities, and what
    became of it.

        Completion(token_ids=(8, 3, 1), log_probs=(-0.1, -0.2, -0.01), finish_reason="stop", text="46", score=1.0)

    finish_reason: "stop" (the model ended it) or "length" (it was cut off). failure: why it has no score; such
    an answer takes no part in its group. parts: the named parts of the score, where the reward function gives
    them. step_rewards: likewise, for every step of the answer the characters of the text at its end, and its reward.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: str
    text: str = ""
    score: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None
    step_rewards: tuple[tuple[int, float], ...] = ()

    def judged(
        self,
        score: float | None,
        parts: Mapping[str, float],
        failure: str | None = None,
        step_rewards: tuple[tuple[int, float], ...] = (),
    ) -> Completion:
        return replace(self, score=score, parts=parts, failure=failure, step_rewards=step_rewards)


@dataclass(frozen=True)
class Group:
    """A prompt and its answers: the unit of everything that follows."""

    prompt: Prompt
    completions: tuple[Completion, ...]


@dataclass(frozen=True)
class Sampling:
    """How to draw answers. temperature 0 is greedy. seed and step: with the place of the prompt and of the
    answer they fix every random number, whatever the batch looks like."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    step: int = 0


class Engine(Protocol):
    """Prompts to groups. The embedded engine reads the policy's weights in place; one beside it loads them."""

    def generate(self, prompts: Sequence[Prompt], n: int, sampling: Sampling) -> list[Group]: ...

    def load_weights(self, weights: Mapping[str, Any]) -> None: ...


RewardFunction = Callable[[Sequence[Group]], list[Group]]
"""Groups with answers to the same groups with scores: `Completion.judged` for every answer."""

__all__ = [
    "Bool",
    "Completion",
    "Engine",
    "Float",
    "Float64",
    "Group",
    "Int",
    "Num",
    "Prompt",
    "RewardFunction",
    "Sampling",
    "Shaped",
    "Task",
]
