"""Decoding over slots on a GPU, a step captured in a CUDA graph: the numbers of a plain pass, the tokens of the CPU."""

import pytest
import torch

from gpu_path import (
    answers_of,
    exact_policy,
    num_differing,
    plain_log_probs,
    sized_policy,
    slot_engine,
    updater_of,
)
from groupwise.errors import GroupwiseWarning
from groupwise.rollout import EmbeddedEngine
from groupwise.rollout.slots import cache_bytes
from groupwise.types import Sampling
from tiny_models import EOS, random_prompts

# What torch and Triton have to say on a GPU is theirs; a warning of this package is an error.
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default", "error::groupwise.errors.GroupwiseWarning"),
]

FAMILIES = ["qwen3", "llama", "gpt2"]
LENGTHS = [3, 7, 1, 9, 4, 4, 2, 12]
N = 5
# About 600 tokens out of 40. Rounding moves a sum of probabilities by about 1e-6, so a random number falls between the
# two sides of one of 40 sums with a chance of 1e-4: 0.05 answers are expected to differ, and more than one is a fault.
TIES = 1


def graphs_compiled():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def sampled_log_probs(groups):
    return torch.tensor([value for answer in answers_of(groups) for value in answer.log_probs], dtype=torch.float64)


def rms(values):
    return values.square().mean().sqrt().item()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4])
def test_log_probs_are_those_of_a_plain_pass_and_of_the_trainer(family, temperature):
    policy = sized_policy(family)
    groups = EmbeddedEngine(policy, 16).generate(random_prompts(LENGTHS), N, Sampling(20, temperature=temperature))
    sampled = sampled_log_probs(groups)
    expected = plain_log_probs(policy, groups, temperature).double().cpu()
    assert (sampled - expected).abs().max() < 1e-5
    if family == "qwen3":
        trained = torch.cat(updater_of(policy, temperature=temperature).log_probs(groups)).double().cpu()
        assert (sampled - trained).abs().max() < 1e-5


def test_compiled_bfloat16_is_no_further_from_the_exact_log_probs_than_a_plain_pass():
    policy, exact = sized_policy(dtype=torch.bfloat16, compiles=True), exact_policy()
    groups = EmbeddedEngine(policy, 64).generate(random_prompts(LENGTHS), 8, Sampling(20))
    expected = plain_log_probs(exact, groups).double().cpu()
    plain = rms(plain_log_probs(policy, groups).double().cpu() - expected)
    # bfloat16 keeps 8 bits of every state and logit. How far that leads away is measured, on the model as written;
    # another order of rounding makes another error of the same size, over 800 tokens within a half of it.
    assert 0 < plain < 0.02
    assert rms(sampled_log_probs(groups) - expected) < 1.5 * plain
    trained = torch.cat(updater_of(policy).log_probs(groups)).double().cpu()
    assert rms(trained - expected) < 1.5 * plain


@pytest.mark.parametrize("sampling", [Sampling(20, seed=3, step=7), Sampling(20, 0.8, top_p=0.7, top_k=9, seed=1)])
def test_answers_are_those_of_the_cpus_decoder(sampling):
    prompts = random_prompts(LENGTHS)
    theirs = EmbeddedEngine(sized_policy(device="cpu"), 512).generate(prompts, N, sampling)
    ours = EmbeddedEngine(sized_policy(), 16).generate(prompts, N, sampling)
    assert num_differing(ours, theirs) <= TIES
    for mine, other in zip(answers_of(ours), answers_of(theirs), strict=True):
        if mine.token_ids == other.token_ids:
            assert mine.log_probs == pytest.approx(other.log_probs, abs=1e-5)
    assert len({answer.token_ids for answer in answers_of(ours)}) > 30


def test_answers_depend_neither_on_rows_nor_on_the_pool_nor_on_the_other_prompts():
    policy, prompts, sampling = sized_policy(), random_prompts([30, 40, 25, 38, 12, 40]), Sampling(10, seed=3)
    reference = slot_engine(policy, 64).generate(prompts, N, sampling)
    # 2 layers x keys and values x 2 heads x 16 numbers x 4 bytes: 512 bytes a token. 80 tokens are the longest prompt
    # and four answers, so that prompts wait for one another.
    differing = {
        "alone": num_differing(slot_engine(policy, 1).generate(prompts, N, sampling), reference),
        "seven": num_differing(slot_engine(policy, 7).generate(prompts, N, sampling), reference),
        "tight": num_differing(slot_engine(policy, 64, max_bytes=80 * 512).generate(prompts, N, sampling), reference),
        "fewer": num_differing(slot_engine(policy, 64).generate(prompts[:2], N, sampling), reference[:2]),
    }
    assert max(differing.values()) <= TIES, differing


