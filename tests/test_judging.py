"""Scored groups to advantages: the library's numbers, failures left out, metrics by hand."""

import inspect
import json
import math
from dataclasses import replace

import pytest
import torch

from groupwise.advantages import (
    ADV_ESTIMATOR_REGISTRY,
    OUTCOME_ESTIMATORS,
    advantages_from_scores,
    get_adv_estimator_fn,
    register_adv_est,
    register_outcome_estimator,
)
from groupwise.config import AlgoConfig
from groupwise.errors import BadValueError, MissingFieldError, UnknownNameError
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
        judge("gdpo")


def test_a_part_that_no_reward_has_is_refused_with_those_there_are():
    groups = [group("0", answer(1.0, style=0.0, right=1.0), answer(1.0, style=1.0, right=0.0))]
    with pytest.raises(BadValueError, match=r"names 'stile', which the reward function does not return \(right, style"):
        judge("gdpo", gdpo_reward_keys=("style", "stile"))(groups)


def test_the_running_baseline_knows_a_question_across_steps_and_is_state():
    first = judge("running_baseline")
    assert first([group("1-0", answer(1.0), answer(1.0), key="q")]).advantages == [0.0, 0.0]
    again = judge("running_baseline")
    again.load_state(first.state())
    # the question scored 1 so far
    assert again([group("2-0", answer(0.0), answer(1.0), key="q")]).advantages == [-1.0, 0.0]


def test_an_estimator_the_loop_cannot_feed_is_refused_by_name():
    with pytest.raises(BadValueError, match=r"algorithm\.adv_estimator='gae' needs the values of a critic"):
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


class Policies:
    """Log-probabilities that depend on an answer's place alone; the reference's differ by 0.1 per token so far."""

    def log_probs(self, groups, *, reference=False):
        rows = []
        for number, completion in enumerate(answers_of(groups)):
            length = 0 if completion.score is None else len(completion.token_ids)
            rows.append(-(number + 1.0) / 8 - reference * 0.1 * torch.arange(1.0, length + 1.0))
        return rows

    def sum_pi_squared(self, groups):
        return [torch.full_like(row, 0.5) for row in self.log_probs(groups)]


def answers_of(groups):
    return [completion for group in groups for completion in group.completions]


TOKENS = ("reinforce_plus_plus", "remax", "optimal_token_baseline", "tir_optimal_token_baseline", "grpo_process")


def padded(groups):
    """What the library's functions take, row by row, without the answers that failed."""
    counted = [a for a in answers_of(groups) if a.score is not None]
    width = max(len(a.token_ids) for a in counted)
    rewards, mask, log_probs = torch.zeros(3, len(counted), width, dtype=torch.float64)
    numbers = [number for number, a in enumerate(answers_of(groups)) if a.score is not None]
    for row, (number, a) in enumerate(zip(numbers, counted, strict=True)):
        rewards[row, len(a.token_ids) - 1] = a.score
        mask[row, : len(a.token_ids)] = 1
        log_probs[row, : len(a.token_ids)] = -(number + 1.0) / 8
    uids = [g.prompt.uid for g in groups for a in g.completions if a.score is not None]
    return {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "index": uids,
        "old_log_probs": log_probs,
        "sum_pi_squared": 0.5 * mask,
        "step_mask": (rewards != 0) | (mask.cumsum(1) == mask.sum(1, keepdim=True)),
        "reward_baselines": torch.tensor([0.25 if uid == "0-0" else 0.75 for uid in uids], dtype=torch.float64),
        "config": AlgoConfig(gamma=0.5),
    }


@pytest.mark.parametrize("name", TOKENS)
def test_an_estimator_of_tokens_gets_its_inputs_and_a_failed_answer_takes_no_part(name):
    judged = Judge(AlgoConfig(adv_estimator=name, gamma=0.5), Policies(), lambda groups: [0.25, 0.75])(TWO)
    function = get_adv_estimator_fn(name)
    fields = {key: value for key, value in padded(TWO).items() if key in inspect.signature(function).parameters}
    expected, _ = function(**fields)
    rows = iter(expected)
    for completion, tokens, mean in zip(answers_of(TWO), judged.tokens, judged.advantages, strict=True):
        if completion.score is None:
            assert tokens.tolist() == [0.0] * 9
            assert mean == 0.0
        else:
            torch.testing.assert_close(tokens, next(rows)[: len(completion.token_ids)], atol=1e-12, rtol=0)
            assert mean == pytest.approx(tokens.mean().item())
    assert judged.to_learn is judged.tokens


