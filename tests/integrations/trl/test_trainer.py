"""Groupwise's advantages in a real GRPOTrainer: what TRL computes itself stands beside it in every run."""

import pytest
import torch

from groupwise.advantages import RunningBaseline, advantages_from_scores
from groupwise.errors import BadValueError, NonFiniteScoreError, UnknownNameError, UnsupportedVersionError
from groupwise.integrations.trl import GroupRelativeAdvantages, GroupwiseGRPOTrainer
from integrations.trl.tiny import Both, rewarding

BINARY = [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0]
GROUPS = [0, 0, 0, 0, 1, 1, 1, 1]


def test_binary_rewards_get_trls_own_advantages(make_trainer):
    trainer = make_trainer(Both, rewarding(*BINARY))
    trainer.train()
    # std of (1, 0, 1, 0) is 0.57735, of (0, 0, 0, 1) 0.5: 0.5 / 0.57745 and -0.25 / 0.5001, 0.75 / 0.5001.
    expected = torch.tensor([0.865875, -0.865875, 0.865875, -0.865875, -0.49990, -0.49990, -0.49990, 1.49970])
    torch.testing.assert_close(trainer.ours[0], expected, rtol=0, atol=1e-5)
    # TRL's float32 statistics are good to a few units in the last place here.
    torch.testing.assert_close(trainer.ours[0], trainer.theirs[0], rtol=0, atol=1e-6)
    assert trainer.ours[0].dtype == trainer.theirs[0].dtype == torch.float32


def test_the_advantages_reach_the_loss_and_the_log(make_trainer):
    seen = []

    class Spy(Both):
        def _compute_loss(self, model, inputs):
            seen.append(inputs["advantages"].clone())
            return super()._compute_loss(model, inputs)

    trainer = make_trainer(Spy, rewarding(*BINARY), advantage_options={"convention": "deepseekmath"})
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()
    assert sorted(seen[0].tolist()) == sorted(trainer.ours[0].tolist())
    torch.testing.assert_close(torch.tensor(trainer.logged[0]), trainer.ours[0], rtol=0, atol=1e-7)
    # ddof 0 and eps 0: exactly one standard deviation from the mean.
    assert seen[0].abs().max() > 1.7
    assert any(not torch.equal(old, new) for old, new in zip(before, trainer.model.parameters(), strict=True))


def test_equal_rewards_get_exactly_zero_where_trl_scales_up_a_rounding_error(make_trainer):
    trainer = make_trainer(Both, rewarding(*[100.1] * 8), num_generations=8)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()
    assert trainer.ours[0].tolist() == [0.0] * 8
    assert trainer.theirs[0].abs().max() > 0.01
    assert trainer.our_share == [1.0]
    assert trainer.their_share == [0.0]
    assert all(torch.equal(old, new) for old, new in zip(before, trainer.model.parameters(), strict=True))