def test_between_batches_keys_and_values_take_no_memory_and_a_graph_finds_them_where_they_lie_next():
    policy, prompts, sampling = sized_policy(), random_prompts([30, 40, 25]), Sampling(10, seed=3)
    engine = EmbeddedEngine(policy, 16)
    before = engine.generate(prompts, N, sampling)
    free = torch.cuda.memory_allocated()
    slots = engine._slot_decoder._slots
    slots.hold()
    assert torch.cuda.memory_allocated() - free >= cache_bytes(slots.dimensions, slots.shape)
    lay = slots.addresses.tolist()
    slots.release()
    assert torch.cuda.memory_allocated() == free
    # What lies now where they lay is not theirs to read or write.
    taken = [torch.full((size,), 7, dtype=torch.uint8, device="cuda") for size in [1 << 10, 1 << 16, 1 << 20] * 40]
    assert num_differing(engine.generate(prompts, N, sampling), before) == 0
    slots.hold()
    assert slots.addresses.tolist() != lay
    assert all(bool((block == 7).all()) for block in taken)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_answers_are_those_of_generate(family):
    policy = sized_policy(family)
    groups = EmbeddedEngine(policy, 4).generate(random_prompts(LENGTHS), 1, Sampling(20, temperature=0.0))
    differing = 0
    for group in groups:
        ids = torch.tensor([group.prompt.token_ids], device="cuda")
        theirs = policy.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
        differing += group.completions[0].token_ids != tuple(theirs[0, ids.shape[1] :].tolist())
    # No random number is involved: only two logits within 1e-6 of each other could tell the two apart.
    assert differing == 0


def test_an_end_of_sequence_ends_an_answer_and_a_limit_cuts_it():
    reasons = set()
    groups = EmbeddedEngine(sized_policy(), 16).generate(random_prompts(LENGTHS), N, Sampling(20, seed=1))
    for answer in answers_of(groups):
        assert EOS not in answer.token_ids[:-1]
        assert len(answer.token_ids) == len(answer.log_probs) <= 20
        assert answer.finish_reason == ("stop" if answer.token_ids[-1] == EOS else "length")
        assert answer.finish_reason == "stop" or len(answer.token_ids) == 20
        reasons.add(answer.finish_reason)
    assert reasons == {"stop", "length"}


@pytest.mark.parametrize("compiles", [False, True])
def test_a_captured_step_reads_new_weights_where_the_old_ones_lay(compiles):
    # Joined layers, whose weights are views of one piece, come with compiling.
    dtype = torch.bfloat16 if compiles else torch.float32
    policy, other = (sized_policy(dtype=dtype, compiles=compiles, seed=seed) for seed in (0, 1))
    places = {name: parameter.data_ptr() for name, parameter in policy.parameters()}
    greedy, prompts = Sampling(10, temperature=0.0), random_prompts(LENGTHS)
    engine = EmbeddedEngine(policy, 64)
    before = engine.generate(prompts, 8, greedy)
    steps = dict(engine._slot_decoder._steps)
    engine.load_weights({name: parameter.detach() for name, parameter in other.parameters()})
    after = engine.generate(prompts, 8, greedy)
    assert engine._slot_decoder._steps == steps
    assert {name: parameter.data_ptr() for name, parameter in policy.parameters()} == places
    assert num_differing(after, EmbeddedEngine(other, 64).generate(prompts, 8, greedy)) == 0
    assert num_differing(after, before) > 32


def test_a_step_that_cannot_be_captured_runs_as_written_and_one_line_says_so():
    policy, prompts, sampling = sized_policy(), random_prompts(LENGTHS), Sampling(20, seed=3)
    expected = EmbeddedEngine(policy, 16).generate(prompts, N, sampling)
    plain = policy.logits

    def asks_the_device(hidden):
        assert hidden.sum().item() != 0.5
        return plain(hidden)

    policy.logits = asks_the_device
    engine = EmbeddedEngine(policy, 16)
    with pytest.warns(GroupwiseWarning, match="not captured in a CUDA graph and runs as written") as caught:
        groups = engine.generate(prompts, N, sampling)
    assert len([w for w in caught if w.category is GroupwiseWarning]) == 1
    assert "\n" not in str(caught[0].message)
    assert num_differing(groups, expected) <= TIES
    # Said once, and torch's own random numbers, which a broken capture could have spoiled, still come.
    assert num_differing(engine.generate(prompts, N, sampling), groups) == 0
    assert 0 <= torch.rand(1, device="cuda").item() < 1


def test_other_sizes_are_not_compiled_anew():
    policy, sampling = sized_policy(dtype=torch.bfloat16, compiles=True), Sampling(20)
    engine = EmbeddedEngine(policy, 64)
    start = graphs_compiled()
    engine.generate(random_prompts(LENGTHS), 8, sampling)
    # One form for prompts and one for decoding, and both layers share them.
    assert graphs_compiled() - start <= 2
    engine.generate(random_prompts([11]), 64, sampling)
    engine.generate(random_prompts([5, 6, 7]), 8, sampling)
    held = graphs_compiled()
    for lengths in ([2, 3, 30, 4, 9], [21, 8], [13], [40] * 7):
        engine.generate(random_prompts(lengths), 8, sampling)
    assert graphs_compiled() == held