def test_remax_by_hand():
    judged = Judge(AlgoConfig(adv_estimator="remax"), Policies(), lambda groups: [0.25, None])(TWO)
    # The greedy answer scored 0.25; the second prompt's failed, so nothing can be said about the answers to it.
    assert [row.tolist() for row in judged.tokens] == [[0.75] * 2, [-0.25] * 3, [0.0] * 9, [-0.25] * 2, [0.0], [0.0]]
    assert judged.metrics["groups/no_signal"] == 0.5


def test_reinforce_plus_plus_by_hand():
    groups = [group("0", answer(1.0, 2), answer(0.0, 1))]
    judged = judge("reinforce_plus_plus", gamma=0.5)(groups)
    # Returns 0.5, 1 and 0: mean 0.5, variance (0 + 0.25 + 0.25) / 2 = 0.25.
    assert judged.tokens[0].tolist() == pytest.approx([0.0, 1.0], abs=1e-6)
    assert judged.tokens[1].tolist() == pytest.approx([-1.0], abs=1e-6)


def test_a_batch_in_which_every_answer_failed_teaches_nothing():
    groups = [group("0", answer(None), answer(None, 3))]
    for name in ("grpo", *TOKENS):
        judged = Judge(AlgoConfig(adv_estimator=name), Policies(), lambda groups: [0.5])(groups)
        assert judged.advantages == [0.0, 0.0], name
        assert judged.metrics["reward/failed"] == judged.metrics["groups/no_signal"] == 1.0
        assert math.isnan(judged.metrics["reward/mean"])


