"""Groups as a padded table of tokens, the batch that verl's estimators are written for, and back."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from groupwise.types import Completion, Group

Decode = Callable[[tuple[int, ...]], str]


class TokenTable:
    """One row for every answer with a score, in order; those that failed have none, as if they were not in the batch.

    batch: tensors [rows, tokens], padded with 0 on the right: `responses`, `response_mask`, `token_level_scores` (the
    score at the last token, or the rewards of the steps at theirs), `step_mask` (the tokens where a step ends),
    `token_level_rewards` (the scores with what a KL penalty takes off every token).
    non_tensor_batch: a value per row: `uid`, `data_source`, and the parts of the reward by their names.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        decode: Decode,
        penalties: Sequence[Tensor] | None = None,
        baselines: Sequence[float | None] | None = None,
    ) -> None:
        """decode: tokens to text. penalties: per answer, added to its tokens' rewards. baselines: per group,
        `reward_baselines`; the answers of a group whose baseline is None take no part."""
        answers = [(place, answer) for place, group in enumerate(groups) for answer in group.completions]
        self._lengths = [len(answer.token_ids) for _, answer in answers]
        self._numbers = [
            number
            for number, (place, answer) in enumerate(answers)
            if answer.score is not None and answer.token_ids and (baselines is None or baselines[place] is not None)
        ]
        rows = [answers[number] for number in self._numbers]
        self.batch: dict[str, Tensor] = {}
        self.meta_info: dict[str, Any] = {}
        self.add("responses", [torch.tensor(answer.token_ids) for _, answer in answers])
        self.add("response_mask", [torch.ones(length, dtype=torch.long) for length in self._lengths])
        scores = torch.zeros(self.batch["response_mask"].shape, dtype=torch.float64)
        self.batch["step_mask"] = torch.zeros_like(self.batch["response_mask"])
        for row, (_, answer) in enumerate(rows):
            for place, reward in rewarded_tokens(answer, decode):
                scores[row, place] += reward
                self.batch["step_mask"][row, place] = 1
        self.batch["token_level_scores"] = self.batch["token_level_rewards"] = scores
        if penalties is not None:
            self.add("token_level_rewards", penalties)
            self.batch["token_level_rewards"] = scores + self.batch["token_level_rewards"]
        if baselines is not None:
            known = [baselines[place] for place, _ in rows]
            self.batch["reward_baselines"] = torch.tensor(known, dtype=torch.float64)
        parts = dict.fromkeys(name for _, answer in rows for name in answer.parts)
        self.non_tensor_batch: dict[str, Any] = {
            **{name: np.array([answer.parts.get(name, np.nan) for _, answer in rows]) for name in parts},
            "uid": np.array([groups[place].prompt.uid for place, _ in rows], dtype=object),
            "data_source": np.array([groups[place].prompt.task.data_source for place, _ in rows], dtype=object),
        }

    @property
    def is_empty(self) -> bool:
        return not self._numbers

    def add(self, name: str, values: Sequence[Tensor]) -> None:
        """A number per token of every answer of the batch."""
        kept = [values[number].cpu() for number in self._numbers]
        self.batch[name] = pad_sequence(kept, batch_first=True) if kept else torch.zeros(0, 0)

    def take(self, name: str) -> list[Tensor]:
        """A column as one tensor per answer of the batch, 0 for those without a row."""
        found = [torch.zeros(length, dtype=torch.float64) for length in self._lengths]
        for row, number in enumerate(self._numbers):
            found[number] = self.batch[name][row, : self._lengths[number]].double()
        return found


def rewarded_tokens(answer: Completion, decode: Decode) -> list[tuple[int, float]]:
    """Where in an answer its rewards stand: the score at the last token, or the reward of every step at the token
    that brings the text to the step's end. A step that ends with the text takes the end-of-sequence token along."""
    assert answer.score is not None
    last, tokens = len(answer.token_ids) - 1, answer.token_ids

    def place_of(end: int) -> int:
        if end >= len(answer.text):
            return last
        return bisect_left(range(last), end, key=lambda place: len(decode(tokens[: place + 1])))

    return [(place_of(end), reward) for end, reward in answer.step_rewards] or [(last, answer.score)]
