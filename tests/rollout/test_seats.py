"""Who sits where: whatever ends when, every answer is seated once, and no two prompts share a place."""

import hypothesis.strategies as st
from hypothesis import given

from groupwise.rollout.seats import Pool, Seats
from groupwise.rollout.slots import Shape

SIZE = 30


def first_run(free, length):
    """The lowest place from which `length` places are free."""
    starts = range(len(free) - length + 1)
    return next((start for start in starts if all(free[start : start + length])), None)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12), st.integers(0, 99)), max_size=60))
def test_a_pool_hands_out_the_first_free_stretch_and_joins_what_comes_back(moves):
    pool, free, held = Pool(SIZE), [True] * SIZE, []
    for takes, length, which in moves:
        if takes:
            start = pool.take(length)
            assert start == first_run(free, length)
            if start is not None:
                free[start : start + length] = [False] * length
                held.append((start, length))
        elif held:
            first, size = held.pop(which % len(held))
            pool.give_back(first, size)
            free[first : first + size] = [True] * size
    for start, length in held:
        pool.give_back(start, length)
    assert pool.take(SIZE) == 0
    assert pool.take(1) is None


LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=8)


@given(LENGTHS, st.integers(1, 5), st.integers(1, 7), st.integers(1, 6), st.integers(0, 12), st.data())
def test_every_answer_is_seated_once_and_ends_whatever_ends_when(lengths, n, rows, members, spare, data):
    shape = Shape(rows=rows, capacity=4, members=members, pool=max(lengths) + spare)
    seats = Seats(lengths, n, shape)
    loaded, seated, ended = [], [], []
    while len(ended) < len(lengths) * n:
        while True:
            if seats.needs_prompts():
                loaded += seats.load_prompts()
            newly = seats.seat()
            if not newly:
                break
            seated += [answer for _, answer in newly]
        check_tables(seats, lengths, n)
        check_nobody_waits_in_vain(seats, loaded, seated, lengths, n)
        busy = seats.busy_rows()
        ended += [seats.leave(row) for row in data.draw(st.sets(st.sampled_from(busy), min_size=1))]
    assert loaded == list(range(len(lengths)))
    assert seated == list(range(len(lengths) * n)) == sorted(ended)
    assert seats.busy_rows() == []
    assert seats.tables() == ([[-1] * members] * rows, [0] * rows, [0] * rows)
    assert seats._pool.take(shape.pool) == 0


def check_tables(seats, lengths, n):
    """What the device learns: every busy row under its own prompt, and prompts on places of their own."""
    tables = seats.tables()
    used = []
    rows = []
    for number, (members, start, length) in enumerate(zip(*tables, strict=True)):
        slot = seats.slots[number]
        present = [row for row in members if row >= 0]
        rows += present
        if slot is None:
            assert (present, start, length) == ([], 0, 0)
            continue
        assert length == lengths[slot.prompt]
        assert seats.slot_of(slot.prompt) == number
        assert {seats.answer_of[row] // n for row in present} <= {slot.prompt}
        used += range(start, start + length)
    assert len(used) == len(set(used))
    assert all(0 <= place < seats.shape.pool for place in used)
    assert sorted(rows) == seats.busy_rows()


def check_nobody_waits_in_vain(seats, loaded, seated, lengths, n):
    """A row stands idle only for want of answers, of a free stretch for the next prompt, or of a member's place."""
    assert seats.busy_rows()
    if min(seats.answer_of) >= 0 or len(seated) == len(lengths) * n:
        return
    prompt = len(seated) // n
    if prompt in loaded:
        assert -1 not in seats.slots[seats.slot_of(prompt)].rows
        return
    free = [True] * seats.shape.pool
    for slot in seats.slots:
        if slot is not None:
            free[slot.start : slot.start + lengths[slot.prompt]] = [False] * lengths[slot.prompt]
    assert first_run(free, lengths[prompt]) is None


def test_prompts_wait_for_one_another_where_the_pool_holds_one():
    seats = Seats([5, 4], 2, Shape(rows=4, capacity=8, members=2, pool=6))
    assert seats.needs_prompts()
    assert seats.load_prompts() == [0]
    assert seats.seat() == [(0, 0), (1, 1)]
    assert seats.tables() == ([[0, 1], [-1, -1], [-1, -1], [-1, -1]], [0, 0, 0, 0], [5, 0, 0, 0])
    # Two rows are idle, the second prompt has no place.
    assert seats.needs_prompts()
    assert seats.load_prompts() == []
    assert seats.seat() == []
    assert [seats.leave(1), seats.load_prompts()] == [1, []]
    assert [seats.leave(0), seats.load_prompts()] == [0, [1]]
    assert seats.seat() == [(0, 2), (1, 3)]
    assert not seats.needs_prompts()


def test_a_prompt_stays_until_its_last_answer_and_a_free_row_takes_the_next_answer():
    seats = Seats([3], 4, Shape(rows=2, capacity=8, members=2, pool=3))
    seats.load_prompts()
    assert seats.seat() == [(0, 0), (1, 1)]
    assert seats.leave(1) == 1
    assert seats.seat() == [(1, 2)]
    assert seats.leave(0) == 0
    assert seats.seat() == [(0, 3)]
    assert (seats.leave(0), seats.slots[0].open_answers) == (3, 1)
    assert (seats.leave(1), seats.slots[0]) == (2, None)
