"""A user's reward function, unchanged, in the signature of verl or of TRL.

    def compute_score(data_source, solution_str, ground_truth, extra_info=None): ...   # one answer -> number or dict
    def reward(prompts, completions, **columns): ...                                    # all answers -> numbers

What the function does wrong is a failure of the answers concerned, with its reason; their scores stay None.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

from groupwise.config import RewardConfig
from groupwise.errors import BadValueError
from groupwise.rewards.loading import load_function
from groupwise.rewards.task_reward import task_reward
from groupwise.rewards.values import as_verdict
from groupwise.rewards.verdicts import Item, Scorer, Verdict, scored_by
from groupwise.types import RewardFunction

# How much of an exception's text a reason shows.
_SHOWN = 300


def reward_of(config: RewardConfig) -> RewardFunction:
    """The user's function where one is named, otherwise the reward of the task itself."""
    return task_reward if config.function is None else user_reward(config.function)


def user_reward(place: str) -> RewardFunction:
    """The reward function at `path/to/my_reward.py:score`."""
    return scored_by(user_scorer(load_function(place), place))


def user_scorer(function: Callable[..., Any], place: str = "the function") -> Scorer:
    """verl's signature or TRL's, told apart by the names of the parameters."""
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some functions written in C do not say
        parameters = []
    if "completions" in parameters:
        return PerBatch(function)
    if "solution_str" in parameters:
        return PerAnswer(function)
    raise BadValueError(
        f"reward.function={place} takes ({', '.join(parameters)}); give it verl's parameters (data_source, "
        "solution_str, ground_truth, extra_info) or TRL's (prompts, completions, **columns)"
    )


class PerAnswer:
    """verl's signature: called once per answer, with keywords, as verl does."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._call = _Call(function)

    def judge(self, items: Sequence[Item]) -> list[Verdict]:
        return [self._judge(item) for item in items]

    def _judge(self, item: Item) -> Verdict:
        task = item.task
        try:
            value = self._call(
                {
                    "data_source": task.data_source,
                    "solution_str": item.response,
                    "ground_truth": task.answer,
                    "extra_info": dict(task.extra_info),
                }
            )
            return as_verdict(value)
        except (Exception, SystemExit) as problem:  # noqa: BLE001 - the user's code may raise whatever it likes
            return Verdict.failed(_reason(problem))


class PerBatch:
    """TRL's signature: called once per batch, with a list per column."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._call = _Call(function)

    def judge(self, items: Sequence[Item]) -> list[Verdict]:
        try:
            values = self._call(_columns(items))
            wrong = _not_a_list_of(len(items), values)
            return [Verdict.failed(wrong)] * len(items) if wrong else [as_verdict(value) for value in values]
        except (Exception, SystemExit) as problem:  # noqa: BLE001 - the user's code may raise whatever it likes
            return [Verdict.failed(_reason(problem))] * len(items)


class _Call:
    """Calls a function with those of the arguments that it takes; an async one is run to its end."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        parameters = inspect.signature(function).parameters.values()
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._names = {p.name for p in parameters if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}}

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        taken = {name: value for name, value in arguments.items() if self._takes_all or name in self._names}
        value = self._function(**taken)
        return asyncio.run(value) if inspect.iscoroutine(value) else value


def _columns(items: Sequence[Item]) -> dict[str, list[Any]]:
    """TRL's arguments: where the prompts are chat messages the completions are too, and every key of an
    `extra_info` is a column (None for the answers whose task does not have it)."""
    names = dict.fromkeys(name for item in items for name in item.task.extra_info)
    columns: dict[str, list[Any]] = {name: [item.task.extra_info.get(name) for item in items] for name in names}
    answers = [item.task.answer for item in items]
    return {
        **columns,
        "data_source": [item.task.data_source for item in items],
        "answer": answers,
        "ground_truth": list(answers),
        "prompts": [item.task.prompt for item in items],
        "completions": [_completion(item) for item in items],
        "completion_ids": [list(item.token_ids) for item in items],
    }


def _completion(item: Item) -> str | list[dict[str, str]]:
    return item.response if isinstance(item.task.prompt, str) else [{"role": "assistant", "content": item.response}]


def _not_a_list_of(size: int, values: Any) -> str | None:
    """What is wrong with the values of a batch as a whole. One value too few or too many says that none can be
    trusted to belong to its answer."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable) or not isinstance(values, Sized):
        return f"the reward function returned a {type(values).__name__}; it must be a list of numbers"
    if len(values) != size:
        return f"the reward function returned {len(values)} values for {size} answers"
    return None


def _reason(problem: BaseException) -> str:
    """`KeyError: 'x' (my_reward.py, line 3)`."""
    # Formatted by traceback, which survives an exception whose own text cannot be made.
    what = "".join(traceback.format_exception_only(problem)).strip()[-_SHOWN:]
    frames = traceback.extract_tb(problem.__traceback__)
    where = frames[-1]
    return f"the reward function raised {what} ({where.filename.rpartition('/')[2]}, line {where.lineno})"
