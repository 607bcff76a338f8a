"""Settings that are allowed and probably not meant are said before the first step."""

import pytest

from groupwise.advice import advice, on_bad_rows
from groupwise.overrides import read_overrides
from groupwise.tasks import BadRow


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["data.train_files=[a.jsonl]"], "data.max_response_length=16: answers are cut off after so many tokens"),
        (["model.path=a/b"], "actor.optim.lr=0.0003 suits the small model that comes with the package; pretrained"),
        (["rollout.top_p=0.8"], "rollout.top_p=0.8: answers are drawn from the likeliest tokens alone but trained on"),
        (["rollout.top_k=5"], "rollout.top_k=5: answers are drawn"),
        (["rollout.top_p=0.8", "rollout.top_k=5"], "rollout.top_p=0.8 and rollout.top_k=5: answers are drawn"),
        (
            ["actor.recipe=rloo"],
            "actor.recipe=rloo is published with algorithm.adv_estimator=rloo; this run takes grpo",
        ),
        (["actor.recipe=dr_grpo"], "actor.recipe=dr_grpo is published with algorithm.adv_estimator=dr_grpo; this run"),
        (["actor.use_kl_loss=true", "actor.kl_loss_type=kl"], "actor.kl_loss_type=kl: its gradient is 0 on average"),
        (
            ["actor.ref_model_sync_steps=5"],
            "actor.ref_model_sync_steps=5 renews nothing: without a KL term there is no",
        ),
        (["actor.kl_loss_target=0.1"], "actor.kl_loss_target=0.1 steers nothing: actor.use_kl_loss is off"),
    ],
)
def test_what_is_probably_not_meant_is_said_once(settings, said):
    (line,) = advice(read_overrides(settings)[0])
    assert line.startswith(said)
    assert "\n" not in line


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["model.path=a/b", "actor.optim.lr=1e-6"],
        ["data.train_files=[a.jsonl]", "data.max_response_length=512"],
        ["algorithm.adv_estimator=rloo"],
        ["actor.recipe=dapo"],
        ["actor.recipe=rloo", "algorithm.adv_estimator=rloo_vectorized"],
        ["actor.recipe=dr_grpo", "algorithm.norm_adv_by_std_in_grpo=false"],
        ["actor.use_kl_loss=true", "actor.kl_loss_type=k1+", "actor.ref_model_sync_steps=5"],
        ["actor.use_kl_loss=true", "actor.kl_loss_target=0.1"],
        ["algorithm.use_kl_in_reward=true", "actor.ref_model_sync_steps=5"],
    ],
)
def test_what_is_usual_is_passed_over_in_silence(settings):
    assert advice(read_overrides(settings)[0]) == []


def test_rows_left_out_are_counted_and_the_first_of_them_shown():
    rows = [BadRow("train.jsonl", number, "not JSON") for number in (3, 5, 8, 9)]
    assert on_bad_rows([]) == []
    assert on_bad_rows(rows[:1]) == ["1 row of the data files is unusable and left out: train.jsonl, row 3: not JSON"]
    shown = "; ".join(f"train.jsonl, row {number}: not JSON" for number in (3, 5, 8))
    assert on_bad_rows(rows) == [f"4 rows of the data files are unusable and left out: {shown}; ..."]
