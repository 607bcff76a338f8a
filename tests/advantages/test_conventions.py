"""Nine formulas that call themselves GRPO, each against a loop written from that system's formula."""

import math

import pytest
import torch
from hypothesis import given

from groupwise.advantages import (
    CONVENTIONS,
    Convention,
    Groups,
    advantages_from_scores,
    check_groups,
    group_relative,
)
from groupwise.advantages import conventions as conventions_module
from groupwise.advantages.conventions import get_convention, peer_deviations, peer_stds
from groupwise.advantages.health import BROKEN
from groupwise.errors import GroupHealthError, UnknownNameError
from oracles.conventions import ORACLES
from samples import batches, f64


def test_every_convention_has_an_oracle():
    assert set(CONVENTIONS) == set(ORACLES)


@pytest.mark.parametrize("name", CONVENTIONS)
@given(rows=batches(min_size=1))
def test_a_convention_is_its_systems_formula(name, rows):
    advantages = advantages_from_scores(f64(rows.scores), rows.labels, convention=name)
    torch.testing.assert_close(advantages, f64(ORACLES[name](rows.scores, rows.labels)), rtol=1e-10, atol=1e-10)


# r = 1, 0, 1, 0: mean 1/2, squares 4 * 1/4 = 1, std sqrt(1/3) = 0.577350 (ddof 1) or 1/2 (ddof 0).
# r = 0, 0, 0, 1: mean 1/4, squares 3/16 + 9/16 = 3/4, std 1/2 (ddof 1) or sqrt(3)/4 = 0.433013 (ddof 0).
BY_HAND = {
    "verl": ([0.5 / 0.577351269] * 2, [-0.25 / 0.500001, 0.75 / 0.500001]),
    "skyrl": ([0.5 / 0.577351269] * 2, [-0.25 / 0.500001, 0.75 / 0.500001]),
    "slime": ([0.5 / 0.577351269] * 2, [-0.25 / 0.500001, 0.75 / 0.500001]),
    "trl": ([0.5 / 0.577450269] * 2, [-0.25 / 0.5001, 0.75 / 0.5001]),
    "openrlhf": ([0.5 / 0.577350270] * 2, [-0.25 / 0.500000001, 0.75 / 0.500000001]),
    # Without oneself: [0, 1, 0] has mean 1/3, std sqrt(1/3); [1, 1, 0] has mean 2/3, the same std: +-2/3 / 0.577351.
    # The failures of group two have peers 0, 0, 1 (mean 1/3, std 0.577351); the success has peers 0, 0, 0 (std 0): 1.
    "nemo_rl": ([2 / 3 / 0.577351269] * 2, [-1 / 3 / 0.577351269, 1.0]),
    "prime_rl": ([0.5, 0.5], [-0.25, 0.75]),
    "dr_grpo": ([0.5, 0.5], [-0.25, 0.75]),
    "deepseekmath": ([1.0, 1.0], [-0.25 / 0.433012702, 0.75 / 0.433012702]),
}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_the_two_groups_of_the_first_example_by_hand(name):
    advantages = advantages_from_scores(f64([1, 0, 1, 0, 0, 0, 0, 1]), [0, 0, 0, 0, 1, 1, 1, 1], convention=name)
    (high, low), (wrong, right) = BY_HAND[name]
    expected = f64([high, -low, high, -low, wrong, wrong, wrong, right])
    torch.testing.assert_close(advantages, expected, rtol=0, atol=2e-9)


def test_slimes_fall_back_to_one_group_for_all_is_an_error_of_group_health_instead():
    scores, labels = f64([1, 0, 0, 0, 1, 1, 0]), list("aabbbbb")
    # slime: groups of 2 and 5 become one of 7, mean 3/7. Here a has mean 1/2, std sqrt(1/2); b has mean 2/5, squares
    # 2 * 9/25 + 3 * 4/25 = 6/5, std sqrt(6/5 / 4) = sqrt(3/10).
    advantages = advantages_from_scores(scores, labels, convention="slime")
    high_a, high_b, low_b = (d / (math.sqrt(v) + 1e-6) for d, v in [(1 / 2, 1 / 2), (3 / 5, 3 / 10), (2 / 5, 3 / 10)])
    expected = f64([high_a, -high_a, -low_b, -low_b, high_b, high_b, -low_b])
    torch.testing.assert_close(advantages, expected, rtol=1e-14, atol=0)
    with pytest.raises(GroupHealthError, match=r"wrong_size \(1\)[^']*'a', rows 0, 1: size 2, expected 5"):
        check_groups(labels, scores, expected_size=5, strict=BROKEN)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_an_answer_alone_gets_what_the_convention_says(name):
    (advantage,) = advantages_from_scores(f64([3.0]), ["a"], convention=name).tolist()
    expected = {"verl": 3.0 / (1 + 1e-6), "skyrl": 3.0 / (1 + 1e-6)}
    assert advantage == expected.get(name, 0.0)
    (plain,) = advantages_from_scores(f64([3.0]), ["a"], convention=name, norm_adv_by_std_in_grpo=False).tolist()
    assert plain == (3.0 if name in expected else 0.0)


