"""What must not change an advantage, for every outcome estimator; bit for bit wherever the arithmetic allows it."""

import math
import uuid

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.advantages import CONVENTIONS, get_adv_estimator_fn
from samples import BATCH_WIDE, CASES, PER_GROUP, Rows, at_the_end, batches, coarse, dyadic, f64, same_bits

few = settings(max_examples=settings().max_examples // 4)
every_case = pytest.mark.parametrize("name", CASES)
exact_scores = st.one_of(dyadic, coarse)

# Centred on the group and divided by nothing: twice the scores is twice the advantage.
LINEAR = [
    *("grpo, prime_rl", "grpo, dr_grpo", "grpo without std", "dr_grpo", "rloo", "rloo_vectorized", "opo"),
    *("opo by answers", "gpg with alpha", "pass_at_k without std", "running_baseline", "shrinkage"),
]
# Divided by a spread with no eps beside it: twice the scores is the same advantage.
SCALE_FREE = ["grpo, deepseekmath", "maxrl", "pass_at_k"]
# The advantages of a group add up to nothing.
BALANCED = [name for name in CASES if name.startswith("grpo") and name not in ("grpo, nemo_rl", "grpo_passk")] + [
    "dr_grpo",
    "rloo",
    "rloo_vectorized",
    "gpg",
    "gpg with alpha",
    "opo by answers",
    "running_baseline",
]


@every_case
@few
@given(rows=batches(), data=st.data())
def test_the_order_of_the_rows_shows_in_no_bit(name, rows, data):
    order = data.draw(st.permutations(range(len(rows))))
    assert same_bits(CASES[name](rows.pick(order)), CASES[name](rows)[list(order)])


@every_case
@few
@given(rows=batches(), seed=st.integers(0, 2**32 - 1))
def test_a_bijection_of_the_labels_shows_in_no_bit(name, rows, seed):
    makers = [
        lambda g: uuid.UUID(int=seed + g),
        lambda g: 10**12 - seed * g,
        lambda g: f"{g:03d}",
        lambda g: (g, None),
        lambda g: -float(g) - 0.5,
        lambda g: bytes([g]),
    ]
    names = {label: makers[(seed + g) % len(makers)](g) for g, label in enumerate(dict.fromkeys(rows.labels))}
    renamed = Rows(rows.scores, rows.second, rows.lengths, [names[label] for label in rows.labels])
    assert same_bits(CASES[name](renamed), CASES[name](rows))


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("maxrl", "gpg")])
@few
@given(rows=batches(exact_scores), shift=st.integers(-(2**20), 2**20))
def test_a_shift_of_all_scores_changes_nothing(name, rows, shift):
    # Scores in steps of 1/64 and whole shifts: nothing is rounded, so neither is the answer.
    shifted = CASES[name](rows, f64(rows.scores) + shift)
    if name in ("shrinkage", "running_baseline"):
        # Their baselines are means of whole scores, and a large mean has fewer digits left.
        torch.testing.assert_close(shifted, CASES[name](rows), rtol=1e-8, atol=1e-8)
    else:
        assert same_bits(shifted, CASES[name](rows))


@pytest.mark.parametrize("name", LINEAR)
@few
@given(rows=batches(), power=st.integers(-20, 20))
def test_a_scaled_batch_has_scaled_advantages_where_nothing_divides(name, rows, power):
    scale = 2.0**power
    assert same_bits(CASES[name](rows, f64(rows.scores) * scale), CASES[name](rows) * scale)


@pytest.mark.parametrize("name", SCALE_FREE)
@few
@given(rows=batches(), power=st.integers(-20, 20))
def test_a_scaled_batch_has_the_same_advantages_where_the_spread_divides(name, rows, power):
    assert same_bits(CASES[name](rows, f64(rows.scores) * 2.0**power), CASES[name](rows))


@pytest.mark.parametrize("name", BALANCED)
@few
@given(rows=batches())
def test_the_advantages_of_a_group_add_up_to_nothing(name, rows):
    advantages = CASES[name](rows)
    for label in set(rows.labels):
        mine = advantages[rows.rows_of(label)]
        assert abs(math.fsum(mine.tolist())) <= 1e-9 * (1 + mine.abs().sum())


@every_case
@few
@given(rows=batches(st.sampled_from([0.0, 0.1, 0.35, 0.7, 100.1, 1e6 + 0.1])), data=st.data())
def test_answers_with_the_same_score_in_the_same_group_get_the_same_bits(name, rows, data):
    rows = Rows(rows.scores, [0.0] * len(rows), [3] * len(rows), rows.labels)
    advantages = CASES[name](rows).tolist()
    by_score = {}
    for key, advantage in zip(zip(rows.labels, rows.scores, strict=True), advantages, strict=True):
        by_score.setdefault(key, set()).add(advantage)
    if name != "grpo_passk":  # which has no winner among the tied, or exactly one that is not tied
        assert all(len(found) == 1 for found in by_score.values())
    else:
        assert all(len(found - {0.0}) == 0 for key, found in by_score.items() if rows_with(rows, key) > 1)


