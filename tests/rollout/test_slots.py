"""What decoding keeps on the device, and one step over it: against sizes by hand and one row at a time."""

import weakref

import pytest
import torch

from groupwise.rollout.sampling import draw
from groupwise.rollout.slot_step import attend, keep_likely, sample
from groupwise.rollout.slots import Dimensions, Shape, Slots, cache_bytes
from groupwise.types import Sampling
from tiny_models import tiny_policy

DIMENSIONS = Dimensions(layers=2, kv_heads=2, width=8, hidden=32, dtype=torch.float64)
VOCAB, EOS = 40, 1


def is_eos():
    return torch.arange(VOCAB) == EOS


def test_a_prompt_takes_room_once_however_many_rows_answer_it():
    dimensions = Dimensions(layers=28, kv_heads=8, width=128, hidden=1024, dtype=torch.bfloat16)
    # Keys and values x 28 layers x 8 heads x 128 numbers x 2 bytes.
    assert dimensions.token_bytes == 2 * 28 * 8 * 128 * 2 == 114_688
    # 128 answers of 512 tokens to 16 prompts of 4096: 65,536 tokens of prompts and 65,536 of answers, not 589,824.
    shape = Shape(rows=128, capacity=512, members=8, pool=16 * 4096)
    assert cache_bytes(dimensions, shape) == 131_072 * 114_688
    slots = Slots(DIMENSIONS, Shape(rows=16, capacity=4, members=16, pool=100), is_eos())
    slots.hold()
    held = (slots.prompt_keys, slots.prompt_values, slots.own_keys, slots.own_values)
    # (100 + 16 * 4) tokens of 2 layers x 2 heads x 8 numbers of 8 bytes, twice.
    assert sum(tensor.numel() * tensor.itemsize for tensor in held) == 164 * 512
    assert cache_bytes(DIMENSIONS, slots.shape) == 164 * 512


def test_between_batches_keys_and_values_take_no_memory_and_the_rest_stays_where_it_is():
    slots = Slots(DIMENSIONS, Shape(rows=2, capacity=4, members=1, pool=8), is_eos())
    assert not slots.is_held
    slots.hold()
    first, addresses = weakref.ref(slots.own_values), slots.addresses.data_ptr()
    slots.hold()
    assert slots.own_values is first()
    slots.release()
    assert first() is None
    slots.hold()
    stores = (slots.prompt_keys, slots.prompt_values, slots.own_keys, slots.own_values)
    assert slots.addresses.tolist() == [store.data_ptr() for store in stores]
    assert slots.addresses.data_ptr() == addresses


@pytest.mark.parametrize(
    ("family", "kv_heads", "width"),
    [("qwen3", 2, 8), ("llama", 2, 8), ("gpt2", 4, 8)],
)
def test_dimensions_are_the_models_own(family, kv_heads, width):
    found = Dimensions.of(tiny_policy(family))
    assert found == Dimensions(layers=2, kv_heads=kv_heads, width=width, hidden=32, dtype=torch.float32)


def test_shapes_are_joined_and_serve_each_other():
    one, other = Shape(8, 20, 2, 100), Shape(4, 30, 3, 50)
    assert one.joined(other) == other.joined(one) == Shape(8, 30, 3, 100)
    wide = Shape(8, 30, 3, 100)
    assert wide.serves(Shape(16, 30, 3, 200), longest=100)
    # Too few rows, too small a pool, a prompt that never fits, an answer that is too long, too many members.
    for asked, longest in (
        (Shape(17, 30, 3, 200), 9), (Shape(16, 30, 3, 202), 9), (Shape(8, 30, 3, 100), 101), (Shape(8, 31, 3, 100), 9),
        (Shape(8, 30, 4, 100), 9),
    ):  # fmt: skip
        assert not wide.serves(asked, longest)


@pytest.mark.parametrize(
    ("rows", "num_slots", "longest", "grid", "splits"),
    [
        # 8 slots x 2 heads are 16 programs; 1024 of them would be 64 stretches, 1000 tokens have 7 of 128: 4.
        (64, 5, 1000, 8, 4),
        # 64 slots x 2 heads: 8 stretches at most, whatever the length.
        (64, 64, 100_000, 64, 8),
        # More prompts than rows wait; a short prompt is not cut.
        (16, 100, 255, 16, 1),
        (1, 1, 256, 1, 2),
    ],
)
def test_a_step_looks_at_powers_of_two(rows, num_slots, longest, grid, splits):
    slots = Slots(DIMENSIONS, Shape(rows=rows, capacity=4, members=1, pool=8), is_eos())
    slots.plan_prompts(num_slots, longest)
    assert (slots.grid_slots, slots.prompt_splits) == (grid, splits)


def test_an_answer_is_cut_into_stretches_that_keep_the_card_busy():
    # 4 rows x 2 heads are 8 programs: 128 stretches would make 1024; 2048 tokens have 16 of 128.
    assert Slots(DIMENSIONS, Shape(rows=4, capacity=2048, members=1, pool=8), is_eos()).own_splits == 16
    # 1024 rows x 2 heads are enough as they are.
    assert Slots(DIMENSIONS, Shape(rows=1024, capacity=2048, members=1, pool=8), is_eos()).own_splits == 1


