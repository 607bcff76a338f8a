"""Who sits where: which answer a row works on, which prompt a slot holds, and where its tokens lie in the pool.

Plain Python on the host; the device learns of it in tables that are sent over when they have changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from groupwise.rollout.slots import Shape


@dataclass
class Slot:
    """A prompt in the pool, the answers to it that have not ended yet, and the rows they have, -1 where free."""

    prompt: int
    start: int
    open_answers: int
    rows: list[int]


class Pool:
    """Stretches of `size` places, handed out from the front."""

    def __init__(self, size: int) -> None:
        self._free = [(0, size)]

    def take(self, length: int) -> int | None:
        """The start of a free stretch, None where there is none of that length."""
        for place, (start, size) in enumerate(self._free):
            if size >= length:
                self._free[place : place + 1] = [(start + length, size - length)] if size > length else []
                return start
        return None

    def give_back(self, start: int, length: int) -> None:
        joined: list[tuple[int, int]] = []
        for first, size in sorted([*self._free, (start, length)]):
            if joined and sum(joined[-1]) == first:
                joined[-1] = joined[-1][0], joined[-1][1] + size
            else:
                joined.append((first, size))
        self._free = joined


class Seats:
    """`n` answers to each prompt, numbered prompt by prompt, on their way through rows and slots."""

    def __init__(self, lengths: Sequence[int], n: int, shape: Shape) -> None:
        self.lengths, self.n, self.shape = lengths, n, shape
        self.answer_of: list[int] = [-1] * shape.rows
        self.slots: list[Slot | None] = [None] * shape.rows
        self._slot_of: dict[int, int] = {}
        self._pool = Pool(shape.pool)
        self._next_prompt = self._next_answer = 0

    @property
    def num_answers(self) -> int:
        return len(self.lengths) * self.n

    def busy_rows(self) -> list[int]:
        return [row for row, answer in enumerate(self.answer_of) if answer >= 0]

    def needs_prompts(self) -> bool:
        """Whether a row stands idle because the prompt of the next answer is not in the pool."""
        return (
            self._next_answer < self.num_answers
            and self._next_answer // self.n not in self._slot_of
            and min(self.answer_of) < 0
        )

    def load_prompts(self) -> list[int]:
        """Give slots and places to as many waiting prompts as fit; their numbers."""
        loaded = []
        for number, slot in enumerate(self.slots):
            if slot is not None:
                continue
            if self._next_prompt == len(self.lengths):
                break
            start = self._pool.take(self.lengths[self._next_prompt])
            if start is None:
                break
            rows = [-1] * min(self.n, self.shape.members)
            self.slots[number] = Slot(self._next_prompt, start, self.n, rows)
            self._slot_of[self._next_prompt] = number
            loaded.append(self._next_prompt)
            self._next_prompt += 1
        return loaded

    def slot_of(self, prompt: int) -> int:
        return self._slot_of[prompt]

    def seat(self) -> list[tuple[int, int]]:
        """Waiting answers whose prompts are loaded, into free rows: (row, answer)."""
        seated = []
        for row, answer in enumerate(self.answer_of):
            number = self._slot_of.get(self._next_answer // self.n)
            if answer >= 0 or number is None:
                continue
            slot = self.slots[number]
            if self._next_answer == self.num_answers or slot is None or -1 not in slot.rows:
                break
            slot.rows[slot.rows.index(-1)] = row
            self.answer_of[row] = self._next_answer
            seated.append((row, self._next_answer))
            self._next_answer += 1
        return seated

    def leave(self, row: int) -> int:
        """The answer in `row` has ended; its number."""
        answer = self.answer_of[row]
        number = self._slot_of[answer // self.n]
        slot = self.slots[number]
        assert slot is not None
        slot.rows[slot.rows.index(row)] = -1
        slot.open_answers -= 1
        if slot.open_answers == 0:
            self._pool.give_back(slot.start, self.lengths[slot.prompt])
            self.slots[number] = None
            del self._slot_of[slot.prompt]
        self.answer_of[row] = -1
        return answer

    def tables(self) -> tuple[list[list[int]], list[int], list[int]]:
        """Members, starts and lengths of every slot, for the device."""
        width = self.shape.members
        nobody = [-1] * width
        members = [nobody if s is None else s.rows + nobody[len(s.rows) :] for s in self.slots]
        starts = [0 if s is None else s.start for s in self.slots]
        lengths = [0 if s is None else self.lengths[s.prompt] for s in self.slots]
        return members, starts, lengths