def rows_with(rows, key):
    return list(zip(rows.labels, rows.scores, strict=True)).count(key)


@every_case
@pytest.mark.parametrize("score", [0.1, 0.35, 100.1, 1e6 + 0.1])
def test_a_batch_of_equal_scores_is_exactly_zero(name, score):
    for sizes in ((3,), (3, 5), (7, 8, 31, 4, 3)):
        labels = [group for group, size in enumerate(sizes) for _ in range(size)]
        rows = Rows([score] * len(labels), [0.0] * len(labels), list(range(1, len(labels) + 1)), labels)
        assert CASES[name](rows).tolist() == [0.0] * len(labels)


@pytest.mark.parametrize("name", PER_GROUP)
@few
@given(rows=batches(), others=batches())
def test_another_group_in_the_batch_shows_in_no_bit(name, rows, others):
    more = Rows(
        others.scores + rows.scores,
        others.second + rows.second,
        others.lengths + rows.lengths,
        [f"other {label}" for label in others.labels] + rows.labels,
    )
    assert same_bits(CASES[name](more)[len(others) :], CASES[name](rows))


@pytest.mark.parametrize("name", PER_GROUP)
@few
@given(rows=batches(min_size=3))
def test_a_batch_may_be_split_by_groups(name, rows):
    whole = CASES[name](rows)
    for label in set(rows.labels):
        mine = rows.rows_of(label)
        assert same_bits(CASES[name](rows.pick(mine)), whole[mine])


@every_case
@few
@given(rows=batches(), data=st.data())
def test_failed_answers_are_as_good_as_absent(name, rows, data):
    # Up to three failed answers in any group, with any score at all, in any place.
    labels = sorted(set(rows.labels))
    extra = data.draw(st.lists(st.sampled_from(labels), max_size=3))
    wild = data.draw(st.lists(st.sampled_from([0.0, 1e9, math.nan, math.inf]), min_size=3, max_size=3))
    more = Rows(
        rows.scores + wild[: len(extra)],
        rows.second + wild[: len(extra)],
        rows.lengths + [5] * len(extra),
        rows.labels + extra,
    )
    order = data.draw(st.permutations(range(len(more))))
    mixed = more.pick(order)
    failed = [row >= len(rows) for row in order]
    advantages = CASES[name](mixed, failed=failed)
    kept = [place for place, out in enumerate(failed) if not out]
    assert same_bits(advantages[kept], CASES[name](mixed.pick(kept)))
    assert advantages[failed].eq(0).all()


@every_case
@few
@given(rows=batches(min_size=3, min_groups=2), bad=st.sampled_from([math.nan, math.inf, -math.inf]), data=st.data())
def test_a_group_with_a_score_that_is_not_finite_is_nan_and_as_good_as_absent(name, rows, bad, data):
    row = data.draw(st.integers(0, len(rows) - 1))
    rows.scores[row] = bad
    advantages = CASES[name](rows)
    mine = rows.rows_of(rows.labels[row])
    others = [i for i in range(len(rows)) if i not in mine]
    assert advantages[mine].isnan().all()
    expected = CASES[name](rows.pick(others))
    if name in BATCH_WIDE:
        torch.testing.assert_close(advantages[others], expected, rtol=1e-6, atol=1e-9)
    else:
        assert same_bits(advantages[others], expected)


@every_case
@few
@given(rows=batches(st.floats(-1e3, 1e3, width=32)))
def test_float32_scores_lose_nothing_before_the_end(name, rows):
    scores = torch.tensor(rows.scores, dtype=torch.float32)
    exact = CASES[name](rows, scores.double())
    given_ = CASES[name](rows, scores)
    assert given_.dtype == torch.float32
    torch.testing.assert_close(given_, exact.float(), rtol=0, atol=0)


@every_case
def test_a_second_call_gives_the_same_bits(name):
    scores = torch.rand(300, dtype=torch.float64).tolist()
    rows = Rows(scores, scores[::-1], list(range(1, 301)), [row % 37 for row in range(300)])
    assert same_bits(CASES[name](rows), CASES[name](rows))


# --- the same for verl's functions: tokens, masks, padding ---

VERL = sorted({case.estimator for case in CASES.values()} - {"running_baseline"})


def call(name, rewards, mask, labels, **more):
    return get_adv_estimator_fn(name)(rewards, mask, labels, **more)[0]


@pytest.mark.parametrize("name", VERL)
@few
@given(rows=batches(exact_scores), left=st.integers(0, 3), right=st.integers(0, 3))
def test_padding_columns_change_nothing_and_get_zero(name, rows, left, right):
    mask = torch.tensor([[float(t < length) for t in range(9)] for length in rows.lengths])
    rewards = at_the_end(rows.scores, 9, torch.float64)
    plain = call(name, rewards, mask, rows.labels)
    pad = torch.nn.functional.pad
    padded = call(name, pad(rewards, (left, right)), pad(mask, (left, right)), rows.labels)
    assert same_bits(padded, pad(plain, (left, right)))


