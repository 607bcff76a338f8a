"""Are the groups what they should be? Seen before anything trains on them.

A grouping goes wrong in silence: a tiled batch labelled as if it were interleaved, a dropped answer that shifts a
fixed stride, a uid used twice. The advantages that come out look ordinary and point nowhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch

from groupwise.advantages.groups import Groups
from groupwise.advantages.rows import as_scores, sum_rewards
from groupwise.advantages.scores import Flags, Scores, as_numbers, as_row_mask
from groupwise.errors import BadValueError, GroupHealthError, unknown_name

KINDS: dict[str, str] = {
    "singleton": "an answer alone in its group has nobody to be compared with",
    "wrong_size": "the group does not have the expected number of answers",
    "mixed_prompts": "answers of one group belong to different prompts",
    "split_prompt": "one prompt stands under several labels",
    "non_finite": "a score is NaN or infinite, which makes every advantage of its group NaN",
    "duplicate_answers": "answers of one group are identical",
    "all_equal": "all scores of the group are equal, so it teaches nothing",
    "all_failed": "every answer of the group failed",
}

BROKEN: tuple[str, ...] = ("singleton", "wrong_size", "mixed_prompts", "split_prompt", "non_finite", "all_failed")
"""The kinds that mean the grouping or the scores are wrong. The others are ordinary in a healthy run."""

_SHOWN = 8


@dataclass(frozen=True)
class Finding:
    """kind: a key of KINDS. label: the group's. rows: of the batch. detail: what exactly, in a few words."""

    kind: str
    label: Hashable
    rows: tuple[int, ...]
    detail: str


@dataclass(frozen=True)
class GroupHealth:
    """What `check_groups` found. `print(health)` is the report."""

    num_answers: int
    num_groups: int
    num_failed: int
    findings: tuple[Finding, ...] = field(repr=False)

    @property
    def counts(self) -> dict[str, int]:
        """Findings per kind, every kind named."""
        found = Counter(finding.kind for finding in self.findings)
        return {kind: found[kind] for kind in KINDS}

    @property
    def is_sound(self) -> bool:
        """No finding says that the grouping or the scores are wrong."""
        return not any(finding.kind in BROKEN for finding in self.findings)

    def of_kind(self, kind: str) -> tuple[Finding, ...]:
        if kind not in KINDS:
            raise unknown_name("kind of finding", kind, KINDS)
        return tuple(finding for finding in self.findings if finding.kind == kind)

    def __str__(self) -> str:
        failed = f", {self.num_failed} failed" if self.num_failed else ""
        verdict = "nothing to report" if not self.findings else f"{len(self.findings)} findings"
        lines = [f"{self.num_answers} answers in {self.num_groups} groups{failed}: {verdict}"]
        for kind, count in self.counts.items():
            if not count:
                continue
            lines.append(f"  {kind} ({count}): {KINDS[kind]}")
            found = self.of_kind(kind)
            lines += [f"    {f.label!r}, rows {_short(f.rows)}: {f.detail}" for f in found[:_SHOWN]]
            if count > _SHOWN:
                lines.append(f"    ... and {count - _SHOWN} more")
        return "\n".join(lines)


def check_groups(
    index: Groups | Iterable[Any],
    scores: Scores | None = None,
    *,
    prompts: Iterable[Any] | None = None,
    answers: Iterable[Any] | None = None,
    expected_size: int | None = None,
    failed: Flags | None = None,
    strict: bool | Collection[str] = False,
) -> GroupHealth:
    """Look for broken groups; what is not given is not looked at.

    index: one label per answer, or `Groups`. scores: one per answer, or rewards per token, [answers, tokens].
    prompts, answers: anything comparable per answer: text, token lists, a tensor with a row per answer.
    expected_size: answers per prompt (rollout.n); None takes the most common size. failed: answers that take no
    part; they count toward the size of a group but their scores are not looked at. strict: True raises
    GroupHealthError for any finding, a collection of kinds (`BROKEN` is one) for those.
    """
    groups = Groups.of(index)
    refused = _refused_kinds(strict)
    left_out = as_row_mask(
        "failed", [False] * groups.num_rows if failed is None else failed, torch.empty(groups.num_rows)
    )
    rows = [members.tolist() for members in np.split(groups.host_order, np.cumsum(groups.host_sizes))[:-1]]
    findings = list(_size_findings(groups, rows, expected_size))
    if prompts is not None:
        findings += _prompt_findings(groups, rows, _comparable("prompts", prompts, groups.num_rows))
    if answers is not None:
        findings += _duplicate_findings(groups, rows, _comparable("answers", answers, groups.num_rows))
    findings += _score_findings(groups, rows, scores, left_out.tolist())
    health = GroupHealth(groups.num_rows, groups.num_groups, int(left_out.sum()), tuple(findings))
    if any(finding.kind in refused for finding in findings):
        raise GroupHealthError(f"broken groups refused:\n{health}")
    return health


