"""Groups to micro-batches: every prompt once, then the answers, no padding between them.

    [prompt 1][prompt 2]...[answer 1 to 1][answer 2 to 1]...[answer 1 to 2]...

Positions go on from the prompt's end in every answer, and an answer sees its prompt and itself, so that each token's
state is what it is with the answer alone. An answer's last token predicts nothing and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groupwise.errors import BadValueError
from groupwise.types import Completion, Float, Group, Int
from groupwise.update.attention import SharedPrompts

IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Answer:
    """One answer of a batch: its number there, its prompt's number, and where its tokens start among all tokens."""

    number: int
    prompt: int
    start: int
    prompt_tokens: tuple[int, ...]
    completion: Completion

    @property
    def width(self) -> int:
        """Tokens the model reads: prompt and answer but for its last token, which predicts nothing."""
        return len(self.prompt_tokens) + len(self.completion.token_ids) - 1


@dataclass(frozen=True)
class MicroBatch:
    """What one forward pass computes, and which of its states predict which answer tokens.

    sources: the place of the state that predicts a token. targets: the token. tokens: its number among all tokens
    of the batch. sequence_ids: its answer, 0 to B - 1. answers, prompt_ids: of each answer the number in the batch
    and its prompt's.
    """

    input_ids: Int[Tensor, "rows t"]
    position_ids: Int[Tensor, "rows t"] | None
    attend: Any
    attention_mask: Int[Tensor, "rows t"] | None
    sources: Int[Tensor, "L"]
    targets: Int[Tensor, "L"]
    tokens: Int[Tensor, "L"]
    sequence_ids: Int[Tensor, "L"]
    answers: Int[Tensor, "B"]
    prompt_ids: Int[Tensor, "B"]

    def hidden(self, policy: Any) -> Float[Tensor, "L width"]:
        """The states that predict the answers' tokens."""
        states: Tensor = policy.hidden_states(
            self.input_ids, self.position_ids, attend=self.attend, attention_mask=self.attention_mask
        )
        return states.flatten(0, 1).index_select(0, self.sources)


def number_answers(groups: Sequence[Group]) -> list[Answer]:
    """The answers of a batch in order; an answer that failed, or without a token, is left out."""
    answers: list[Answer] = []
    number = start = 0
    for prompt, group in enumerate(groups):
        for completion in group.completions:
            if completion.failure is None and completion.token_ids:
                answers.append(Answer(number, prompt, start, group.prompt.token_ids, completion))
                start += len(completion.token_ids)
            number += 1
    return answers


@dataclass(frozen=True)
class Form:
    """How a micro-batch lies on the device. build: the attention of answers that share their prompt, from the places of
    prompts and answers, the answers' prompts and the row's length; None: every answer in a row of its own, prompt
    included, padded on the right. length: of the flat row, from the number of tokens in it."""

    build: Callable[[list[range], list[range], list[int], int, torch.device], Any] | None
    length: Callable[[int], int] = int


SHARED_ROWS = Form(SharedPrompts.build)
OWN_ROWS = Form(None)


def pack(answers: Sequence[Answer], budget: int, device: torch.device, form: Form = SHARED_ROWS) -> list[MicroBatch]:
    """Micro-batches of at most `budget` tokens each, about equally full, likewise long answers together.

    A group that does not fit is cut between answers and its prompt repeated.
    """
    shared = form.build is not None
    units = sorted(_units(answers, budget, shared), key=lambda unit: max(answer.width for answer in unit))
    if not shared:
        return [_own_rows(batch, device) for batch in _side_by_side(units, budget)]
    few = _in_turn(units, budget, math.inf)
    # As few as that, and none nearly empty.
    even = _in_turn(units, budget, sum(map(_cost, units)) / max(1, len(few)))
    return [_shared_rows(batch, device, form) for batch in (even if len(even) <= len(few) else few)]


def _in_turn(units: Sequence[list[Answer]], budget: int, share: float) -> list[list[Answer]]:
    """Units one after another into batches of at most `budget` tokens, and of about `share`."""
    batches: list[list[Answer]] = []
    held = passed = 0
    for unit in units:
        cost = _cost(unit)
        if not batches or held + cost > budget or passed + cost / 2 > share * len(batches):
            batches.append([])
            held = 0
        batches[-1].extend(unit)
        held += cost
        passed += cost
    return batches


def _side_by_side(units: Sequence[list[Answer]], budget: int) -> list[list[Answer]]:
    """Answers in rows of their own, shortest first: each row is as wide as the newest."""
    batches: list[list[Answer]] = []
    for unit in units:
        if not batches or (len(batches[-1]) + 1) * _cost(unit) > budget:
            batches.append([])
        batches[-1].extend(unit)
    return batches