@pytest.mark.parametrize("name", VERL)
@few
@given(rows=batches(exact_scores), count=st.integers(1, 4))
def test_failed_padding_rows_change_nothing_and_get_zero(name, rows, count):
    mask = torch.tensor([[float(t < length) for t in range(9)] for length in rows.lengths])
    rewards = at_the_end(rows.scores, 9, torch.float64)
    pad = torch.nn.functional.pad
    labels = [*rows.labels, *["padding"] * (count + 1)]
    failed = torch.arange(len(labels)) >= len(rows)
    padded = call(name, pad(rewards, (0, 0, 0, count + 1)), pad(mask, (0, 0, 0, count + 1)), labels, failed=failed)
    assert same_bits(padded[: len(rows)], call(name, rewards, mask, rows.labels))
    assert padded[len(rows) :].eq(0).all()


@pytest.mark.parametrize("name", [name for name in VERL if name not in ("gpg", "shrinkage")])
@few
@given(rows=batches(exact_scores), count=st.integers(2, 4))
def test_empty_padding_rows_under_a_label_of_their_own_change_nothing(name, rows, count):
    # gpg counts every answer and shrinkage every group, so they see padding that is not marked.
    mask = torch.tensor([[float(t < length) for t in range(9)] for length in rows.lengths])
    rewards = at_the_end(rows.scores, 9, torch.float64)
    pad = torch.nn.functional.pad
    labels = [*rows.labels, *["padding"] * count]
    padded = call(name, pad(rewards, (0, 0, 0, count)), pad(mask, (0, 0, 0, count)), labels)
    torch.testing.assert_close(padded[: len(rows)], call(name, rewards, mask, rows.labels), rtol=1e-12, atol=1e-12)
    assert padded[len(rows) :].eq(0).all()


@pytest.mark.parametrize("name", VERL)
@few
@given(rows=batches(exact_scores), data=st.data())
def test_a_reward_may_be_spread_over_the_tokens_in_any_way(name, rows, data):
    mask = torch.tensor([[float(t < length) for t in range(9)] for length in rows.lengths])
    rewards = torch.zeros(len(rows), 9, dtype=torch.float64)
    for row, score in enumerate(rows.scores):
        part = data.draw(st.integers(-64, 64)) / 64
        rewards[row, data.draw(st.integers(0, 8))] += part
        rewards[row, data.draw(st.integers(0, 8))] += score - part
    together = at_the_end(rows.scores, 9, torch.float64)
    assert same_bits(call(name, rewards, mask, rows.labels), call(name, together, mask, rows.labels))


@pytest.mark.parametrize("name", CONVENTIONS)
@few
@given(rows=batches())
def test_the_mask_is_applied_exactly(name, rows):
    mask = torch.tensor([[t % (length + 1) == 0 for t in range(9)] for length in rows.lengths])
    tokens = call("grpo", at_the_end(rows.scores, 9, torch.float64), mask, rows.labels, convention=name)
    scores = CASES[f"grpo, {name}"](rows)
    assert same_bits(tokens, torch.where(mask, scores[:, None], 0.0))


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus", "remax", "grpo_process", "optimal_token_baseline"])
@pytest.mark.parametrize("tir", [True, False])
@few
@given(seed=st.integers(0, 2**16), data=st.data())
def test_the_token_estimators_do_not_see_the_order_of_rows_nor_padding(name, tir, seed, data):
    name = f"tir_{name}" if tir and name == "optimal_token_baseline" else name
    rng = np.random.default_rng(seed)
    count, width = 6, 5
    labels = [int(x) for x in rng.integers(0, 3, count)]
    mask = torch.from_numpy(rng.integers(0, 2, (count, width)))
    mask[0] = 1
    tables = [torch.from_numpy(rng.random((count, width))) for _ in range(4)]
    steps = torch.from_numpy(rng.integers(0, 2, (count, width)))

    def run(order, pad):
        def table(x):
            return torch.nn.functional.pad(x[order], (0, pad))

        here = [labels[row] for row in order]
        rewards, values, log_probs, rho = map(table, tables)
        on = table(mask)
        arguments = {
            "gae": {"values": values, "gamma": 0.9, "lam": 0.8},
            "reinforce_plus_plus": {"config": {"gamma": 0.9}},
            "remax": {"reward_baselines": tables[1][order, 0]},
            "grpo_process": {"index": here, "step_mask": table(steps)},
        }
        otb = {"index": here, "old_log_probs": -log_probs, "sum_pi_squared": values, "rollout_is_weights": rho}
        return get_adv_estimator_fn(name)(rewards, response_mask=on, **arguments.get(name, otb))

    plain = run(list(range(count)), 0)
    order = data.draw(st.permutations(range(count)))
    for moved, there in zip(run(order, 2), plain, strict=True):
        torch.testing.assert_close(moved[:, :width], there[order], rtol=1e-11, atol=1e-11)
        assert moved[:, width:].eq(0).all()
