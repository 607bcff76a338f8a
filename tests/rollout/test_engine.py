from dataclasses import replace

import pytest
import torch

from groupwise.errors import BadValueError
from groupwise.rollout import EmbeddedEngine
from groupwise.types import Sampling
from tiny_models import EOS, random_prompts, tiny_policy

FAMILIES = ["qwen3", "llama", "gpt2"]
LENGTHS = [3, 7, 1, 9, 4, 4, 2, 12]


def answers_of(policy, max_num_seqs, sampling, n=5, lengths=LENGTHS):
    groups = EmbeddedEngine(policy, max_num_seqs).generate(random_prompts(lengths), n, sampling)
    return [answer for group in groups for answer in group.completions]


def log_probs_alone(policy, prompt, tokens, temperature=1.0):
    """One plain forward pass over one prompt and one answer."""
    ids = torch.tensor([prompt.token_ids + tokens])
    with torch.no_grad():
        logits = policy.model(input_ids=ids).logits[0, len(prompt.token_ids) - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_num_seqs", [3, 512])
def test_greedy_answers_are_those_of_generate(family, max_num_seqs):
    policy = tiny_policy(family, torch.float64)
    groups = EmbeddedEngine(policy, max_num_seqs).generate(random_prompts(LENGTHS), 1, Sampling(20, temperature=0.0))
    for group in groups:
        ids = torch.tensor([group.prompt.token_ids])
        theirs = policy.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
        assert group.completions[0].token_ids == tuple(theirs[0, ids.shape[1] :].tolist())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_answers_do_not_depend_on_what_is_sampled_beside_them(family, dtype):
    policy = tiny_policy(family, dtype)
    sampling = Sampling(max_tokens=20, seed=3, step=7)
    reference = answers_of(policy, 512, sampling)
    # Compaction and the moving of columns happen in these settings; 1 is every answer alone.
    differing = {}
    for max_num_seqs in (1, 3, 39):
        others = answers_of(policy, max_num_seqs, sampling)
        differing[max_num_seqs] = sum(a.token_ids != b.token_ids for a, b in zip(reference, others, strict=True))
    # Float32 may round a near tie differently; 700 tokens at 1e-7 make even one such answer an event.
    allowed = 1 if dtype == torch.float32 else 0
    assert all(count <= allowed for count in differing.values()), differing
    assert len({answer.token_ids for answer in reference}) > 30


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4])
def test_log_probs_are_those_of_a_plain_forward_pass(family, temperature):
    # Weights of a size as models have them; wilder ones amplify rounding.
    policy = tiny_policy(family, initializer_range=0.1)
    engine = EmbeddedEngine(policy, 7)
    for group in engine.generate(random_prompts(LENGTHS), 3, Sampling(20, temperature=temperature)):
        for answer in group.completions:
            expected = log_probs_alone(policy, group.prompt, answer.token_ids, temperature)
            torch.testing.assert_close(torch.tensor(answer.log_probs), expected, atol=1e-5, rtol=0)


def test_an_end_of_sequence_token_ends_an_answer_and_is_part_of_it():
    ended, cut = 0, 0
    for answer in answers_of(tiny_policy(), 8, Sampling(max_tokens=20, seed=1)):
        assert EOS not in answer.token_ids[:-1]
        assert len(answer.token_ids) == len(answer.log_probs) <= 20
        if answer.token_ids[-1] == EOS:
            assert answer.finish_reason == "stop"
            ended += 1
        else:
            assert answer.finish_reason == "length"
            assert len(answer.token_ids) == 20
            cut += 1
    assert ended
    assert cut


def test_an_end_at_the_very_limit_is_a_stop():
    policy = tiny_policy()
    answers = answers_of(policy, 8, Sampling(max_tokens=20, seed=1))
    stopped = next(a for a in answers if a.finish_reason == "stop" and len(a.token_ids) > 1)
    limit = len(stopped.token_ids)
    again = answers_of(policy, 8, Sampling(max_tokens=limit, seed=1))[answers.index(stopped)]
    assert again == stopped


def test_seed_step_prompt_and_answer_each_change_what_is_said():
    policy = tiny_policy()
    sampling = Sampling(max_tokens=12)
    prompts = random_prompts([4])
    same_twice = [prompts[0], replace(prompts[0], uid="0-1")]
    engine = EmbeddedEngine(policy, 64)
    first, second = engine.generate(same_twice, 2, sampling)
    said = [answer.token_ids for group in (first, second) for answer in group.completions]
    others = (replace(sampling, seed=1), replace(sampling, step=1))
    said += [engine.generate(prompts, 1, other)[0].completions[0].token_ids for other in others]
    assert len(set(said)) == len(said)
    again = engine.generate(prompts, 2, sampling)[0].completions
    assert [answer.token_ids for answer in again] == [answer.token_ids for answer in first.completions]


def test_each_prompt_is_computed_once(monkeypatch):
    policy = tiny_policy()
    seen = []
    plain = policy.hidden_states

    def counted(input_ids, position_ids, *, attend):
        if input_ids.shape[1] > 1:
            seen.extend(tuple(row[row != 0].tolist()) for row in input_ids)
        return plain(input_ids, position_ids, attend=attend)

    monkeypatch.setattr(policy, "hidden_states", counted)
    prompts = random_prompts([5, 3, 9, 4])
    EmbeddedEngine(policy, 5).generate(prompts, 6, Sampling(8))
    assert sorted(seen) == sorted(prompt.token_ids for prompt in prompts)


def test_weights_are_read_in_place_and_can_be_loaded():
    policy, other = tiny_policy(seed=0), tiny_policy(seed=1)
    greedy = Sampling(10, temperature=0.0)
    engine = EmbeddedEngine(policy, 8)
    before = engine.generate(random_prompts(LENGTHS), 1, greedy)
    engine.load_weights({name: parameter.detach() for name, parameter in other.parameters()})
    after = engine.generate(random_prompts(LENGTHS), 1, greedy)
    assert after == EmbeddedEngine(other, 8).generate(random_prompts(LENGTHS), 1, greedy)
    assert after != before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tokens": 300}, r"prompt '0-3' has 9 tokens; with 300 .* more than the model's context of 256"),
        ({"max_tokens": 0}, "must be at least 1"),
        ({"max_tokens": 4, "top_p": 0.0}, "top_p above 0"),
        ({"max_tokens": 4, "temperature": -1.0}, "temperature is 0"),
    ],
)
def test_what_cannot_be_sampled_is_refused(settings, message):
    with pytest.raises(BadValueError, match=message):
        EmbeddedEngine(tiny_policy(), 4).generate(random_prompts([3, 5, 2, 9]), 2, Sampling(**settings))


def test_no_prompts_give_no_groups():
    assert EmbeddedEngine(tiny_policy(), 4).generate([], 4, Sampling(4)) == []
