"""The decoding loop: rows take waiting answers, every row adds a token, finished rows make place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from groupwise.rollout.cache import DecodeCache, PromptCache, Recorder
from groupwise.rollout.plain_layers import PlainLayers
from groupwise.rollout.randomness import uniforms
from groupwise.rollout.sampling import draw
from groupwise.types import Sampling

# Prompt tokens computed at once.
_PREFILL_TOKENS = 8192
# Rows are refilled when this share of them is free, and dropped when no answer waits and this share is done.
_REFILL_SHARE = 1 / 16
_DROP_SHARE = 1 / 4


class Decoder:
    """`n` answers to each prompt, `max_rows` at a time. One use: make it, `run` it.

    Answers are numbered prompt by prompt. `answer[row]` is the one a row works on, `count[row]` the tokens it has.
    A row without an answer works on the number one past the last, whose results nobody reads. layers: the model's, for
    one token per row, where they are plain; otherwise the policy runs them.
    """

    def __init__(
        self,
        policy: Any,
        prompts: list[tuple[int, ...]],
        n: int,
        sampling: Sampling,
        max_rows: int,
        layers: PlainLayers | None = None,
    ) -> None:
        self.layers = layers
        self.policy, self.prompts, self.n, self.sampling = policy, prompts, n, sampling
        self.device = policy.device
        self.num_answers = len(prompts) * n
        self.next_answer = 0
        self.widest = max(len(prompt) for prompt in prompts)
        self.prompt_caches: dict[int, tuple[PromptCache, int]] = {}
        rows = min(max_rows, self.num_answers)

        limit = sampling.max_tokens
        self.is_eos = torch.zeros(policy.vocab_size, dtype=torch.bool, device=self.device)
        self.is_eos[[token for token in policy.eos_ids if token < policy.vocab_size]] = True
        self.tokens = torch.zeros(self.num_answers + 1, limit, dtype=torch.long, device=self.device)
        self.log_probs = torch.zeros(self.num_answers + 1, limit, dtype=torch.float64, device=self.device)
        self.lengths = torch.zeros(self.num_answers + 1, dtype=torch.long, device=self.device)

        self.answer = torch.full((rows,), self.num_answers, device=self.device)
        self.count = torch.zeros(rows, dtype=torch.long, device=self.device)
        self.position = torch.zeros(rows, dtype=torch.long, device=self.device)
        self.numbers = torch.zeros(rows, limit, dtype=torch.float64, device=self.device)
        self.hidden: Tensor = torch.empty(0)
        self.cache: DecodeCache | None = None

    def run(self) -> Iterator[tuple[tuple[int, ...], tuple[float, ...]]]:
        """Tokens and log-probabilities of every answer, in order."""
        free = self._free_rows()
        while self._waiting() or len(free) < len(self.answer):
            if self._waiting() and len(free) >= max(1, _REFILL_SHARE * len(self.answer)):
                self._admit(free)
            elif not self._waiting() and len(free) >= _DROP_SHARE * len(self.answer):
                self._drop(free)
            tokens = self._sample()
            free = self._free_rows()
            if len(free) < len(self.answer):
                self._advance(tokens)
        return self._results()

    def _waiting(self) -> bool:
        return self.next_answer < self.num_answers

    def _free_rows(self) -> Tensor:
        return (self.answer == self.num_answers).nonzero()[:, 0]

    def _admit(self, free: Tensor) -> None:
        """Waiting answers into free rows, their prompts computed where they are not yet."""
        first = self.next_answer
        self.next_answer = min(first + len(free), self.num_answers)
        numbers = torch.arange(first, self.next_answer, device=self.device)
        rows, places = free[: len(numbers)], numbers // self.n
        self._prefill(first // self.n, (self.next_answer - 1) // self.n + 1)
        for start, (prompts, end) in self.prompt_caches.items():
            chosen = ((places >= start) & (places < end)).nonzero()[:, 0]
            if len(chosen):
                self._place(rows[chosen], prompts, places[chosen] - start)
        self.answer[rows] = numbers
        self.count[rows] = 0
        if self.sampling.temperature > 0:
            limit, seed, step = self.sampling.max_tokens, self.sampling.seed, self.sampling.step
            self.numbers[rows] = uniforms(places, numbers % self.n, limit, seed, step)
        complete = self.next_answer // self.n
        self.prompt_caches = {start: held for start, held in self.prompt_caches.items() if held[1] > complete}

    def _place(self, rows: Tensor, prompts: PromptCache, which: Tensor) -> None:
        if self.cache is None:
            total = len(self.answer)
            # Room for late comers to go on a while before the columns have to move.
            spare = self.sampling.max_tokens if total < self.num_answers else 0
            self.cache = DecodeCache(prompts, total, self.widest, self.widest + self.sampling.max_tokens + spare)
            self.hidden = prompts.hidden.new_zeros(total, prompts.hidden.shape[-1])
        self.cache.admit(rows, prompts, which)
        self.hidden[rows] = prompts.hidden[which]
        self.position[rows] = prompts.lengths[which]

    def _prefill(self, start: int, end: int) -> None:
        """Compute prompts `start` to `end`, as far as that has not happened."""
        start = max([start, *(held[1] for held in self.prompt_caches.values())])
        while start < end:
            width, stop = 0, start
            while stop < end:
                width = max(width, len(self.prompts[stop]))
                if stop > start and width * (stop + 1 - start) > _PREFILL_TOKENS:
                    break
                stop += 1
            self.prompt_caches[start] = self._compute(self.prompts[start:stop]), stop
            start = stop

    def _compute(self, prompts: list[tuple[int, ...]]) -> PromptCache:
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        width = max(len(prompt) for prompt in prompts)
        padded = [(self.policy.pad_id,) * (width - len(prompt)) + prompt for prompt in prompts]
        starts = width - lengths
        positions = (torch.arange(width, device=self.device) - starts[:, None]).clamp_min(0)
        recorder = Recorder(starts, width)
        hidden = self.policy.hidden_states(torch.tensor(padded, device=self.device), positions, attend=recorder)
        return PromptCache(recorder.keys, recorder.values, hidden[:, -1], lengths)

    def _sample(self) -> Tensor:
        """One more token for every row; rows that end give up their answer."""
        numbers = self.numbers.gather(1, self.count[:, None])[:, 0]
        tokens, log_probs = draw(self.policy.logits(self.hidden), numbers, self.sampling)
        self.tokens[self.answer, self.count] = tokens
        self.log_probs[self.answer, self.count] = log_probs
        self.count += 1
        self.lengths[self.answer] = self.count
        done = self.is_eos[tokens] | (self.count == self.sampling.max_tokens)
        self.answer.masked_fill_(done, self.num_answers)
        self.count.masked_fill_(done, 0)
        self.position.masked_fill_(done, 0)
        return tokens

    def _advance(self, tokens: Tensor) -> None:
        """Run the model on the sampled tokens: the states that predict the next ones."""
        assert self.cache is not None
        if self.cache.clock == self.cache.columns:
            live = (self.answer != self.num_answers).nonzero()[:, 0]
            self.cache.make_room(live, self.widest)
        if self.layers is not None:
            self.hidden = self.layers(tokens, self.position, self.cache)
        else:
            states = self.policy.hidden_states(tokens[:, None], self.position[:, None], attend=self.cache)
            self.hidden = states[:, 0]
        self.cache.clock += 1
        self.position += 1

    def _drop(self, free: Tensor) -> None:
        assert self.cache is not None
        live = torch.ones_like(self.answer, dtype=torch.bool).index_fill_(0, free, False).nonzero()[:, 0]
        self.cache.keep(live)
        self.answer, self.count, self.position = self.answer[live], self.count[live], self.position[live]
        self.numbers, self.hidden = self.numbers[live], self.hidden[live]

    def _results(self) -> Iterator[tuple[tuple[int, ...], tuple[float, ...]]]:
        columns = zip(self.tokens.tolist(), self.log_probs.tolist(), self.lengths.tolist(), strict=True)
        for number, (tokens, log_probs, length) in enumerate(columns):
            if number < self.num_answers:
                yield tuple(tokens[:length]), tuple(log_probs[:length])