def test_the_rewards_of_steps_stand_where_their_steps_end():
    def steps(*pairs):
        return replace(answer(1.0, 4), text="abcdef", step_rewards=pairs)

    # Tokens of two letters and an end of sequence: "ab" ends at token 0, "abc" within token 1, the text with the end.
    texts = {1: "ab", 2: "abcd", 3: "abcdef", 4: "abcdef"}
    groups = [group("0", steps((2, 1.0), (6, 3.0)), steps((3, 2.0)))]
    judged = Judge(
        AlgoConfig(adv_estimator="grpo_process", norm_adv_by_std_in_grpo=False), decode=lambda ids: texts[len(ids)]
    )(groups)
    # Step rewards 1, 3 and 2 have mean 2: -1 and 1 of the first answer, 0 of the second; summed from the end.
    assert [row.tolist() for row in judged.tokens] == [[0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]


KL_BY_HAND = {"use_kl_in_reward": True, "kl_ctrl": {"kl_coef": 0.5}, "norm_adv_by_std_in_grpo": False}


def test_a_kl_penalty_in_the_reward_comes_off_the_score_by_hand():
    groups = [group("0", answer(1.0, 2), answer(0.0, 1), answer(None, 4))]
    judged = Judge(AlgoConfig(adv_estimator="grpo", **KL_BY_HAND), Policies())(groups)
    # lp - ref is 0.1, 0.2 at the tokens of the first answer and 0.1 at that of the second: half of 0.3 and of 0.1 is
    # lost. Rewards 0.85 and -0.05 with mean 0.4; the score itself is untouched.
    assert judged.advantages == pytest.approx([0.45, -0.45, 0.0])
    # Mean over answers with tokens of the mean over them: 0.15 and 0.1.
    assert judged.metrics["kl/reward"] == pytest.approx(0.125)
    assert judged.metrics["kl/reward_coef"] == 0.5
    assert judged.metrics["reward/mean"] == 0.5


def test_a_kl_penalty_in_the_reward_of_tokens_by_hand():
    groups = [group("0", answer(1.0, 2), answer(0.0, 1))]
    judged = Judge(AlgoConfig(adv_estimator="remax", **KL_BY_HAND), Policies(), lambda groups: [0.25])(groups)
    # Rewards -0.05, 1 - 0.1 and -0.05; to go: 0.85, 0.9 and -0.05; less 0.25.
    assert judged.tokens[0].tolist() == pytest.approx([0.6, 0.65])
    assert judged.tokens[1].tolist() == pytest.approx([-0.3])


def test_an_adaptive_coefficient_follows_the_kl_and_is_state():
    adaptive = {"type": "adaptive", "kl_coef": 0.5, "target_kl": 0.1, "horizon": 10}
    algorithm = AlgoConfig(adv_estimator="grpo", use_kl_in_reward=True, kl_ctrl=adaptive)
    groups = [group("0", answer(1.0, 2), answer(0.0, 1))]
    first, again = Judge(algorithm, Policies()), Judge(algorithm, Policies())
    assert first(groups).metrics["kl/reward_coef"] == 0.5
    again.load_state(json.loads(json.dumps(first.state())))
    # KL 0.125 is a quarter above the target, held at a fifth; two answers of a horizon of ten: 0.5 * (1 + 0.2 * 0.2).
    assert again(groups).metrics["kl/reward_coef"] == pytest.approx(0.52)
    assert again.state() == {**first.state(), "kl": again.state()["kl"]}


def test_a_kl_penalty_without_weight_asks_for_no_log_probs():
    algorithm = AlgoConfig(adv_estimator="grpo", use_kl_in_reward=True, kl_ctrl={"kl_coef": 0.0})
    assert "kl/reward" not in Judge(algorithm)(TWO).metrics


@pytest.mark.parametrize("name", ["gdpo", "grpo_process"])
def test_a_kl_penalty_that_would_reach_nothing_is_refused(name):
    with pytest.raises(BadValueError, match=rf"reaches nothing under algorithm\.adv_estimator='{name}'"):
        judge(name, use_kl_in_reward=True, gdpo_reward_keys=("right",))


def test_a_mistyped_kl_penalty_is_refused_at_the_start():
    with pytest.raises(UnknownNameError, match="unknown KL penalty 'low_var'; the nearest is 'low_var_kl'"):
        judge(use_kl_in_reward=True, kl_penalty="low_var")


@pytest.fixture
def _registries():
    before = dict(OUTCOME_ESTIMATORS), dict(ADV_ESTIMATOR_REGISTRY)
    yield
    for registry, names in zip((OUTCOME_ESTIMATORS, ADV_ESTIMATOR_REGISTRY), before, strict=True):
        registry.clear()
        registry.update(names)


@pytest.mark.usefixtures("_registries")
def test_an_estimator_of_the_users_own_in_verls_signature():
    @register_adv_est("first_token")
    def first_token(token_level_rewards, response_mask, index, style, config=None, **kwargs):
        assert response_mask.dtype == torch.long
        assert index.tolist() == ["0", "0"]
        assert style.tolist() == [0.5, 0.25]
        advantages = torch.zeros_like(token_level_rewards)
        advantages[:, 0] = token_level_rewards.sum(-1) * config.gamma
        return advantages, advantages

    groups = [group("0", answer(1.0, 2, style=0.5), answer(None, 4), answer(-1.0, 3, style=0.25))]
    judged = judge("first_token", gamma=0.5)(groups)
    assert [row.tolist() for row in judged.tokens] == [[0.5, 0.0], [0.0] * 4, [-0.5, 0.0, 0.0]]


@pytest.mark.usefixtures("_registries")
def test_an_estimator_of_the_users_own_on_scores():
    @register_outcome_estimator("raw")
    def raw(scores, groups, *, gamma, lengths):
        return scores * gamma / lengths

    judged = judge("raw", gamma=0.5)(TWO)
    assert judged.advantages == [0.25, 0.0, 0.0, 0.0, 0.25, 0.25]
    assert judged.tokens is None


@pytest.mark.usefixtures("_registries")
def test_a_field_that_nobody_has_is_asked_for_by_name():
    @register_adv_est("needy")
    def needy(token_level_rewards, response_mask, teacher_log_probs):
        raise AssertionError

    with pytest.raises(MissingFieldError, match="estimator 'needy' needs 'teacher_log_probs'"):
        judge("needy")(TWO)
