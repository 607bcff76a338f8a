"""The rewards of the tasks themselves: 1 for a right answer, 0 for a wrong one, by the task's `data_source`."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from groupwise.rewards.extraction import answer_number, last_boxed
from groupwise.rewards.verdicts import Item, Verdict, scored_by

Checker = Callable[[str, Any, Mapping[str, Any]], bool]
"""(response, ground truth, extra_info) -> is it right."""

# The longest expression that is looked at; the built-in countdowns need fewer than 40 characters.
_EXPRESSION = re.compile(r"[0-9+\-*()]{1,100}")
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def exact(response: str, truth: Any, extra_info: Mapping[str, Any]) -> bool:  # noqa: ARG001 - Checker's signature
    """The answer and nothing else, spaces around it apart."""
    return response.strip() == str(truth).strip()


def numeric(response: str, truth: Any, extra_info: Mapping[str, Any]) -> bool:  # noqa: ARG001 - Checker's signature
    r"""The same number, however it is written: boxed, after `####`, or the last one of the text."""
    expected = answer_number(str(truth))
    return expected is not None and answer_number(response) == expected


def matching(response: str, truth: Any, extra_info: Mapping[str, Any]) -> bool:
    r"""Numeric where the truth is a number; otherwise the same text, as a whole or in `\boxed{}`."""
    if answer_number(str(truth)) is not None:
        return numeric(response, truth, extra_info)
    boxed = last_boxed(response)
    return exact(response if boxed is None else boxed, truth, extra_info)


def countdown(response: str, truth: Any, extra_info: Mapping[str, Any]) -> bool:
    """An expression of +, -, * and brackets with each of `extra_info["numbers"]` once and the value of the truth."""
    if not _EXPRESSION.fullmatch(response.strip()):
        return False
    try:
        tree = ast.parse(response.strip(), mode="eval")
    except SyntaxError:
        return False
    numbers: list[int] = []
    value = _value(tree.body, numbers)
    return value is not None and value == int(truth) and sorted(numbers) == sorted(extra_info["numbers"])


def _value(node: ast.expr, numbers: list[int]) -> int | None:
    """The value of an expression, its numbers appended to `numbers`; None where it holds anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        numbers.append(node.value)
        return node.value
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _value(node.left, numbers), _value(node.right, numbers)
    operation = _OPERATIONS.get(type(node.op))
    return None if left is None or right is None or operation is None else operation(left, right)


CHECKERS: dict[str, Checker] = {
    "sums": exact,
    "products": exact,
    "sorting": exact,
    "countdown": countdown,
    "openai/gsm8k": numeric,
}
"""By `data_source`; `matching` judges the others."""


class TaskScorer:
    """Every answer by the checker of its task's data source."""

    def judge(self, items: Sequence[Item]) -> list[Verdict]:
        return [self._judge(item) for item in items]

    def _judge(self, item: Item) -> Verdict:
        task = item.task
        checker = CHECKERS.get(task.data_source, matching)
        return Verdict(float(checker(item.response, task.answer, task.extra_info)))


task_reward = scored_by(TaskScorer())
