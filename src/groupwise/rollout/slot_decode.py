"""Decoding over slots: prompts computed once and held once, rows refilled as answers end, a step captured in a graph.

    load prompts -> seat answers -> a few steps -> collect what has ended -> ...

The host looks at the device once every few steps, never per token. On a GPU a step is a CUDA graph over compiled
layers; where the model cannot be compiled or captured it runs as written, and one line says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from groupwise.errors import BadValueError, GroupwiseWarning
from groupwise.rollout.randomness import uniforms
from groupwise.rollout.seats import Seats
from groupwise.rollout.slot_step import SlotAttention, attends_fused, sample, samples_fused
from groupwise.rollout.slots import Dimensions, Shape, Slots, cache_bytes
from groupwise.types import Sampling

# Prompt tokens computed at once.
_PREFILL_TOKENS = 16384
# Steps between two looks at which rows have ended.
_STEPS_PER_LOOK = 8

Answers = Iterator[tuple[tuple[int, ...], tuple[float, ...]]]


class SlotDecoder:
    """Keeps its buffers and graphs from call to call; the weights are the policy's own, read where they lie.

    cache_bytes: what keys and values may take, None for no bound.
    """

    def __init__(self, policy: Any, max_rows: int, max_bytes: int | None = None) -> None:
        self._policy, self._max_rows, self._max_bytes = policy, max_rows, max_bytes
        self._dimensions = Dimensions.of(policy)
        is_eos = torch.zeros(policy.vocab_size, dtype=torch.bool)
        is_eos[[token for token in policy.eos_ids if token < policy.vocab_size]] = True
        self._is_eos = is_eos.to(policy.device)
        self._slots: Slots | None = None
        self._steps: dict[tuple[Any, ...], Callable[[], None]] = {}

    def run(self, prompts: Sequence[tuple[int, ...]], n: int, sampling: Sampling) -> Answers:
        """Tokens and log-probabilities of `n` answers to every prompt, in order."""
        lengths = [len(prompt) for prompt in prompts]
        slots = self._room_for(lengths, n, sampling)
        slots.hold()
        slots.clear()
        slots.temperature.fill_(sampling.temperature)
        slots.limit.fill_(sampling.max_tokens)
        slots.plan_prompts(len(prompts), max(lengths))
        try:
            return self._answers(slots, Seats(lengths, n, slots.shape), prompts, sampling)
        finally:
            # A graph of the torch form knows only where keys and values lay when it was captured.
            if attends_fused(slots):
                slots.release()

    def _answers(self, slots: Slots, seats: Seats, prompts: Sequence[tuple[int, ...]], sampling: Sampling) -> Answers:
        step = self._step(slots, sampling)
        started: dict[int, int] = {}
        ended: list[tuple[list[int], Tensor, Tensor, Tensor]] = []
        num_ended = num_steps = 0
        while num_ended < seats.num_answers:
            started |= dict.fromkeys(self._fill(slots, seats, prompts, sampling), num_steps)
            left = max(started[row] for row in seats.busy_rows()) + sampling.max_tokens - num_steps
            for _ in range(min(_STEPS_PER_LOOK, left)):
                step()
                num_steps += 1
            live = slots.live.tolist()
            rows = [row for row in seats.busy_rows() if not live[row]]
            if rows:
                places = torch.tensor(rows, device=self._policy.device)
                answers = [seats.leave(row) for row in rows]
                ended.append((answers, slots.tokens[places], slots.log_probs[places], slots.count[places]))
                num_ended += len(rows)
                self._send_tables(slots, seats)
        return _in_order(ended)

    def _fill(self, slots: Slots, seats: Seats, prompts: Sequence[tuple[int, ...]], sampling: Sampling) -> list[int]:
        """Seat answers, and load prompts for rows that would stay idle, until nothing more fits; the rows."""
        rows: list[int] = []
        while True:
            if seats.needs_prompts():
                self._load(slots, seats, prompts, seats.load_prompts())
            seated = seats.seat()
            if not seated:
                return rows
            self._seat(slots, seats, seated, sampling)
            rows += [row for row, _ in seated]

    def _room_for(self, lengths: Sequence[int], n: int, sampling: Sampling) -> Slots:
        """The slots of the last call where they are large enough, else new ones; their graphs go with them."""
        shape = self._shape(lengths, n, sampling)
        if self._slots is not None:
            held = self._slots.shape
            joined = held.joined(shape)
            if self._max_bytes is None or cache_bytes(self._dimensions, joined) <= self._max_bytes:
                shape = joined
            elif held.serves(shape, max(lengths)):
                shape = held
        if self._slots is None or self._slots.shape != shape:
            self._slots = None
            self._steps.clear()
            self._slots = Slots(self._dimensions, shape, self._is_eos)
        return self._slots

    def _shape(self, lengths: Sequence[int], n: int, sampling: Sampling) -> Shape:
        rows = min(self._max_rows, 1 << (len(lengths) * n - 1).bit_length())
        pool = -(-sum(lengths) // 1024) * 1024
        if self._max_bytes is not None:
            places = self._max_bytes // self._dimensions.token_bytes
            rows, pool = _divided(places, rows, pool, lengths, n, sampling.max_tokens)
        if rows < 1:
            least = cache_bytes(self._dimensions, Shape(1, sampling.max_tokens, 1, max(lengths)))
            raise BadValueError(
                f"rollout.gpu_memory_utilization leaves {self._max_bytes} bytes for keys and values, and one answer "
                f"with its prompt takes {least}; raise it, or lower data.max_response_length"
            )
        return Shape(rows, sampling.max_tokens, min(n, rows), pool)

    def _step(self, slots: Slots, sampling: Sampling) -> Callable[[], None]:
        """A decoding step for this sampling, captured where it can be."""
        is_cut = sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k > 0)
        # The kernel finds the temperature on the device, where it may change; what cuts is part of the step.
        is_fixed = is_cut or not samples_fused(slots)
        cut = (sampling.temperature, sampling.top_p, sampling.top_k) if is_fixed else None
        key = (slots.grid_slots, slots.prompt_splits, cut)
        if key not in self._steps:
            attention = SlotAttention(slots, self._policy.compiles)

            def step() -> None:
                sample(slots, self._policy.logits(slots.hidden), sampling)
                states = self._policy.hidden_states(slots.token[:, None], slots.position[:, None], attend=attention)
                slots.hidden.copy_(states[:, 0])

            self._steps[key] = _captured(step) if self._policy.device.type == "cuda" else step
        return self._steps[key]

    def _load(self, slots: Slots, seats: Seats, prompts: Sequence[tuple[int, ...]], numbers: list[int]) -> None:
        """Compute prompts: their keys and values into the pool, their last states beside the slots."""
        chunk: list[int] = []
        for number in numbers:
            widest = max(len(prompts[other]) for other in (*chunk, number))
            if chunk and widest * (len(chunk) + 1) > _PREFILL_TOKENS:
                self._compute(slots, seats, prompts, chunk)
                chunk = []
            chunk.append(number)
        if chunk:
            self._compute(slots, seats, prompts, chunk)

    def _compute(self, slots: Slots, seats: Seats, prompts: Sequence[tuple[int, ...]], numbers: list[int]) -> None:
        device = self._policy.device
        lengths = [len(prompts[number]) for number in numbers]
        ids = np.full((len(numbers), max(lengths)), self._policy.pad_id)
        for row, number in enumerate(numbers):
            ids[row, : lengths[row]] = prompts[number]
        starts = [slot.start for number in numbers if (slot := seats.slots[seats.slot_of(number)])]
        is_token = np.arange(ids.shape[1]) < np.array(lengths)[:, None]
        targets = (np.array(starts)[:, None] + np.arange(ids.shape[1]))[is_token]
        places = torch.from_numpy(np.stack([np.flatnonzero(is_token), targets])).to(device)
        writer = _PromptWriter(slots, places, self._policy.compiles)
        positions = torch.arange(ids.shape[1], device=device).expand(len(numbers), -1)
        states = self._policy.hidden_states(torch.from_numpy(ids).to(device), positions, attend=writer)
        last = torch.tensor(lengths, device=device) - 1
        held = torch.tensor([seats.slot_of(number) for number in numbers], device=device)
        slots.prompt_hidden[held] = states[torch.arange(len(numbers), device=device), last]

    def _seat(self, slots: Slots, seats: Seats, seated: list[tuple[int, int]], sampling: Sampling) -> None:
        device = self._policy.device
        rows = torch.tensor([row for row, _ in seated], device=device)
        answers = torch.tensor([answer for _, answer in seated], device=device)
        prompts = [answer // seats.n for _, answer in seated]
        places = torch.tensor([seats.slot_of(prompt) for prompt in prompts], device=device)
        slots.hidden[rows] = slots.prompt_hidden[places]
        slots.prompt_length[rows] = torch.tensor([seats.lengths[prompt] for prompt in prompts], device=device)
        slots.count[rows] = 0
        slots.live[rows] = 1
        if sampling.temperature > 0:
            numbers = uniforms(answers // seats.n, answers % seats.n, sampling.max_tokens, sampling.seed, sampling.step)
            slots.numbers[rows, : sampling.max_tokens] = numbers
        self._send_tables(slots, seats)

    def _send_tables(self, slots: Slots, seats: Seats) -> None:
        targets = (slots.members, slots.slot_start, slots.slot_length)
        for target, table in zip(targets, seats.tables(), strict=True):
            target.copy_(torch.tensor(table, dtype=target.dtype))


def _divided(places: int, rows: int, pool: int, lengths: Sequence[int], n: int, max_tokens: int) -> tuple[int, int]:
    """So many of the rows and of the pool as these places hold.

    Half for the prompts, but room for the longest of them, and for one answer beside it. More rows than that where
    there are answers for them, and they leave room for the prompts they are at work on and for one to come.
    """
    longest = max(lengths)
    half = max(longest, min(pool, places // 2, places - max_tokens))
    least = min(rows, (places - half) // max_tokens)
    for more in range(min(rows, len(lengths) * n), least, -1):
        left = places - more * max_tokens
        if left >= longest * (-(-more // n) + 1):
            return more, min(pool, left)
    return least, half


class _PromptWriter:
    """Causal attention over prompts padded on the right, whose keys and values go into the pool."""

    is_dynamic = True

    def __init__(self, slots: Slots, places: Tensor, compiles: bool) -> None:
        self.slots, (self.sources, self.targets) = slots, places
        self.compiles = self.is_opaque = compiles

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        for pool, new in ((self.slots.prompt_keys, key), (self.slots.prompt_values, value)):
            flat = new.transpose(1, 2).flatten(0, 1)
            pool[layer].index_copy_(0, self.targets, flat.index_select(0, self.sources))
        is_grouped = query.shape[1] != key.shape[1]
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=is_grouped)


def _captured(step: Callable[[], None]) -> Callable[[], None]:
    """The step as a CUDA graph. It is tried out first, while no row is live and nothing can change."""
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # A capture takes hold of torch's own random numbers and of the stream; one that breaks may not let go of them.
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    numbers, stream = generator.clone_state(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph):
            step()
    except RuntimeError as error:
        generator.graphsafe_set_state(numbers)
        torch.cuda.set_stream(stream)
        reason = " ".join(str(error).split())[:200]
        warnings.warn(f"decoding is not captured in a CUDA graph and runs as written: {reason}", GroupwiseWarning, 2)
        return step
    return graph.replay


def _in_order(ended: list[tuple[list[int], Tensor, Tensor, Tensor]]) -> Answers:
    """The answers by their numbers."""
    found: dict[int, tuple[list[int], list[float], int]] = {}
    for numbers, tokens, log_probs, counts in ended:
        columns = zip(tokens.tolist(), log_probs.tolist(), counts.tolist(), strict=True)
        found |= dict(zip(numbers, columns, strict=True))
    for number in sorted(found):
        ids, values, count = found[number]
        yield tuple(ids[:count]), tuple(values[:count])