def test_the_metric_counts_equal_groups_among_others(make_trainer):
    trainer = make_trainer(Both, rewarding(*[0.35] * 4, 1.0, 0.0, 0.0, 0.0))
    trainer.train()
    assert trainer.our_share == [0.5]
    assert trainer.ours[0][:4].tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        ("dr_grpo", {}),
        ("rloo", {}),
        ("maxrl", {}),
        ("gpg", {}),
        ("grpo_passk", {}),
        ("pass_at_k", {"k": 2}),
        ("shrinkage", {}),
        ("grpo", {"convention": "nemo_rl"}),
        ("grpo", {"convention": "trl", "epsilon": 0.5}),
    ],
)
def test_other_estimators_get_through(make_trainer, estimator, options):
    trainer = make_trainer(Both, rewarding(*BINARY), advantage_estimator=estimator, advantage_options=options)
    trainer.train()
    expected = advantages_from_scores(BINARY, GROUPS, estimator, **options)
    torch.testing.assert_close(trainer.ours[0], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("estimator", ["opo", "reinforce_plus_plus_baseline"])
def test_estimators_that_weigh_tokens_get_the_lengths_of_the_completions(make_trainer, estimator):
    trainer = make_trainer(Both, rewarding(*BINARY), advantage_estimator=estimator)
    trainer.train()
    lengths = trainer.lengths[0]
    assert len(set(lengths.tolist())) > 1
    expected = advantages_from_scores(BINARY, GROUPS, estimator, lengths=lengths)
    torch.testing.assert_close(trainer.ours[0], expected, rtol=1e-6, atol=1e-7)


def test_rewards_are_weighted_and_summed(make_trainer):
    second = [3.0, 1.0, 2.0, 0.0, 5.0, 1.0, 1.0, 1.0]
    trainer = make_trainer(Both, [rewarding(*BINARY), rewarding(*second)], trl={"reward_weights": [1.0, 0.5]})
    trainer.train()
    torch.testing.assert_close(trainer.ours[0], trainer.theirs[0], rtol=0, atol=1e-6)
    summed = [first + 0.5 * other for first, other in zip(BINARY, second, strict=True)]
    expected = advantages_from_scores(summed, GROUPS, convention="trl")
    torch.testing.assert_close(trainer.ours[0], expected, rtol=0, atol=1e-7)


def test_scale_rewards_none_is_obeyed(make_trainer):
    trainer = make_trainer(Both, rewarding(*BINARY), trl={"scale_rewards": "none"})
    trainer.train()
    assert trainer.ours[0].tolist() == [0.5, -0.5, 0.5, -0.5, -0.25, -0.25, -0.25, 0.75]
    torch.testing.assert_close(trainer.ours[0], trainer.theirs[0], rtol=0, atol=1e-7)


def test_gdpo_normalises_every_reward_function_by_itself(make_trainer):
    second = [300.0, 100.0, 200.0, 0.0, 500.0, 100.0, 100.0, 100.0]
    trainer = make_trainer(
        Both,
        [rewarding(*BINARY), rewarding(*second)],
        trl={"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [1.0, 2.0]},
        advantage_estimator="gdpo",
    )
    trainer.train()
    expected = advantages_from_scores(
        BINARY, GROUPS, "gdpo", parts=[BINARY, second], weights=[1.0, 2.0], lengths=trainer.lengths[0]
    )
    torch.testing.assert_close(trainer.ours[0], expected, rtol=1e-6, atol=1e-7)
    # TRL's own, whose last normalisation counts answers where ours counts their tokens, points the same way.
    assert torch.corrcoef(torch.stack([trainer.ours[0], trainer.theirs[0]]))[0, 1] > 0.99


def test_unscorable_completions_take_no_part_and_get_zero(make_trainer):
    rewards = [1.0, None, 0.0, 0.0, None, None, None, 1.0]
    trainer = make_trainer(Both, rewarding(*rewards))
    trainer.train()
    # (1, 0, 0): mean 1/3, std 0.57735. The second group has one answer left: nobody to compare it with.
    expected = torch.tensor([1.154501, 0.0, -0.577250, -0.577250, 0.0, 0.0, 0.0, 0.0])
    torch.testing.assert_close(trainer.ours[0], expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(trainer.ours[0], trainer.theirs[0], rtol=0, atol=1e-6)
    assert trainer.our_share == [0.5]
    # TRL's std of one answer is NaN, which it does not count as zero.
    assert trainer.their_share == [0.0]


def test_a_function_that_scores_only_some_completions_adds_nothing_to_the_others(make_trainer):
    trainer = make_trainer(Both, [rewarding(*BINARY), rewarding(None, 1.0, *[None] * 6)])
    trainer.train()
    torch.testing.assert_close(trainer.ours[0], trainer.theirs[0], rtol=0, atol=1e-6)
    assert trainer.ours[0][1] == trainer.ours[0][0] > 0


def test_gdpo_refuses_a_function_that_scores_only_some_completions(make_trainer):
    functions = [rewarding(*BINARY), rewarding(None, 1.0, *[0.0] * 6)]
    trainer = make_trainer(Both, functions, advantage_estimator="gdpo")
    with pytest.raises(BadValueError, match="'reward' returned None for row 0, which another function scored"):
        trainer.train()


def test_an_infinite_reward_is_refused_with_its_row(make_trainer):
    trainer = make_trainer(Both, rewarding(0.0, 1.0, float("inf"), *[0.0] * 5))
    with pytest.raises(NonFiniteScoreError, match="1 of 8 completions have an infinite reward, the first in row 2"):
        trainer.train()


def test_evaluation_judges_in_groups_of_its_own_size(make_trainer):
    trainer = make_trainer(Both, rewarding(*BINARY), trl={"num_generations_eval": 2})
    trainer.evaluate()
    torch.testing.assert_close(trainer.ours[0], trainer.theirs[0], rtol=0, atol=1e-6)
    # Pairs (1, 0), (1, 0), (0, 0), (0, 1).
    assert [value != 0 for value in trainer.ours[0].tolist()] == [True] * 4 + [False] * 2 + [True] * 2
    assert trainer.our_share[0] == 0.25


def test_evaluation_with_one_answer_per_prompt_is_zero(make_trainer):
    trainer = make_trainer(Both, rewarding(*BINARY), trl={"num_generations_eval": 1})
    trainer.evaluate()
    assert trainer.ours[0].abs().max() == 0
    assert trainer.our_share[0] == 1.0


def test_a_running_baseline_remembers_prompts_in_training_and_not_in_evaluation(make_trainer):
    baseline = RunningBaseline()
    trainer = make_trainer(
        Both,
        rewarding(*BINARY),
        trl={"max_steps": 4},
        advantage_estimator="running_baseline",
        advantage_options={"baseline": baseline},
    )
    trainer.evaluate()
    assert baseline.means == {}
    trainer.train()
    assert set(baseline.means) == {repr(prompt) for prompt in ("ab", "cd", "ef", "gh")}
    assert all(count >= 4 for count in baseline.counts.values())


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"advantage_estimator": "grop"}, UnknownNameError, "unknown outcome estimator 'grop'; the nearest is 'grpo'"),
        ({"advantage_estimator": "gae"}, BadValueError, "estimator 'gae' judges tokens, not answers"),
        ({"advantage_options": {"k": 2}}, UnknownNameError, "unknown option of estimator 'grpo': 'k'"),
        ({"advantage_estimator": "running_baseline"}, BadValueError, "needs the option baseline="),
        ({"trl": {"scale_rewards": "batch"}}, BadValueError, "scale_rewards='batch' divides by the spread of all"),
        (
            {"trl": {"multi_objective_aggregation": "normalize_then_sum"}},
            BadValueError,
            "'normalize_then_sum' is GDPO, but advantage_estimator is 'grpo'",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_before_training(make_trainer, kwargs, error, message):
    with pytest.raises(error, match=message):
        make_trainer(GroupwiseGRPOTrainer, rewarding(*BINARY), **kwargs)


def test_a_trl_that_computes_rewards_elsewhere_is_refused(make_trainer):
    class Elsewhere(Both):
        def _calculate_rewards(self, *args):
            rewards = super()._calculate_rewards(*args)
            self._gathered_rewards = None
            return rewards

    with pytest.raises(UnsupportedVersionError, match=r"install trl==1\.16\.0"):
        make_trainer(Elsewhere, rewarding(*BINARY)).train()


def test_the_ready_trainer_is_the_mixin_on_trls(make_trainer):
    trainer = make_trainer(GroupwiseGRPOTrainer, rewarding(*BINARY))
    assert isinstance(trainer, GroupRelativeAdvantages)
    assert trainer.advantage_options == {"convention": "trl"}
    trainer.train()
    expected = advantages_from_scores(BINARY, GROUPS, convention="trl")
    torch.testing.assert_close(torch.tensor(list(trainer._logs["advantages"])), expected, rtol=0, atol=1e-6)
