"""Attention of packed groups in parts, on a CPU: what the GPU's kernels do there, held to plain passes."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from gpu_path import ADVANTAGES, ENTROPY, plain_gradient, plain_log_probs, relative_gap, sized_policy
from gpu_path import packed_gradient as gradient_under_default_form
from gpu_path import packed_log_probs as log_probs_in_form
from groupwise.update import long_stretches, step
from groupwise.update.long_stretches import LongCall, Stretch, grain
from groupwise.update.merge import merge
from groupwise.update.pack import Form
from groupwise.update.split import SplitGroups
from groupwise.update.stretches import Call, Spans
from tiny_models import random_groups

CPU = torch.device("cpu")
EVEN = {"compiles": False, "checkpoints": False}
# Some lengths are multiples of the grain of 8 and some are not; one answer has no place in the row. Short prompts stand
# between the long ones, and one long prompt has no answer in the row.
GROUPS = random_groups([32, 45, 70, 5, 6, 90, 34], [[9, 1, 17], [8, 8], [33, 20, 2, 2, 2], [34], [5, 40], [42], [1]])


def padded(num_tokens):
    return -(-num_tokens // 64) * 64


def form(has_cudnn):
    return Form(partial(SplitGroups.build, **EVEN, has_cudnn=has_cudnn), padded)


@pytest.fixture
def calls(monkeypatch):
    """cuDNN's part is played by plain softmax; keys count as long from 32 on, and lengths have a grain of 8."""
    seen = []

    def attend(query, key, value, is_causal, scale):
        seen.append((len(query), len(key)))
        return one(query, key, is_causal)._plain(query, key, value, scale)

    def attend_backward(states, outcome, is_causal, scale):
        return one(states[0], states[1], is_causal)._plain_backward(*states, outcome, scale)

    def one(query, key, is_causal):
        spans = Spans.of([len(query)], CPU), Spans.of([len(key)], CPU)
        return Call(slice(0, len(query)), slice(0, len(key)), *spans, is_causal)

    monkeypatch.setattr(long_stretches, "_attend", attend)
    monkeypatch.setattr(long_stretches, "_attend_backward", attend_backward)
    monkeypatch.setattr(long_stretches, "LONG", 32)
    monkeypatch.setattr(long_stretches, "_LEAST_GRAIN", 8)
    return seen


@pytest.mark.parametrize("has_cudnn", [False, True])
def test_log_probs_are_each_answers_alone(calls, has_cudnn):
    policy = sized_policy(dtype=torch.float64, device="cpu")
    expected = plain_log_probs(policy, GROUPS)
    for budget in (10**6, 150):
        assert (log_probs_in_form(policy, GROUPS, form(has_cudnn), budget) - expected).abs().max() < 1e-12
    assert bool(calls) is has_cudnn


@pytest.mark.parametrize("has_cudnn", [False, True])
def test_gradients_are_those_of_plain_passes(calls, monkeypatch, has_cudnn):
    monkeypatch.setattr(step, "choose_form", lambda *_: form(has_cudnn))
    policy, advantages = sized_policy(dtype=torch.float64, device="cpu"), [*ADVANTAGES, -0.3, 0.6, 1.1, 0.2][:15]
    _, expected = plain_gradient(policy, ENTROPY, GROUPS, advantages)
    for budget in (10**6, 150):
        config = replace(ENTROPY, micro_batch_tokens=budget)
        _, found = gradient_under_default_form(policy, config, GROUPS, advantages)
        assert relative_gap(found, expected) < 1e-12
    assert bool(calls) is has_cudnn


def test_long_stretches_are_given_lengths_of_a_coarse_grain(calls):
    policy = sized_policy(dtype=torch.float64, device="cpu")
    log_probs_in_form(policy, GROUPS, form(True))
    # Units are packed by the longest answer with its prompt: 34 + 1, 5 + 34, 6 + 40, 32 + 17, 45 + 8, 70 + 33, 90 + 42.
    # Long prompts on themselves, lengthened; then their answers' places, 8 + 16, 7 + 7, 32 + 19 + 3 and 41, on as many
    # keys as are multiples of 8. Both layers alike.
    on_themselves = [(40, 40), (32, 32), (48, 48), (72, 72), (96, 96)]
    on_prompts = [(24, 32), (16, 40), (56, 64), (48, 88)]
    assert calls == 2 * [*on_themselves, *on_prompts]


def test_short_stretches_between_long_ones_are_one_call_each_run():
    lengths = [2000, 10, 20, 1500, 30]
    spans, places = Spans.of(lengths, CPU), slice(0, 3560)
    call = LongCall.of_call(Call(places, places, spans, spans, is_causal=True), 4096)
    assert [type(piece) for piece in call.pieces] == [Stretch, Call, Stretch, Call]
    assert [piece.queries for piece in call.pieces] == [
        slice(0, 2000), slice(2000, 2030), slice(2030, 3530), slice(3530, 3560)
    ]  # fmt: skip
    assert call.pieces[1].key_spans.bounds == [0, 10, 30]


def test_a_call_of_short_stretches_or_without_room_stays_as_it_is():
    spans = Spans.of([1023, 1030], CPU)
    places = slice(0, 2053)
    causal = Call(places, places, spans, spans, is_causal=True)
    # 1030 are lengthened to 1152, which ends at 2175.
    assert type(LongCall.of_call(causal, 2174)) is Call
    assert type(LongCall.of_call(causal, 2175)) is LongCall


def test_queries_at_the_end_of_the_row_are_lengthened_to_the_left():
    queries, keys = Spans.of([1000], CPU), Spans.of([1100], CPU)
    call = LongCall.of_call(Call(slice(1100, 2100), slice(0, 1100), queries, keys, is_causal=False), 2120)
    (stretch,) = call.pieces
    # 1000 queries become 1024 and would end at 2124; 1100 keys are 1024 and a rest of 76.
    assert (stretch.window, stretch.own, stretch.queries) == (slice(1096, 2120), slice(4, 1004), slice(1100, 2100))
    assert (stretch.given, stretch.keys) == (slice(0, 1024), slice(0, 1100))
    assert (stretch.rest.queries, stretch.rest.keys) == (slice(1100, 2100), slice(1024, 1100))
    assert (stretch.rest.query_spans.bounds, stretch.rest.key_spans.bounds) == ([0, 1000], [0, 76])


def test_the_grain_is_between_a_sixteenth_and_an_eighth_of_long_lengths():
    assert [grain(n) for n in (1, 1024, 2047, 2048, 4095, 4096)] == [128, 128, 128, 256, 256, 512]


def test_two_parts_are_merged_by_hand():
    # Weights e^0 : e^log(3) are 1 : 3, so 8 and 4 become 5, and the sum is 1 + 3.
    parts = torch.full((1, 1, 2), 8.0), torch.full((1, 1, 2), 4.0)
    attended, sums = torch.empty(1, 1, 2), torch.empty(1, 1)
    merge(parts, (torch.zeros(1, 1), torch.full((1, 1), 3.0).log()), attended, sums)
    assert attended.tolist() == [[[pytest.approx(5.0), pytest.approx(5.0)]]]
    assert sums.exp().item() == pytest.approx(4.0)
