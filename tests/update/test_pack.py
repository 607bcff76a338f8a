from collections import Counter

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from transformers import MistralConfig, MistralForCausalLM

from groupwise.config import ActorConfig
from groupwise.errors import BadValueError, GroupwiseWarning
from groupwise.policy.load import wrap
from groupwise.update import Updater, pack
from groupwise.update.form import choose_form, evened_length
from groupwise.update.pack import OWN_ROWS, SHARED_ROWS, Form, number_answers
from tiny_models import random_groups, tiny_policy, tiny_tokenizer

PROMPTS = [3, 9, 5, 1]
ANSWERS = [[4, 1, 7], [1, 1], [12, 30, 2, 2, 2], [5]]
CPU = torch.device("cpu")
EVENED_ROWS = Form(SHARED_ROWS.build, lambda num_tokens: -(-num_tokens // 32) * 32)


def packed_log_probs(policy, answers, budget, form=SHARED_ROWS, temperature=0.7):
    found = torch.full((sum(len(a.completion.token_ids) for a in answers),), float("nan"), dtype=policy.dtype)
    for micro in pack(answers, budget, CPU, form):
        with torch.no_grad():
            statistics = policy.token_statistics(micro.hidden(policy), micro.targets, temperature=temperature)
        found[micro.tokens] = statistics.log_probs
    return found


def log_probs_alone(policy, answers, temperature=0.7):
    """One plain forward pass per answer."""
    found = []
    for answer in answers:
        tokens = torch.tensor(answer.completion.token_ids)
        ids = torch.cat([torch.tensor(answer.prompt_tokens), tokens])[None]
        with torch.no_grad():
            logits = policy.model(input_ids=ids).logits[0, len(answer.prompt_tokens) - 1 : -1]
        found.append((logits / temperature).log_softmax(-1).gather(-1, tokens[:, None])[:, 0])
    return torch.cat(found)


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2"])
@pytest.mark.parametrize("budget", [10**6, 120, 45])
@pytest.mark.parametrize("form", [SHARED_ROWS, OWN_ROWS, EVENED_ROWS], ids=["shared", "own", "evened"])
def test_packed_log_probs_are_each_answers_alone(family, budget, form):
    policy = tiny_policy(family, torch.float64)
    answers = number_answers(random_groups(PROMPTS, ANSWERS))
    expected = log_probs_alone(policy, answers)
    assert (packed_log_probs(policy, answers, budget, form) - expected).abs().max() < 1e-12


POLICY = tiny_policy(dtype=torch.float64)
SIZES = st.lists(
    st.tuples(st.integers(1, 12), st.lists(st.integers(1, 15), min_size=1, max_size=5)), min_size=1, max_size=5
)


@given(SIZES, st.integers(26, 150), st.sampled_from([SHARED_ROWS, OWN_ROWS]))
@settings(max_examples=30)
def test_any_groups_at_any_budget(sizes, budget, form):
    answers = number_answers(random_groups([p for p, _ in sizes], [a for _, a in sizes]))
    difference = packed_log_probs(POLICY, answers, budget, form) - log_probs_alone(POLICY, answers)
    assert difference.abs().max() < 1e-12
    for micro in pack(answers, budget, CPU, form):
        assert micro.input_ids.numel() <= budget


def test_a_prompt_stands_once_for_its_whole_group():
    (micro,) = pack(number_answers(random_groups([50], [[4, 4, 4, 4]])), 1000, CPU)
    # Each answer's last token predicts nothing and is left out.
    assert micro.input_ids.shape == (1, 50 + 4 * 3)


def test_micro_batches_are_about_equally_full():
    answers = number_answers(random_groups([10] * 40, [[10, 10]] * 40))
    # 40 groups of 28 tokens: 1120 tokens take three batches of 512 at least, filled alike and not 512, 512, 96.
    sizes = [micro.input_ids.numel() for micro in pack(answers, 512, CPU)]
    assert sum(sizes) == 1120
    assert len(sizes) == 3
    assert max(sizes) - min(sizes) <= 28


def test_groups_of_which_few_fit_into_a_micro_batch_are_spread_over_all_of_them():
    # 16 groups of 28 tokens, of which 3 fit into 100: six micro-batches at least, and none of a single group.
    answers = number_answers(random_groups([10] * 16, [[10, 10]] * 16))
    sizes = [micro.input_ids.numel() for micro in pack(answers, 100, CPU)]
    assert sorted(sizes) == [56, 56, 84, 84, 84, 84]


def test_every_token_of_every_answer_stands_in_one_micro_batch():
    answers = number_answers(random_groups(PROMPTS, ANSWERS))
    counts = Counter(token for micro in pack(answers, 45, CPU) for token in micro.tokens.tolist())
    assert counts == dict.fromkeys(range(sum(map(sum, ANSWERS))), 1)


def test_an_answer_over_the_budget_is_refused():
    with pytest.raises(BadValueError, match=r"takes 34 tokens .* actor.micro_batch_tokens=20"):
        pack(number_answers(random_groups(PROMPTS, ANSWERS)), 20, CPU)


def test_a_model_that_looks_back_a_window_gets_each_answer_in_a_row_of_its_own():
    config = MistralConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=16, initializer_range=0.3, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    policy = wrap(MistralForCausalLM(config).double(), tiny_tokenizer())
    groups = random_groups(PROMPTS, ANSWERS)
    updater = Updater(policy, ActorConfig(), lambda lengths, prompt_ids: None, total_steps=1)
    with pytest.warns(GroupwiseWarning, match="see 16 tokens back, and an answer with its prompt is longer"):
        found = torch.cat(updater.log_probs(groups))
    expected = log_probs_alone(policy, number_answers(groups), temperature=1.0)
    assert (found - expected).abs().max() < 1e-12
    short = random_groups([3, 4], [[5, 2], [10]])
    expected = log_probs_alone(policy, number_answers(short), temperature=1.0)
    assert (torch.cat(updater.log_probs(short)) - expected).abs().max() < 1e-12


def test_lengths_are_evened_for_a_policy_that_wants_few_of_them():
    # A number of 12 bits is rounded up to a multiple of 2048 / 16 = 128, one of 5 bits is not.
    assert [evened_length(n) for n in (0, 1, 31, 2048, 2049, 2176, 2177, 4095)] == [
        *(0, 1, 31, 2048, 2176, 2176, 2304, 4096)
    ]
    assert all(n <= evened_length(n) <= n * 17 / 16 for n in range(1, 5000))
    policy, answers = tiny_policy(), number_answers(random_groups([9, 40], [[60, 1], [23, 5]]))
    rows = {}
    for wants_few in (False, True):
        policy.wants_few_lengths = wants_few
        (micro,) = pack(answers, 10**6, CPU, choose_form(policy, answers))
        rows[wants_few] = micro.input_ids.shape[1]
    # 49 tokens of prompts, 89 of answers, of which the last four predict nothing: 134, and 8 is a sixteenth of 128.
    assert rows == {False: 134, True: 136}