@pytest.mark.parametrize("name", CONVENTIONS)
@pytest.mark.parametrize("score", [0.0, 0.1, 0.35, 0.7, 10.1, 100.1, 1e6 + 0.1, -1 / 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equal_scores_are_exactly_zero(name, score, dtype):
    for size in (2, 3, 5, 8, 31):
        advantages = advantages_from_scores(torch.full((size,), score, dtype=dtype), [0] * size, convention=name)
        assert advantages.tolist() == [0.0] * size


@pytest.mark.parametrize("name", CONVENTIONS)
def test_epsilon_replaces_the_eps_of_the_convention(name):
    scores, labels = f64([0.0, 2.0, 4.0]), [0, 0, 0]
    advantages = advantages_from_scores(scores, labels, convention=name, epsilon=0.5)
    # Mean 2, std 2 with ddof 1 and sqrt(8/3) with ddof 0; 4 stands 3 above its peers {0, 2}, whose std is sqrt(2).
    expected = {"deepseekmath": 2 / (math.sqrt(8 / 3) + 0.5), "nemo_rl": 3 / (math.sqrt(2) + 0.5)}
    plain = 2.0 if CONVENTIONS[name].scale == "none" else 2 / 2.5
    assert advantages[2].item() == pytest.approx(expected.get(name, plain), rel=1e-14)


def test_without_division_every_convention_is_the_distance_from_its_centre():
    scores, labels = f64([0.0, 2.0, 4.0]), [0, 0, 0]
    for name, row in CONVENTIONS.items():
        advantages = advantages_from_scores(scores, labels, convention=name, norm_adv_by_std_in_grpo=False)
        assert advantages.tolist() == ([-3.0, 0.0, 3.0] if row.centre == "peers" else [-2.0, 0.0, 2.0])


def test_an_answer_whose_peers_all_agree_keeps_its_plain_distance():
    # Peers 0.95 x 7: their std is 0; a std of rounding errors would make this 1e7.
    scores = f64([0.95] * 7 + [1.0])
    advantages = advantages_from_scores(scores, [0] * 8, convention="nemo_rl")
    assert advantages[-1].item() == pytest.approx(0.05, rel=1e-12)


def test_peer_statistics_in_small_portions_have_the_same_bits(monkeypatch):
    scores = torch.rand(40, dtype=torch.float64)
    groups = Groups.of([row % 3 for row in range(40)])
    whole = peer_stds(scores, groups, 1)
    monkeypatch.setattr(conventions_module, "_MAX_PAIRS", 40)
    assert torch.equal(peer_stds(scores, groups, 1), whole)


def test_the_distance_from_the_peers_is_the_distance_from_the_mean_stretched():
    moments = Groups.of(["a", "a", "a", "b"]).moments(f64([1.0, 2.0, 6.0, 9.0]))
    # a: mean 3, deviations -2, -1, 3, times 3/2; b has no peers.
    assert peer_deviations(moments).tolist() == [-3.0, -1.5, 4.5, 0.0]


def test_a_convention_of_ones_own_is_a_row():
    population = Convention(ddof=0, eps=0.5, singleton="score")
    advantages = group_relative(f64([0.0, 4.0, 7.0]), Groups.of(["a", "a", "b"]), population)
    # a: mean 2, std 2 (ddof 0), over 2 + 0.5; b alone: 7 / (1 + 0.5).
    assert advantages.tolist() == pytest.approx([-0.8, 0.8, 7 / 1.5], rel=1e-15)


def test_an_unknown_convention_names_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown convention 'vrl'; the nearest is 'verl'; known: deepseekmath"):
        get_convention("vrl")
