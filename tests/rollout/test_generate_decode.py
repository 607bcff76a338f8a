"""Models that keep their attention or their state to themselves: sampled by `generate`, and trained all the same."""

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from gpu_path import updater_of
from groupwise.config import ActorConfig, OptimConfig
from groupwise.errors import GroupwiseWarning
from groupwise.policy.load import wrap
from groupwise.rollout import EmbeddedEngine
from groupwise.rollout.generate_decode import decode_by_generate
from groupwise.types import Sampling
from tiny_models import EOS, random_prompts, tiny_policy, tiny_tokenizer

LENGTHS = [3, 7, 1, 12]
ENDS = {"eos_token_id": EOS, "pad_token_id": 0, "bos_token_id": None}
SIZES = {"vocab_size": 40, "hidden_size": 32, "initializer_range": 0.3}
SLOW = pytest.mark.filterwarnings("ignore:.*(is sampled by its own generate|computes the prompt once per answer)")


def bloom():
    return BloomForCausalLM(BloomConfig(n_layer=2, n_head=4, **SIZES, **ENDS))


def mamba():
    return MambaForCausalLM(MambaConfig(num_hidden_layers=2, state_size=4, **SIZES, **ENDS))


def mistral():
    """It sees six tokens back, and prompts with their answers are longer."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "num_hidden_layers": 2}
    return MistralForCausalLM(MistralConfig(sliding_window=6, **heads, **SIZES, **ENDS))


def policy_of(make):
    torch.manual_seed(0)
    return wrap(make(), tiny_tokenizer())


def answers_of(groups):
    return [answer for group in groups for answer in group.completions]


def plain_log_probs(policy, group, answer, temperature):
    ids = torch.tensor([group.prompt.token_ids + answer.token_ids])
    with torch.no_grad():
        logits = policy.model(input_ids=ids).logits[0, len(group.prompt.token_ids) - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(-1, torch.tensor(answer.token_ids)[:, None])[:, 0]


@pytest.mark.parametrize("sampling", [Sampling(12, seed=3, step=7), Sampling(12, 0.7, top_p=0.8, top_k=9, seed=1)])
def test_it_samples_what_the_other_decoders_sample(sampling):
    policy, prompts = tiny_policy(initializer_range=0.1), random_prompts(LENGTHS)
    expected = answers_of(EmbeddedEngine(policy, 512).generate(prompts, 5, sampling))
    found = list(decode_by_generate(policy, [prompt.token_ids for prompt in prompts], 5, sampling, 7))
    assert [tokens for tokens, _ in found] == [answer.token_ids for answer in expected]
    for (_, log_probs), answer in zip(found, expected, strict=True):
        assert log_probs == pytest.approx(answer.log_probs, abs=1e-5)


@SLOW
@pytest.mark.parametrize("make", [bloom, mamba, mistral])
def test_log_probs_are_those_of_a_plain_pass_and_of_the_trainer(make):
    policy = policy_of(make)
    groups = EmbeddedEngine(policy, 7).generate(random_prompts(LENGTHS), 3, Sampling(10, temperature=0.8))
    trained = updater_of(policy, temperature=0.8).log_probs(groups)
    sampled = [(group, answer) for group in groups for answer in group.completions]
    for (group, answer), of_trainer in zip(sampled, trained, strict=True):
        expected = plain_log_probs(policy, group, answer, 0.8).tolist()
        assert answer.log_probs == pytest.approx(expected, abs=1e-5)
        assert of_trainer.tolist() == pytest.approx(expected, abs=1e-5)
        assert (answer.finish_reason == "stop") is (answer.token_ids[-1] == EOS)
        assert EOS not in answer.token_ids[:-1]


@SLOW
def test_the_models_own_generation_settings_change_nothing_and_are_left_as_they_were():
    policy, prompts = policy_of(bloom), random_prompts(LENGTHS)
    expected = EmbeddedEngine(policy, 16).generate(prompts, 3, Sampling(8))
    own = policy.model.generation_config
    own.repetition_penalty, own.top_k, own.max_length = 5.0, 1, 2
    assert answers_of(EmbeddedEngine(policy, 16).generate(prompts, 3, Sampling(8))) == answers_of(expected)
    assert policy.model.generation_config is own


def test_one_line_says_why():
    with pytest.warns(GroupwiseWarning, match="BloomForCausalLM is sampled by its own generate, .* from the caller"):
        EmbeddedEngine(policy_of(bloom), 4).generate(random_prompts([3]), 1, Sampling(2))
    with pytest.warns(
        GroupwiseWarning, match="MistralForCausalLM is sampled by its own generate, .* see 6 tokens back"
    ):
        EmbeddedEngine(policy_of(mistral), 4).generate(random_prompts([3]), 1, Sampling(9))


def test_short_answers_of_a_model_with_a_window_are_decoded_as_any_others():
    # Warnings are errors here.
    EmbeddedEngine(policy_of(mistral), 4).generate(random_prompts([3]), 1, Sampling(3))


@SLOW
@pytest.mark.parametrize("make", [bloom, mamba])
def test_such_a_model_learns(make):
    policy, wanted = policy_of(make), 5
    engine = EmbeddedEngine(policy, 64)
    updater = updater_of(policy, ActorConfig(optim=OptimConfig(lr=1e-2)), total_steps=25)
    shares = []
    for step in range(25):
        groups = engine.generate(random_prompts([4, 6, 3], seed=step), 16, Sampling(6, seed=1, step=step))
        scores = [[a.token_ids.count(wanted) / len(a.token_ids) for a in group.completions] for group in groups]
        updater.step(groups, [score - sum(row) / len(row) for row in scores for score in row])
        shares.append(sum(map(sum, scores)) / 48)
    # By chance one token in forty is the wanted one.
    assert shares[0] < 0.15
    assert sum(shares[-3:]) / 3 > 0.5
