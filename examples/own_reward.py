"""Reward functions of your own, in either signature; the file is loaded once, from wherever it lies.

    groupwise train reward.function=examples/own_reward.py:close
    groupwise train reward.function=examples/own_reward.py:right_and_short algorithm.adv_estimator=gdpo \
        algorithm.gdpo_reward_keys=[right,short]
    groupwise train reward.function=examples/own_reward.py:terse
"""

from typing import Any


def close(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:  # noqa: ARG001
    """verl's signature, called once per answer: the share of digits that are right, counted from the last."""
    told, truth = solution_str.strip()[::-1], ground_truth[::-1]
    right = sum(mine == theirs for mine, theirs in zip(told, truth, strict=False))
    return right / max(len(told), len(truth))


def right_and_short(solution_str: str, ground_truth: str) -> dict[str, float]:
    """Parameters that are not used may be left out. A dict needs a `score`; its other numbers are named parts, which
    gdpo normalises apart and the rollouts keep."""
    right = float(solution_str.strip() == ground_truth)
    short = 1.0 / max(1, len(solution_str))
    return {"score": right + 0.1 * short, "right": right, "short": short}


def terse(completions: list[str], answer: list[str], **columns: list[Any]) -> list[float | None]:  # noqa: ARG001
    """TRL's signature, called once with all answers of a step. None leaves an answer out of its group."""
    return [
        None if not told else float(told.strip() == truth) + 0.1 * (len(told) <= len(truth))
        for told, truth in zip(completions, answer, strict=True)
    ]
