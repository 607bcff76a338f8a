"""The scores path: one score per answer to one advantage per answer, without a token in sight."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groupwise.advantages import baselines, best_of_k, outcome
from groupwise.advantages.groups import Groups
from groupwise.advantages.registry import ADV_ESTIMATOR_REGISTRY, name_of
from groupwise.advantages.rows import as_scores
from groupwise.errors import BadValueError, unknown_name
from groupwise.types import Bool, Float64

OutcomeEquation = Callable[..., Tensor]
Scores = Tensor | np.ndarray[Any, np.dtype[Any]] | Sequence[float]
Flags = Tensor | np.ndarray[Any, np.dtype[Any]] | Sequence[bool]

OUTCOME_ESTIMATORS: dict[str, OutcomeEquation] = {
    "grpo": outcome.grpo,
    "grpo_vectorized": outcome.grpo,
    "dr_grpo": outcome.dr_grpo,
    "maxrl": outcome.maxrl,
    "rloo": outcome.rloo,
    "rloo_vectorized": outcome.rloo,
    "opo": outcome.opo,
    "gpg": outcome.gpg,
    "gdpo": outcome.gdpo,
    "reinforce_plus_plus_baseline": outcome.reinforce_plus_plus_baseline,
    "grpo_passk": best_of_k.grpo_passk,
    "pass_at_k": best_of_k.pass_at_k,
    "shrinkage": baselines.shrinkage,
    "running_baseline": baselines.running_baseline,
}


@torch.no_grad()
def advantages_from_scores(
    scores: Scores,
    index: Groups | Iterable[Any],
    estimator: str | Enum = "grpo",
    *,
    failed: Flags | None = None,
    **options: Any,
) -> Tensor:
    """One advantage per answer, on the device of `scores`.

        advantages_from_scores([1, 0, 0, 1], ["a", "a", "b", "b"])
        advantages_from_scores(scores, uids, "pass_at_k", k=4)
        advantages_from_scores(scores, uids, convention="trl", failed=timed_out)

    `index` holds one label per answer, or is a `Groups` made beforehand. `failed` marks answers that take no
    part and get 0. `options` are the keyword arguments of the estimator's equation: `epsilon`,
    `norm_adv_by_std_in_grpo` and `convention` for grpo, `lengths` where tokens weigh, `k`, `parts`, `weights`,
    `baseline`. A NaN or infinite score makes its group NaN. The result has the dtype of `scores`, or torch's
    default where that is not floating.
    """
    given = as_numbers(scores)
    if given.ndim != 1 or given.dtype.is_complex:
        raise BadValueError(
            f"scores has shape {tuple(given.shape)} and dtype {given.dtype}; it must hold one real number per answer. "
            "For rewards per token use the estimator's compute_* function"
        )
    equation = find_equation(estimator)
    options = {name: _as_rows(name, value, given) for name, value in options.items()}
    check_options(name_of(estimator), equation, options)
    groups = Groups.of(index, len(given), given.device)
    left_out = None if failed is None else as_row_mask("failed", failed, given)
    advantages = outcome_advantages(equation, as_scores(given), groups, left_out, **options)
    return advantages.to(given.dtype if given.dtype.is_floating_point else torch.get_default_dtype())


def find_equation(estimator: str | Enum) -> OutcomeEquation:
    name = name_of(estimator)
    if name in OUTCOME_ESTIMATORS:
        return OUTCOME_ESTIMATORS[name]
    if name in ADV_ESTIMATOR_REGISTRY:
        raise BadValueError(
            f"estimator {name!r} judges tokens, not answers, so it has no scores path; "
            f"use compute_advantage or get_adv_estimator_fn({name!r})"
        )
    raise unknown_name("outcome estimator", name, OUTCOME_ESTIMATORS)


def check_options(name: str, equation: OutcomeEquation, options: dict[str, Any]) -> None:
    """Refuse an option the equation does not have, and ask for one it needs."""
    known = {p.name: p for p in inspect.signature(equation).parameters.values() if p.kind is p.KEYWORD_ONLY}
    for option in options:
        if option not in known:
            raise unknown_name(f"option of estimator {name!r}:", option, known)
    for option, parameter in known.items():
        if parameter.default is parameter.empty and option not in options:
            raise BadValueError(f"estimator {name!r} needs the option {option}=, see its equation's docstring")


def outcome_advantages(
    equation: OutcomeEquation,
    scores: Float64[Tensor, "B"],
    groups: Groups,
    left_out: Bool[Tensor, "B"] | None,
    **options: Any,
) -> Float64[Tensor, "B"]:
    """The equation on the answers that count; 0 for the others, as if their rows were not in the batch."""
    if left_out is None or not left_out.any():
        return equation(scores, groups, **options)
    kept = ~left_out
    advantages = torch.zeros_like(scores)
    options = {name: _keep(value, kept) for name, value in options.items()}
    advantages[kept] = equation(scores[kept], groups.take(kept), **options)
    return advantages


def as_row_mask(name: str, rows: Flags, like: Tensor) -> Bool[Tensor, "B"]:
    # By way of a bool array: verl's non-tensor fields are arrays of objects, which torch does not read.
    flags = rows if isinstance(rows, Tensor) else torch.from_numpy(np.array(rows, dtype=bool))
    _check_length(name, flags, like)
    return flags.to(like.device).bool()


def as_numbers(scores: Scores) -> Tensor:
    """A tensor of the dtype it came in. Arrays of objects, verl's non-tensor fields, are read as float64."""
    objects = isinstance(scores, np.ndarray) and scores.dtype == object
    return torch.as_tensor(np.asarray(scores, np.float64) if objects else scores)


def exactly(values: Any, like: Tensor) -> Tensor:
    """Numbers beside `like`: a tensor in its own dtype, anything else in float64, as Python's floats are."""
    return (values if isinstance(values, Tensor) else torch.from_numpy(np.array(values, np.float64))).to(like.device)


def _as_rows(name: str, value: Any, like: Tensor) -> Any:
    """Per-answer options as tensors beside the scores; all others as they are."""
    if name == "lengths" and value is not None:
        return _check_length(name, exactly(value, like), like)
    if name == "parts" and value is not None:
        return [as_scores(_check_length("a reward part", exactly(part, like), like)) for part in value]
    if name == "weights" and value is not None:
        return [float(weight) for weight in value]
    return value


def _check_length(name: str, rows: Tensor, like: Tensor) -> Tensor:
    if rows.shape != like.shape[:1]:
        raise BadValueError(
            f"{name} has shape {tuple(rows.shape)}; it must hold one value for each of {len(like)} answers"
        )
    return rows


def _keep(value: Any, kept: Bool[Tensor, "B"]) -> Any:
    """The rows that count of what is given per answer."""
    if isinstance(value, Tensor) and value.shape[:1] == kept.shape:
        return value[kept]
    if isinstance(value, list):
        return [_keep(item, kept) for item in value]
    return value
