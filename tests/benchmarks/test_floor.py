"""The least time of a step, against arithmetic by hand and against a model's own parameters."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from floor import Rates, Work, rollout_seconds, update_seconds
from random_model import SHAPES, Shape, make_model

# One layer: queries and output 2 x 2 each, keys and values 2 x 1 each, MLP 3 of 2 x 3: 30. Head: 5 x 2 = 10.
# Attention: 2 heads of width 1 = 2. Keys and values of a token: 2 numbers.
SMALL = Shape(
    {
        "vocab_size": 5,
        "hidden_size": 2,
        "intermediate_size": 3,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 1,
    }
)
WORK = Work(prompts=1, n=2, prompt_tokens=3, answer_tokens=2)
# 2 x 30 x 3 for the layers, 2 x 10 for the head once, 4 x 1 x 2 x (1 + 2 + 3) for the attention.
PROMPT_PASS = 180 + 20 + 48


def test_a_rollout_bound_by_operations():
    # One more token of two rows: 2 (2 x 40 + 4 x 1 x 2 x (3 + 1)) = 224 operations; 50 bytes.
    assert rollout_seconds(SMALL, WORK, Rates(bytes=1, operations=1), itemsize=1) == PROMPT_PASS + 224


def test_a_rollout_bound_by_bytes():
    # 40 weights of 2 bytes; keys and values of 3 prompt tokens once and of one token of each answer: 4 (3 + 2).
    seconds = rollout_seconds(SMALL, WORK, Rates(bytes=0.1, operations=1), itemsize=2)
    assert seconds == pytest.approx(PROMPT_PASS + (80 + 20) / 0.1)


def test_an_update():
    # Computed tokens: 3 + 2 x 1 = 5. Pairs: 6 of the prompt, 3 + 1 of each answer: 14. Predicted tokens: 4.
    assert update_seconds(SMALL, WORK, Rates(bytes=1, operations=2)) == 3 * (2 * 30 * 5 + 2 * 10 * 4 + 8 * 14) / 2


def test_a_longer_prompt_costs_what_its_tokens_add():
    rates = Rates(bytes=1, operations=1)
    longer = Work(prompts=1, n=2, prompt_tokens=4, answer_tokens=2)
    # One more token through the layers, and pairs: 4 of its own, one of each of the two computed answer tokens.
    assert update_seconds(SMALL, longer, rates) - update_seconds(SMALL, WORK, rates) == 3 * (2 * 30 + 8 * (4 + 2))


def test_the_parameters_counted_are_the_model_s():
    shape = SHAPES["tiny"]
    model, _ = make_model(shape, "cpu")
    matrices = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    assert shape.layers * shape.layer_parameters + shape.head_parameters == matrices
