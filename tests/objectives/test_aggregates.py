"""Aggregates by hand, and the counts they divide by."""

import pytest
import torch

from groupwise.config import ActorConfig
from groupwise.errors import BadValueError, MissingFieldError, UnknownNameError
from groupwise.objectives import LossInputs, Totals, aggregate, plan

# Answers of 1, 3 and 0 tokens to prompt 0, one of 2 tokens to prompt 1.
IDS = torch.tensor([0, 1, 1, 1, 3, 3])
LOSSES = torch.tensor([6.0, 1.0, 2.0, 3.0, 4.0, 8.0])
LAYOUT = LossInputs(LOSSES, None, torch.zeros(4), IDS, torch.tensor([0, 0, 0, 1])).layout
TOTALS = Totals.count([1, 3, 0, 2], [0, 0, 0, 1], max_length=8)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-sum", 24.0),
        ("token-mean", 24 / 6),
        # three answers have tokens
        ("seq-mean-token-sum", (6 + 6 + 12) / 3),
        ("seq-mean-token-sum-norm", (6 + 6 + 12) / 3 / 8),
        ("seq-mean-token-mean", (6 + 2 + 6) / 3),
        # 12 over 4 tokens, 12 over 2
        ("prompt-mean", (3 + 6) / 2),
    ],
)
def test_by_hand(mode, expected):
    assert aggregate(LOSSES, LAYOUT, TOTALS, mode).item() == pytest.approx(expected)


def test_totals_count_what_has_tokens():
    assert (TOTALS.num_tokens, TOTALS.num_sequences, TOTALS.num_prompts) == (6, 3, 2)
    assert TOTALS.prompt_tokens.tolist() == [4, 2]
    empty_prompt = Totals.count([2, 0], [0, 1])
    assert (empty_prompt.num_sequences, empty_prompt.num_prompts) == (1, 1)


def test_totals_of_a_step_that_is_one_micro_batch():
    mask = torch.tensor([True, True, False, True, False, False])
    inputs = LossInputs(LOSSES, None, torch.zeros(4), IDS, torch.tensor([0, 0, 0, 1]), mask=mask)
    totals = Totals.of(inputs)
    assert (totals.num_tokens, totals.num_sequences, totals.num_prompts) == (3, 2, 1)
    assert totals.prompt_tokens.tolist() == [3, 0]


def test_counts_may_be_tensors():
    totals = Totals(torch.tensor(6), torch.tensor(3), torch.tensor(2), torch.tensor([4, 2]), 8)
    for mode in ("token-mean", "seq-mean-token-mean", "prompt-mean"):
        assert torch.equal(aggregate(LOSSES, LAYOUT, totals, mode), aggregate(LOSSES, LAYOUT, TOTALS, mode))


def test_unequal_micro_batches_do_not_change_a_token_mean():
    # 1 token of loss 1 beside 10 of loss 2: 21 / 11, where the mean of the two means is 1.5
    losses = torch.tensor([1.0] + [2.0] * 10)
    totals = Totals.count([1, 10], [0, 1])
    parts = []
    for piece in (losses[:1], losses[1:]):
        ids = torch.zeros(len(piece), dtype=torch.int64)
        layout = LossInputs(piece, None, torch.zeros(1), ids, torch.zeros(1, dtype=torch.int64)).layout
        parts.append(aggregate(piece, layout, totals, "token-mean"))
    assert sum(parts).item() == pytest.approx(21 / 11)


def test_refusals():
    with pytest.raises(UnknownNameError, match="unknown loss_agg_mode 'token-means'; the nearest is 'token-mean'"):
        aggregate(LOSSES, LAYOUT, TOTALS, "token-means")
    with pytest.raises(UnknownNameError, match=r"unknown actor\.loss_agg_mode 'seq-mean'"):
        plan(ActorConfig(loss_agg_mode="seq-mean"))
    bare = Totals(6, 3)
    with pytest.raises(MissingFieldError, match=r"divides by a constant length: set actor\.loss_scale_factor"):
        aggregate(LOSSES, LAYOUT, bare, "seq-mean-token-sum-norm")
    with pytest.raises(MissingFieldError, match=r"'prompt-mean' needs Totals\.prompt_tokens"):
        aggregate(LOSSES, LAYOUT, bare, "prompt-mean")
    with pytest.raises(BadValueError, match="a length of 0 cannot divide a loss; give 1 or more"):
        aggregate(LOSSES, LAYOUT, Totals(6, 3, max_length=0), "seq-mean-token-sum-norm")