def _refused_kinds(strict: bool | Collection[str]) -> Collection[str]:
    if isinstance(strict, bool):
        return KINDS if strict else ()
    strict = (strict,) if isinstance(strict, str) else strict
    for kind in strict:
        if kind not in KINDS:
            raise unknown_name("kind of finding in strict=", kind, KINDS)
    return strict


def _size_findings(groups: Groups, rows: list[list[int]], expected_size: int | None) -> Iterator[Finding]:
    sizes = [len(members) for members in rows]
    expected = expected_size or (Counter(sizes).most_common(1)[0][0] if sizes else 0)
    for label, members, size in zip(groups.labels, rows, sizes, strict=True):
        if size == 1:
            yield Finding("singleton", label, tuple(members), "size 1")
        if size != expected:
            yield Finding("wrong_size", label, tuple(members), f"size {size}, expected {expected}")


def _prompt_findings(groups: Groups, rows: list[list[int]], prompts: list[Hashable]) -> Iterator[Finding]:
    labels_of: dict[Hashable, dict[Hashable, None]] = defaultdict(dict)
    for label, members in zip(groups.labels, rows, strict=True):
        by_prompt = _rows_by_value(prompts, members)
        if len(by_prompt) > 1:
            detail = f"{len(by_prompt)} prompts, at rows {_short([same[0] for same in by_prompt.values()])}"
            yield Finding("mixed_prompts", label, tuple(members), detail)
        for prompt in by_prompt:
            labels_of[prompt][label] = None
    for prompt, labels in labels_of.items():
        if len(labels) > 1:
            first, *others = labels
            everywhere = tuple(row for row, other in enumerate(prompts) if other == prompt)
            yield Finding("split_prompt", first, everywhere, f"also under {', '.join(map(repr, others[:_SHOWN]))}")


def _duplicate_findings(groups: Groups, rows: list[list[int]], answers: list[Hashable]) -> Iterator[Finding]:
    for label, members in zip(groups.labels, rows, strict=True):
        repeated = [same for same in _rows_by_value(answers, members).values() if len(same) > 1]
        if repeated:
            extra = sum(len(same) - 1 for same in repeated)
            yield Finding("duplicate_answers", label, tuple(chain(*repeated)), f"{extra} of {len(members)} are copies")


def _score_findings(
    groups: Groups, rows: list[list[int]], scores: Scores | None, left_out: list[bool]
) -> Iterator[Finding]:
    values = None if scores is None else _row_scores(scores, groups.num_rows)
    for label, members in zip(groups.labels, rows, strict=True):
        counted = [row for row in members if not left_out[row]]
        if not counted:
            yield Finding("all_failed", label, tuple(members), f"{len(members)} failed")
        elif values is not None:
            bad = tuple(row for row in counted if values[row] != values[row])
            if bad:
                yield Finding("non_finite", label, bad, f"{len(bad)} of {len(counted)} scores")
            elif len(counted) > 1 and len({values[row] for row in counted}) == 1:
                yield Finding("all_equal", label, tuple(counted), f"all {values[counted[0]]:g}")


def _row_scores(scores: Scores, num_rows: int) -> list[float]:
    given = as_numbers(scores)
    if given.ndim not in (1, 2) or len(given) != num_rows:
        raise BadValueError(
            f"scores has shape {tuple(given.shape)}; it must have one row for each of {num_rows} labels"
        )
    values: list[float] = (sum_rewards(given) if given.ndim == 2 else as_scores(given)).tolist()
    return values


def _comparable(name: str, values: Iterable[Any], num_rows: int) -> list[Hashable]:
    """Text as it is; token lists, arrays and tensors as tuples."""
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    if len(listed) != num_rows:
        raise BadValueError(
            f"{name} has {len(listed)} entries for {num_rows} labels; give one per answer, in the same order"
        )
    return [_freeze(value) for value in listed]


def _freeze(value: Any) -> Hashable:
    plain = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(plain, list | tuple):
        return tuple(_freeze(item) for item in plain)
    return tuple(sorted((key, _freeze(item)) for key, item in plain.items())) if isinstance(plain, dict) else plain


def _rows_by_value(values: list[Hashable], rows: list[int]) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for row in rows:
        found[values[row]].append(row)
    return found


def _short(rows: Sequence[int]) -> str:
    shown = ", ".join(map(str, rows[:_SHOWN]))
    return f"{shown}, ... ({len(rows)} in all)" if len(rows) > _SHOWN else shown
