"""One row of a data file to a task: verl's schema and the simple one.

{"prompt": [{"role": "user", "content": "6*7?"}], "data_source": "maths",
 "reward_model": {"ground_truth": "42"}, "extra_info": {"index": 3}}
{"prompt": "6*7?", "answer": "42"}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from groupwise.errors import BadValueError
from groupwise.types import Task

# Columns with a place of their own in a task; the others are handed on to the reward function.
_OWN = frozenset({"prompt", "answer", "data_source", "reward_model", "extra_info"})


def as_task(row: Any, key: str) -> Task:
    """The task of a row; a BadValueError says in a few words what is wrong with it."""
    if not isinstance(row, Mapping):
        raise BadValueError(f"the row is a {_kind(row)}, not an object with keys")
    data_source = row.get("data_source")
    if not isinstance(data_source, str | None):
        raise BadValueError(f"'data_source' is a {_kind(data_source)}, not text")
    return Task(key, _prompt(row), _answer(row), data_source or "", _extra_info(row))


def _prompt(row: Mapping[str, Any]) -> str | list[dict[str, str]]:
    prompt = row.get("prompt")
    if prompt is None:
        raise BadValueError("'prompt' is missing")
    if isinstance(prompt, str):
        if not prompt:
            raise BadValueError("'prompt' is empty")
        return prompt
    if not isinstance(prompt, list):
        raise BadValueError(f"'prompt' is a {_kind(prompt)}; it must be text or a list of chat messages")
    if not prompt:
        raise BadValueError("'prompt' is empty")
    return [_message(message, place) for place, message in enumerate(prompt)]


def _message(message: Any, place: int) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise BadValueError(f"message {place} of 'prompt' is a {_kind(message)}, not an object")
    for name in ("role", "content"):
        if not isinstance(message.get(name), str):
            raise BadValueError(f"'{name}' of message {place} of 'prompt' is a {_kind(message.get(name))}, not text")
    # parquet gives every message of a file the same fields and fills up with None
    return {name: value for name, value in message.items() if isinstance(value, str)}


def _answer(row: Mapping[str, Any]) -> Any:
    """`reward_model.ground_truth` where there is a `reward_model`, otherwise `answer`."""
    name, answer = "answer", row.get("answer")
    if row.get("reward_model") is not None:
        name, reward_model = "reward_model.ground_truth", row["reward_model"]
        if not isinstance(reward_model, Mapping):
            raise BadValueError(f"'reward_model' is a {_kind(reward_model)}, not an object")
        answer = reward_model.get("ground_truth")
    if answer is None:
        both = "'answer' is missing, and so is 'reward_model'" if name == "answer" else f"'{name}' is missing"
        raise BadValueError(both)
    if isinstance(answer, float) and not math.isfinite(answer):
        raise BadValueError(f"'{name}' is {answer}")
    return answer


def _extra_info(row: Mapping[str, Any]) -> dict[str, Any]:
    extra_info = row.get("extra_info")
    if not isinstance(extra_info, Mapping | None):
        raise BadValueError(f"'extra_info' is a {_kind(extra_info)}, not an object")
    others = {name: value for name, value in row.items() if name not in _OWN}
    return {**others, **(extra_info or {})}


def _kind(value: Any) -> str:
    return type(value).__name__
