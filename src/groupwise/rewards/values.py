"""What a reward function returned to a verdict. A value that is not a finite number is a failure, never a 0."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

from groupwise.errors import BadValueError
from groupwise.rewards.verdicts import Verdict

_STEPS = "step_rewards"
# How much of a value a reason shows.
_SHOWN = 80


def as_verdict(value: Any) -> Verdict:
    """A number, or a mapping with a `score` and other named numbers; anything else is a failure with its reason.

    Under `step_rewards` a mapping may give the rewards of an answer's steps: pairs of the number of characters at which
    a step ends, and its reward.
    """
    try:
        if not isinstance(value, Mapping):
            return Verdict(_as_float(value, "the reward function returned"))
        if "score" not in value:
            return Verdict.failed(f"the reward function returned no 'score', only the keys {sorted(map(str, value))}")
        score = _as_float(value["score"], "the reward function returned a 'score' of")
        return Verdict(score, _parts(value), step_rewards=_step_rewards(value.get(_STEPS, ())))
    except BadValueError as problem:
        return Verdict.failed(str(problem))


def _parts(value: Mapping[Any, Any]) -> dict[str, float]:
    """The numbers among the entries, the score itself included; texts and the like are notes, and left out."""
    plain = {str(name): _plain(entry) for name, entry in value.items()}
    return {
        name: _as_float(entry, f"the reward function returned a part {name!r} of")
        for name, entry in plain.items()
        if isinstance(entry, numbers.Real)
    }


def _step_rewards(steps: Any) -> tuple[tuple[int, float], ...]:
    said = f"the reward function returned {_STEPS!r} of"
    if not isinstance(steps, list | tuple):
        raise BadValueError(f"{said} {_shown(steps)}; it must be a list of pairs [end, reward]")
    found = []
    for step in steps:
        if not isinstance(step, list | tuple) or len(step) != 2 or not isinstance(_plain(step[0]), int):
            raise BadValueError(f"{said} {_shown(step)}; each must be a pair [characters up to its end, its reward]")
        found.append((int(_plain(step[0])), _as_float(step[1], f"{said} a reward")))
    return tuple(found)


def _as_float(value: Any, said: str) -> float:
    number = _plain(value)
    if not isinstance(number, numbers.Real):
        raise BadValueError(f"{said} {_shown(value)}; it must be a number")
    try:
        result = float(number)
    except OverflowError:
        raise BadValueError(f"{said} an integer too large for a float") from None
    if not math.isfinite(result):
        raise BadValueError(f"{said} {result}; it must be finite")
    return result


def _plain(value: Any) -> Any:
    """The number inside a numpy scalar or a tensor without dimensions; other values as they are."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def _shown(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, str | bytes):
        return f"{type(value).__name__} {value[:_SHOWN]!r}"
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + (f" of shape {tuple(shape)}" if isinstance(shape, tuple) else "")
