"""Decoding over slots in its torch form, on the CPU: the row decoder's answers, whatever the room."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from gpu_path import answers_of, num_differing, plain_log_probs, slot_engine
from groupwise.errors import BadValueError, GroupwiseWarning
from groupwise.rollout import EmbeddedEngine, slot_decode
from groupwise.rollout.slots import cache_bytes
from groupwise.types import Sampling
from tiny_models import EOS, random_prompts, tiny_policy

FAMILIES = ["qwen3", "llama", "gpt2"]
LENGTHS = [3, 7, 1, 9, 4, 4, 2, 12]
# Keys and values of 2 layers x 2 heads x 8 numbers x 4 bytes.
TOKEN_BYTES = 256
SAMPLINGS = {
    "plain": Sampling(20, seed=3, step=7),
    "cut": Sampling(20, 0.8, top_p=0.7, top_k=9, seed=3),
    "greedy": Sampling(20, 0.0),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_answers_are_those_of_the_row_decoder(family, sampling):
    policy, prompts = tiny_policy(family, torch.float64), random_prompts(LENGTHS)
    expected = EmbeddedEngine(policy, 512).generate(prompts, 5, sampling)
    for rows in (1, 3, 39):
        found = slot_engine(policy, rows).generate(prompts, 5, sampling)
        assert num_differing(found, expected) == 0
        for ours, theirs in zip(answers_of(found), answers_of(expected), strict=True):
            assert ours.log_probs == pytest.approx(theirs.log_probs, abs=1e-10)
            assert ours.finish_reason == theirs.finish_reason
    ends = [answer.token_ids[-1] == EOS for answer in answers_of(expected)]
    assert sampling.temperature == 0 or (any(ends) and not all(ends))


@pytest.mark.parametrize("temperature", [0.6, 1.4])
def test_log_probs_in_float32_are_those_of_a_plain_pass(temperature):
    policy = tiny_policy(initializer_range=0.1)
    groups = slot_engine(policy, 7).generate(random_prompts(LENGTHS), 3, Sampling(20, temperature=temperature))
    sampled = torch.tensor([value for answer in answers_of(groups) for value in answer.log_probs])
    assert (sampled - plain_log_probs(policy, groups, temperature)).abs().max() < 1e-5


def test_prompts_wait_for_a_pool_that_holds_two_of_them():
    policy, prompts, sampling = tiny_policy(dtype=torch.float64), random_prompts([30, 40, 25, 38, 12, 40]), Sampling(10)
    engine = slot_engine(policy, 64, max_bytes=80 * 2 * TOKEN_BYTES)
    found = engine.generate(prompts, 5, sampling)
    assert num_differing(found, EmbeddedEngine(policy, 64).generate(prompts, 5, sampling)) == 0
    # Half of 80 tokens for prompts, 40 for four answers of ten.
    assert (engine._slot_decoder._slots.shape.pool, engine._slot_decoder._slots.shape.rows) == (40, 4)


def num_steps(engine, monkeypatch, *request):
    """The answers, and how many decoding steps they took."""
    steps = []
    plain = slot_decode.SlotDecoder._step

    def counted(self, slots, sampling):
        step = plain(self, slots, sampling)
        return lambda: steps.append(step())

    monkeypatch.setattr(slot_decode.SlotDecoder, "_step", counted)
    groups = engine.generate(*request)
    monkeypatch.undo()
    return groups, len(steps)


def test_rows_are_refilled_as_answers_end(monkeypatch):
    groups, steps = num_steps(slot_engine(tiny_policy(), 8), monkeypatch, random_prompts([4] * 12), 4, Sampling(64))
    lengths = [len(answer.token_ids) for answer in answers_of(groups)]
    # Batches of eight would run until their longest answer ends.
    in_batches = sum(max(lengths[start : start + 8]) for start in range(0, 48, 8))
    # A row learns of an end after eight steps at most, so that an answer costs its row seven steps more at most; and
    # the last rows run out one after another.
    assert sum(lengths) / 8 <= steps <= sum(length + 7 for length in lengths) / 8 + max(lengths)
    assert steps < 0.8 * in_batches


def test_no_step_runs_past_the_limit(monkeypatch):
    for limit in (1, 3, 8, 9):
        _, steps = num_steps(slot_engine(tiny_policy(), 64), monkeypatch, random_prompts([4] * 9), 4, Sampling(limit))
        assert steps == limit


def test_each_prompt_is_computed_once(monkeypatch):
    policy = tiny_policy()
    seen = []
    plain = policy.hidden_states

    def counted(input_ids, position_ids, *, attend):
        if input_ids.shape[1] > 1:
            seen.extend(tuple(row[row != 0].tolist()) for row in input_ids)
        return plain(input_ids, position_ids, attend=attend)

    monkeypatch.setattr(policy, "hidden_states", counted)
    monkeypatch.setattr(slot_decode, "_PREFILL_TOKENS", 12)
    prompts = random_prompts([5, 3, 9, 4, 13])
    slot_engine(policy, 5).generate(prompts, 6, Sampling(8))
    assert sorted(seen) == sorted(prompt.token_ids for prompt in prompts)


def test_prompts_are_computed_no_more_than_so_many_tokens_at_a_time(monkeypatch):
    policy, shapes = tiny_policy(), []
    plain = policy.hidden_states

    def watched(input_ids, position_ids, *, attend):
        shapes.append(tuple(input_ids.shape))
        return plain(input_ids, position_ids, attend=attend)

    engine = slot_engine(policy, 64)
    monkeypatch.setattr(policy, "hidden_states", watched)
    monkeypatch.setattr(slot_decode, "_PREFILL_TOKENS", 12)
    engine.generate(random_prompts([5, 3, 9, 4, 13]), 1, Sampling(1))
    # 2 x 5 fit; 9 beside them would be 3 x 9. 9 and 4 would be 18, 13 is too long and goes alone.
    assert shapes[:4] == [(2, 5), (1, 9), (1, 4), (1, 13)]


def test_one_call_follows_another_with_other_settings_in_the_same_slots():
    policy, prompts = tiny_policy(dtype=torch.float64), random_prompts(LENGTHS)
    engine = slot_engine(policy, 16)
    slots = []
    for sampling in (*SAMPLINGS.values(), Sampling(20, 0.3), Sampling(7), SAMPLINGS["plain"]):
        found = engine.generate(prompts, 5, sampling)
        assert num_differing(found, EmbeddedEngine(policy, 16).generate(prompts, 5, sampling)) == 0
        slots.append(engine._slot_decoder._slots)
    assert all(held is slots[0] for held in slots)
    for lengths, n in (([2], 3), ([9] * 30, 16), ([3, 3], 1)):
        prompts = random_prompts(lengths)
        found = engine.generate(prompts, n, Sampling(9))
        assert num_differing(found, EmbeddedEngine(policy, 16).generate(prompts, n, Sampling(9))) == 0


def test_no_call_takes_more_than_the_bound_whatever_came_before():
    policy = tiny_policy()
    bound = 4096 * TOKEN_BYTES
    engine = slot_engine(policy, 512, max_bytes=bound)
    decoder, shapes = engine._slot_decoder, []
    # Few prompt tokens leave room for many rows, many for few; both at once would be too much.
    for lengths, n in (([40] * 50, 4), ([3], 300), ([40] * 50, 4), ([3], 300)):
        engine.generate(random_prompts(lengths), n, Sampling(10))
        shapes.append(decoder._slots.shape)
        assert cache_bytes(decoder._dimensions, shapes[-1]) <= bound
    # 2048 tokens for prompts and 204 rows of ten; 300 answers to one prompt need other tables, and 307 rows beside
    # 1024 tokens; those serve the many prompts as well, half of them at a time.
    assert [(shape.rows, shape.pool) for shape in shapes[:2]] == [(204, 2048), (307, 1024)]
    assert shapes[1] == shapes[2] == shapes[3]


def test_room_that_few_long_prompts_leave_goes_to_rows():
    # 880 places: prompts of 40 tokens, four answers of 40 tokens to each. 16 rows are at work on 4 prompts, and with
    # one to come that is 640 + 200; 17 would take 680 + 240. Half of the places for prompts would leave 11 rows.
    policy, prompts, sampling = tiny_policy(), random_prompts([40] * 8), Sampling(40)
    engine = slot_engine(policy, 64, max_bytes=880 * TOKEN_BYTES)
    found = engine.generate(prompts, 4, sampling)
    assert (engine._slot_decoder._slots.shape.rows, engine._slot_decoder._slots.shape.pool) == (16, 240)
    assert num_differing(found, EmbeddedEngine(policy, 64).generate(prompts, 4, sampling)) <= 1


def test_an_answer_that_fits_beside_its_prompt_is_sampled_and_one_that_does_not_is_refused():
    policy, prompts, sampling = tiny_policy(), random_prompts([10, 10]), Sampling(36)
    # 46 tokens of 256 bytes.
    found = slot_engine(policy, 64, max_bytes=46 * TOKEN_BYTES).generate(prompts, 2, sampling)
    assert num_differing(found, EmbeddedEngine(policy, 64).generate(prompts, 2, sampling)) <= 1
    with pytest.raises(BadValueError, match=r"leaves 11775 bytes .* one answer with its prompt takes 11776; raise it"):
        slot_engine(policy, 64, max_bytes=46 * TOKEN_BYTES - 1).generate(prompts, 2, sampling)


def test_new_weights_are_read_where_the_old_ones_lay():
    policy, other = tiny_policy(seed=0), tiny_policy(seed=1)
    places = {name: parameter.data_ptr() for name, parameter in policy.parameters()}
    greedy, prompts = Sampling(10, 0.0), random_prompts(LENGTHS)
    engine = slot_engine(policy, 8)
    before = engine.generate(prompts, 1, greedy)
    engine.load_weights({name: parameter.detach() for name, parameter in other.parameters()})
    after = engine.generate(prompts, 1, greedy)
    assert after == slot_engine(other, 8).generate(prompts, 1, greedy)
    assert after != before
    assert {name: parameter.data_ptr() for name, parameter in policy.parameters()} == places


class FakeGraph:
    """A CUDA graph that records what it would replay."""

    def __init__(self):
        self.replayed = 0

    def replay(self):
        self.replayed += 1


class FakeGenerator:
    """torch's random numbers on a GPU, which a capture takes hold of."""

    def __init__(self):
        self.is_held = False

    def clone_state(self):
        return self.is_held

    def graphsafe_set_state(self, is_held):
        self.is_held = is_held


