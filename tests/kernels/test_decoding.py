"""The kernels of a decoding step against their torch forms."""

import pytest
import torch

from groupwise.rollout import slot_step
from groupwise.rollout.kernels import attention, sampling
from groupwise.rollout.slots import Dimensions, Shape, Slots
from groupwise.types import Sampling

# What a row without an answer attends to is whatever lies in memory, and nobody reads it.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero)")

VOCAB, EOS = 70, 1
PROMPTS = [9, 130, 1]


def seated(device, members, capacity=70, kv_heads=2, width=8, dtype=torch.float32):
    """Three prompts, each answered by `members` rows, and two rows without an answer."""
    rows = 3 * members + 2
    is_eos = (torch.arange(VOCAB) == EOS).to(device)
    slots = Slots(Dimensions(2, kv_heads, width, 32, dtype), Shape(rows, capacity, members, 160), is_eos)
    slots.hold()
    for store in (slots.prompt_keys, slots.prompt_values, slots.own_keys, slots.own_values):
        store.normal_()
    # The third slot holds nothing; rows take turns among the prompts.
    starts, lengths = [20, 29, 0, 159], [*PROMPTS[:2], 0, PROMPTS[2]]
    for slot, prompt in ((0, 0), (1, 1), (3, 2)):
        answering = torch.arange(members) * 3 + prompt
        slots.slot_start[slot], slots.slot_length[slot] = starts[slot], lengths[slot]
        slots.members[slot] = answering.int()
        slots.prompt_length[answering] = lengths[slot]
    slots.live[: 3 * members] = 1
    slots.count[: 3 * members] = torch.randint(1, capacity + 1, (3 * members,)).int().to(device)
    slots.plan_prompts(4, max(PROMPTS))
    return slots


@pytest.mark.parametrize(("shared", "members"), [(1, 1), (2, 3), (3, 12), (4, 20)])
@pytest.mark.parametrize("prompt_splits", [1, 4])
def test_attention_is_that_of_the_torch_form(device, shared, members, prompt_splits):
    slots = seated(device, members)
    slots.prompt_splits, slots.own_splits = prompt_splits, 1 + members % 2
    rows = slots.shape.rows
    query = torch.randn(rows, 2 * shared, 1, 8, device=device)
    key, value = torch.randn(2, rows, 2, 1, 8, device=device)
    stores = (slots.own_keys, slots.own_values)
    before = [store.clone() for store in stores]
    expected = slot_step.attend(slots, 1, query, key, value, 0.3)
    after = [store.clone() for store in stores]
    for store, old in zip(stores, before, strict=True):
        store.copy_(old)
    found = attention.attend(slots, 1, query, key, value, 0.3)
    live = slots.live.bool()
    torch.testing.assert_close(found[live], expected[live], atol=2e-6, rtol=1e-5)
    for store, new in zip(stores, after, strict=True):
        # A row without an answer may write where its next one will begin.
        assert torch.equal(store[:, live], new[:, live])
        assert torch.equal(store[:, ~live, 1:], new[:, ~live, 1:])


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_the_tokens_and_what_follows_are_those_of_the_torch_form(device, temperature):
    logits = torch.randn(8, VOCAB, device=device) * 3
    logits[3, EOS] = 50.0
    found = []
    for form in (sampling.sample, lambda slots, logits: slot_step.draw_live(slots, logits, Sampling(9, temperature))):
        torch.manual_seed(0)
        slots = seated(device, 2, capacity=9)
        slots.numbers.uniform_()
        slots.count.clamp_(max=8)
        slots.temperature.fill_(temperature)
        slots.limit.fill_(9)
        form(slots, logits)
        found.append(slots)
    ours, theirs = found
    for name in ("tokens", "token", "position", "count", "live"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    torch.testing.assert_close(ours.log_probs, theirs.log_probs, atol=1e-5, rtol=0)
    assert ours.live.tolist()[3] == 0