def _cost(unit: Sequence[Answer]) -> int:
    """Tokens of a prompt and some of its answers."""
    prompt = len(unit[0].prompt_tokens)
    return prompt + sum(answer.width - prompt for answer in unit)


def _units(answers: Sequence[Answer], budget: int, shared: bool) -> list[list[Answer]]:
    """Answers that stay together: those of a prompt, as many as fit."""
    units: list[list[Answer]] = []
    for answer in answers:
        if answer.width > budget:
            raise BadValueError(
                f"an answer takes {answer.width} tokens with its prompt, more than "
                f"actor.micro_batch_tokens={budget}; raise it"
            )
        joins = shared and units and units[-1][0].prompt == answer.prompt
        if joins and _cost([*units[-1], answer]) <= budget:
            units[-1].append(answer)
        else:
            units.append([answer])
    return units


def _shared_rows(batch: list[Answer], device: torch.device, form: Form) -> MicroBatch:
    """One flat row: every prompt, then every answer but for its last token."""
    ids: list[int] = []
    prompts: list[range] = []
    owners: list[int] = []
    for previous, answer in zip([None, *batch], batch, strict=False):
        if previous is None or previous.prompt != answer.prompt:
            prompts.append(range(len(ids), len(ids) + len(answer.prompt_tokens)))
            ids.extend(answer.prompt_tokens)
        owners.append(len(prompts) - 1)
    places: list[range] = []
    for answer in batch:
        tokens = answer.completion.token_ids[:-1]
        places.append(range(len(ids), len(ids) + len(tokens)))
        ids.extend(tokens)
    seen = [number for number, stretch in enumerate(places) if stretch]
    stretches = prompts, [places[number] for number in seen], [owners[number] for number in seen]
    assert form.build is not None
    length = form.length(len(ids))
    attend = form.build(*stretches, length, device)
    padded = np.zeros(length, dtype=np.int64)
    padded[: len(ids)] = ids
    # An answer's first token is predicted by the last of its prompt, every other by the token before it.
    counts, place = _places_in_answers(batch)
    before = np.repeat([prompts[owner].stop - 1 for owner in owners], counts)
    sources = np.where(place == 0, before, np.repeat([p.start for p in places], counts) + place - 1)
    input_ids, positions, sources_there = _sent(device, padded, _positions(*stretches, length), sources)
    return MicroBatch(input_ids[None], positions[None], attend, None, sources_there, *_targets(batch, device))


# Index arithmetic is numpy's: torch would wake all its threads for every one of these small arrays.
def _positions(prompts: list[range], answers: list[range], prompt_of: list[int], length: int) -> IntArray:
    """0, 1, 2, ... in a prompt, going on from its end in each of its answers; 0 in the padding."""
    positions = np.zeros(length, dtype=np.int64)
    for places in prompts:
        positions[places.start : places.stop] = np.arange(len(places))
    for places, owner in zip(answers, prompt_of, strict=True):
        positions[places.start : places.stop] = np.arange(len(places)) + len(prompts[owner])
    return positions


def _places_in_answers(batch: list[Answer]) -> tuple[IntArray, IntArray]:
    """How many tokens each answer has, and of each of them its place in its answer."""
    counts = np.array([len(answer.completion.token_ids) for answer in batch])
    firsts = np.cumsum(counts) - counts
    return counts, np.arange(counts.sum()) - np.repeat(firsts, counts)


def _own_rows(batch: list[Answer], device: torch.device) -> MicroBatch:
    width = max(answer.width for answer in batch)
    rows = [[*a.prompt_tokens, *a.completion.token_ids[:-1]] for a in batch]
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    columns = torch.arange(width, device=device)
    counts, place = _places_in_answers(batch)
    lasts = [row * width + len(answer.prompt_tokens) - 1 for row, answer in enumerate(batch)]
    (sources,) = _sent(device, np.repeat(lasts, counts) + place)
    mask = (columns < lengths[:, None]).long()
    return MicroBatch(ids, None, None, mask, sources, *_targets(batch, device))


def _targets(batch: list[Answer], device: torch.device) -> tuple[Tensor, ...]:
    """targets, tokens, sequence_ids, answers and prompt_ids of a MicroBatch."""
    counts, place = _places_in_answers(batch)
    targets = [token for answer in batch for token in answer.completion.token_ids]
    return _sent(
        device,
        np.array(targets),
        np.repeat([answer.start for answer in batch], counts) + place,
        np.repeat(np.arange(len(batch)), counts),
        np.array([answer.number for answer in batch]),
        np.array([answer.prompt for answer in batch]),
    )


def _sent(device: torch.device, *columns: IntArray) -> tuple[Tensor, ...]:
    """The columns on the device, by way of one piece of memory."""
    joined = torch.from_numpy(np.concatenate(columns)).to(device)
    return tuple(joined.split_with_sizes([len(column) for column in columns]))
