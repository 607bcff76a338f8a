"""Large batches are worked through a few rows at a time; where one step ends and the next begins shows in no bit."""

import pytest
import torch

from groupwise.advantages import Groups, get_adv_estimator_fn
from groupwise.advantages import recurrences as recurrences_module
from groupwise.advantages import rows as rows_module
from groupwise.advantages.rows import empty, rows_at_a_time
from samples import f64, same_bits

ROWS, WIDTH = 11, 6
LABELS = list("abacabbacbd")
FAILED = [False] * 9 + [True, False]
NAMES = ["gae", "reinforce_plus_plus", "remax", "optimal_token_baseline", "tir_optimal_token_baseline"]


def fields(name):
    draw = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, ROWS, WIDTH, generator=draw)
    probabilities, spare = torch.rand(2, ROWS, WIDTH, generator=draw) * 0.9 + 0.05
    fields = {
        "token_level_rewards": rewards,
        "response_mask": torch.rand(ROWS, WIDTH, generator=draw) < 0.8,
        "failed": FAILED,
    }
    if name == "gae":
        fields |= {"values": values, "gamma": 0.9, "lam": 0.8}
    if name == "reinforce_plus_plus":
        fields |= {"config": {"gamma": 0.9}}
    if name == "remax":
        fields |= {"reward_baselines": values[:, 0]}
    if name.endswith("token_baseline"):
        squares = probabilities.square() + (1 - probabilities).square() * spare
        fields |= {"index": LABELS, "old_log_probs": probabilities.log(), "sum_pi_squared": squares}
        fields |= {"rollout_is_weights": values.exp()}
    return fields


@pytest.mark.parametrize("poisoned", [False, True])
@pytest.mark.parametrize("tokens", [1, 2 * WIDTH, 5 * WIDTH])
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_in_steps_has_the_bits_of_the_whole(name, tokens, poisoned, monkeypatch):
    arguments = fields(name)
    if poisoned:
        arguments["token_level_rewards"][4, 2] = torch.nan
        arguments["response_mask"][4, 2] = True
    whole = get_adv_estimator_fn(name)(**arguments)
    assert whole[0].isnan().any() == poisoned
    monkeypatch.setattr(rows_module, "_TOKENS_IN_A_STEP", tokens)
    monkeypatch.setattr(recurrences_module, "_ROWS_OF_A_WALK", 1)
    in_steps = get_adv_estimator_fn(name)(**arguments)
    assert same_bits(in_steps[0], whole[0])
    assert same_bits(in_steps[1], whole[1])


@pytest.mark.parametrize(
    ("width", "at_least", "expected"),
    [
        (4, 1, [(0, 3), (3, 6), (6, 7)]),  # 12 tokens of memory: three rows of four
        (4, 5, [(0, 5), (5, 7)]),
        (100, 1, [(row, row + 1) for row in range(7)]),  # one row is more than that, and still goes
        (0, 1, [(0, 7)]),
    ],
)
def test_the_slices_cover_every_row_once(width, at_least, expected, monkeypatch):
    monkeypatch.setattr(rows_module, "_TOKENS_IN_A_STEP", 12)
    slices = rows_at_a_time(torch.ones(7, width), at_least)
    assert [rows.indices(7)[:2] for rows in slices] == expected


def test_groups_go_whole_a_few_at_a_time():
    # Group by group, a starts at row 0, b at 4, c at 8 and d at 10. Six rows to a step: b starts in the first.
    groups = Groups.of(LABELS)
    values = f64([float(row) for row in range(ROWS)])
    seen = []
    for rows, part in groups.a_few_at_a_time(6):
        assert [LABELS[row] for row in rows] == [part.labels[number] for number in part.ids]
        assert torch.equal(part.sum(values[rows]), groups.sum(values)[[groups.labels.index(x) for x in part.labels]])
        seen.append((part.labels, rows.tolist()))
    assert seen == [(["a", "b"], [0, 1, 2, 4, 5, 6, 7, 9]), (["c", "d"], [3, 8, 10])]


def test_groups_that_fit_one_step_are_not_copied():
    groups = Groups.of(LABELS)
    [(rows, part)] = groups.a_few_at_a_time(ROWS + 1)
    assert rows == slice(None)
    assert part is groups


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int16])
def test_fresh_memory_is_an_ordinary_tensor(dtype):
    fresh = empty((3, 2), dtype, torch.device("cpu"))
    fresh.fill_(2)
    assert fresh.dtype == dtype
    assert (fresh * torch.ones(3, 2, dtype=dtype)).tolist() == [[2.0, 2.0]] * 3
    assert fresh.share_memory_().tolist() == [[2.0, 2.0]] * 3


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_fresh_memory_is_where_it_was_asked_for(device):
    fresh = empty((2, 3), torch.bfloat16, torch.device(device))
    assert (fresh.shape, fresh.dtype, fresh.device.type) == ((2, 3), torch.bfloat16, device)