@pytest.fixture
def fake_cuda(monkeypatch):
    class Stream:
        def wait_stream(self, other):
            pass

    cuda = {"Stream": Stream, "current_stream": Stream, "stream": nullcontext, "CUDAGraph": FakeGraph}
    cuda |= {"default_generators": [FakeGenerator()], "current_device": lambda: 0, "set_stream": lambda _: None}
    for name, stand_in in cuda.items():
        monkeypatch.setattr(torch.cuda, name, stand_in, raising=False)
    return monkeypatch


def test_a_step_is_tried_twice_captured_once_and_then_replayed(fake_cuda):
    fake_cuda.setattr(torch.cuda, "graph", lambda graph: nullcontext())
    runs = []
    step = slot_decode._captured(lambda: runs.append(len(runs)))
    assert runs == [0, 1, 2]
    step()
    assert (len(runs), step.__self__.replayed) == (3, 1)


def test_a_step_that_cannot_be_captured_runs_as_written_and_one_line_says_so(fake_cuda):
    fake_cuda.setattr(torch.cuda, "graph", lambda graph: nullcontext())
    runs = []

    def step():
        runs.append(len(runs))
        if len(runs) == 3:
            torch.cuda.default_generators[0].is_held = True
            raise RuntimeError("operation not permitted\n  when stream is capturing")

    with pytest.warns(GroupwiseWarning) as caught:
        found = slot_decode._captured(step)
    assert [str(warning.message) for warning in caught] == [
        "decoding is not captured in a CUDA graph and runs as written: operation not permitted when stream is capturing"
    ]
    assert not torch.cuda.default_generators[0].is_held
    found()
    assert len(runs) == 4


def test_a_failure_that_has_nothing_to_do_with_capturing_is_not_hidden(fake_cuda):
    fake_cuda.setattr(torch.cuda, "graph", lambda graph: nullcontext())

    def step():
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        slot_decode._captured(step)


def test_the_same_place_says_the_same_and_another_step_something_else():
    policy, prompts, sampling = tiny_policy(), random_prompts(LENGTHS), SAMPLINGS["plain"]
    engine = slot_engine(policy, 16)
    first = engine.generate(prompts, 2, sampling)
    assert engine.generate(prompts, 2, sampling) == first
    assert num_differing(engine.generate(prompts, 2, replace(sampling, step=8)), first) > 12