def busy_slots():
    """Rows 0, 2 and 5 answer the prompt in slot 1, row 3 the one in slot 0; row 1 never sat, row 4 has left."""
    slots = Slots(DIMENSIONS, Shape(rows=6, capacity=5, members=3, pool=12), is_eos())
    slots.hold()
    for tensor in (slots.prompt_keys, slots.prompt_values, slots.own_keys, slots.own_values):
        tensor.normal_()
    slots.members[0, 1], slots.members[1] = 3, torch.tensor([5, 0, 2])
    slots.slot_start[:2], slots.slot_length[:2] = torch.tensor([9, 2]), torch.tensor([3, 6])
    slots.prompt_length[:] = torch.tensor([6, 0, 6, 3, 11, 6])
    slots.live[:] = torch.tensor([1, 0, 1, 1, 0, 1])
    slots.count[:] = torch.tensor([1, 0, 5, 3, 4, 2])
    return slots


SEATED = {0: 1, 2: 1, 5: 1, 3: 0}


@pytest.mark.parametrize("heads", [2, 4, 8])
def test_a_row_attends_to_its_prompt_and_its_answer_and_to_nothing_else(heads):
    slots = busy_slots()
    query = torch.randn(6, heads, 1, 8, dtype=torch.float64)
    key, value = torch.randn(2, 6, 2, 1, 8, dtype=torch.float64)
    own_keys, own_values = slots.own_keys.clone(), slots.own_values.clone()
    found = attend(slots, 1, query, key, value, 0.3)
    for row, slot in SEATED.items():
        prompt = slice(int(slots.slot_start[slot]), int(slots.slot_start[slot] + slots.slot_length[slot]))
        before = int(slots.count[row]) - 1
        for head in range(heads):
            shared = head * 2 // heads
            keys, values = (
                torch.cat([pool[1, prompt, shared], own[1, row, :before, shared], new[row, shared]])
                for pool, own, new in (
                    (slots.prompt_keys, own_keys, key),
                    (slots.prompt_values, own_values, value),
                )
            )
            weights = (keys @ query[row, head, 0] * 0.3).exp()
            expected = (weights[:, None] * values).sum(0) / weights.sum()
            torch.testing.assert_close(found[row, head, 0], expected, atol=1e-13, rtol=0)
        assert torch.equal(slots.own_keys[1, row, before], key[row, :, 0])
        assert torch.equal(slots.own_values[1, row, before], value[row, :, 0])
        assert torch.equal(slots.own_keys[1, row, :before], own_keys[1, row, :before])
    assert torch.equal(slots.own_keys[0], own_keys[0])
    assert found.isfinite().all()


@pytest.mark.parametrize("sampling", [Sampling(5), Sampling(5, 0.0), Sampling(5, 0.7, top_p=0.6), Sampling(5, top_k=3)])
def test_a_step_adds_a_token_to_live_rows_and_ends_those_that_are_done(sampling):
    slots = busy_slots()
    slots.limit.fill_(5)
    slots.temperature.fill_(sampling.temperature)
    slots.count[2] = 4
    slots.numbers.uniform_()
    logits = torch.randn(6, VOCAB)
    logits[:, EOS] = torch.tensor([-50.0, 0, -50, -50, 0, 50])
    before, tokens_before = slots.count.clone(), slots.tokens.clone()
    sample(slots, logits, sampling)
    for row in range(6):
        count = int(before[row])
        if row in (1, 4):
            assert (int(slots.count[row]), int(slots.live[row])) == (count, 0)
            assert torch.equal(slots.tokens[row], tokens_before[row])
            continue
        token, log_prob = draw(logits[row : row + 1], slots.numbers[row, count : count + 1], sampling)
        assert (int(slots.tokens[row, count]), int(slots.token[row])) == (int(token), int(token))
        assert slots.log_probs[row, count].item() == log_prob.item()
        assert int(slots.count[row]) == count + 1
        assert int(slots.position[row]) == int(slots.prompt_length[row]) + count
    # Row 2 has its fifth token, row 5 the end of the sequence.
    assert slots.live.tolist() == [1, 0, 0, 1, 0, 0]


def test_what_top_k_and_top_p_cut_has_no_chance():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0], [0.0, 0.0, 5.0, 0.0]])
    inf = float("inf")
    assert keep_likely(logits, Sampling(1)) is logits
    assert keep_likely(logits, Sampling(1, 0.0, top_k=1)) is logits
    assert keep_likely(logits, Sampling(1, top_k=2)).tolist() == [[2.0, 1.0, -inf, -inf], [0.0, -inf, 5.0, -inf]]
    # exp(2, 1, 0, -1) are 64, 24, 9 and 3 hundredths; at temperature 0.5 87, 12, 2 and 0.
    assert keep_likely(logits, Sampling(1, top_p=0.8))[0].tolist() == [2.0, 1.0, -inf, -inf]
    assert keep_likely(logits, Sampling(1, 0.5, top_p=0.8))[0].tolist() == [2.0, -inf, -inf, -inf]


def test_cleared_slots_hold_nobody():
    slots = busy_slots()
    slots.clear()
    assert not any((slots.live.any(), slots.count.any(), slots.slot_length.any()))
    assert (slots.members == -1).all()
