"""Scored groups to advantages: the library's numbers, failures left out, metrics by hand."""

import pytest
import torch

from groupwise.advantages import OUTCOME_ESTIMATORS, advantages_from_scores
from groupwise.config import AlgoConfig
from groupwise.errors import BadValueError, UnknownNameError
from groupwise.judging import Judge
from groupwise.types import Completion, Group, Prompt, Task


def answer(score, tokens=2, finish="stop", **parts):
    return Completion((1,) * tokens, (0.0,) * tokens, finish, "x", score, parts, None if score is not None else "late")


def group(uid, *answers, key="k"):
    return Group(Prompt(uid, Task(key, "?", "a"), (1,)), answers)


def judge(name="grpo", **settings):
    return Judge(AlgoConfig(adv_estimator=name, **settings))


TWO = [
    group("0-0", answer(1.0, 2), answer(0.0, 3), answer(None, 9, "length"), answer(0.0, 2)),
    group("0-1", answer(0.5, 1), answer(0.5, 1)),
]


def test_scores_become_the_advantages_of_the_library_and_a_failure_gets_nothing():
    judged = judge(norm_adv_by_std_in_grpo=False)(TWO)
    # the three that count have mean 1/3; the second group is all equal
    assert judged.advantages == pytest.approx([2 / 3, -1 / 3, 0.0, -1 / 3, 0.0, 0.0])


def test_the_metrics_of_a_step_by_hand():
    metrics = judge(norm_adv_by_std_in_grpo=False)(TWO).metrics
    assert metrics == {
        # one, none, none, a half and a half over five answers
        "reward/mean": pytest.approx(0.4),
        # squared distances 0.36, 0.16, 0.16, 0.01, 0.01 over 5
        "reward/std": pytest.approx((0.70 / 5) ** 0.5),
        "reward/failed": pytest.approx(1 / 6),
        "groups/no_signal": 0.5,
        "advantage/abs_mean": pytest.approx((2 / 3 + 2 / 3) / 6),
        "response_length/mean": 3.0,
        "response_length/max": 9.0,
        "response_length/cut_off": pytest.approx(1 / 6),
    }


def test_a_group_without_signal_does_not_shift_the_groups_after_it():
    groups = [
        group("0", answer(1.0), answer(0.0)),
        group("1", answer(1.0), answer(1.0)),
        group("2", answer(0.0), answer(1.0)),
    ]
    judged = judge(norm_adv_by_std_in_grpo=False)(groups)
    assert judged.advantages == [0.5, -0.5, 0.0, 0.0, -0.5, 0.5]
    assert judged.metrics["groups/no_signal"] == pytest.approx(1 / 3)


def test_the_same_question_asked_twice_is_two_groups():
    groups = [group("0-0", answer(1.0), answer(0.0), key="q"), group("0-1", answer(1.0), answer(1.0), key="q")]
    assert judge(norm_adv_by_std_in_grpo=False)(groups).advantages == [0.5, -0.5, 0.0, 0.0]


def test_settings_reach_the_estimator():
    scores, uids = [1.0, 0.0, 0.0, 0.5, 0.5], ["0", "0", "0", "1", "1"]
    groups = [group("0", *map(answer, scores[:3])), group("1", *map(answer, scores[3:]))]
    trl = judge(convention="trl")(groups).advantages
    assert trl == advantages_from_scores(torch.tensor(scores, dtype=torch.float64), uids, convention="trl").tolist()
    best_of_two = judge("pass_at_k", k=2)(groups).advantages
    assert best_of_two == pytest.approx(advantages_from_scores(scores, uids, "pass_at_k", k=2).tolist(), abs=1e-6)


def test_parts_of_the_reward_reach_gdpo():
    groups = [
        group(
            "0", answer(1.0, style=0.0, right=1.0), answer(1.0, style=1.0, right=0.0), answer(0.0, style=0.0, right=0.0)
        )
    ]
    judged = judge("gdpo", gdpo_reward_keys=("style", "right"), gdpo_reward_weights=(0.0, 1.0))(groups).advantages
    assert judged[0] > 0 > judged[1] == judged[2]


def test_gdpo_without_keys_is_refused():
    with pytest.raises(BadValueError, match=r"needs algorithm\.gdpo_reward_keys"):
        judge("gdpo")(TWO)


def test_the_running_baseline_knows_a_question_across_steps_and_is_state():
    first = judge("running_baseline")
    assert first([group("1-0", answer(1.0), answer(1.0), key="q")]).advantages == [0.0, 0.0]
    again = judge("running_baseline")
    again.load_state(first.state())
    # the question scored 1 so far
    assert again([group("2-0", answer(0.0), answer(1.0), key="q")]).advantages == [-1.0, 0.0]


def test_an_estimator_the_loop_cannot_feed_is_refused_by_name():
    with pytest.raises(BadValueError, match=r"algorithm\.adv_estimator='gae' needs what this loop does not make"):
        judge("gae")


def test_a_mistyped_estimator_names_the_nearest():
    with pytest.raises(UnknownNameError, match="unknown advantage estimator 'grop'; the nearest is 'grpo'"):
        judge("grop")


@pytest.mark.parametrize("name", sorted(OUTCOME_ESTIMATORS))
def test_every_outcome_estimator_can_be_trained_with(name):
    parts = {"gdpo_reward_keys": ("right",)} if name == "gdpo" else {}
    groups = [
        group(str(uid), *(answer(float(score), 1 + score, right=float(score)) for score in (uid % 2, 1, 0, 0)))
        for uid in range(5)
    ]
    advantages = judge(name, **parts)(groups).advantages
    assert len(advantages) == 20
    assert max(advantages[:4]) > 0
