"""Every method that keeps something between steps, or takes a path of its own, as a whole run: it learns from what it
should, and killed after its checkpoint and resumed it is the run that was never interrupted."""

import json
import os
import signal

import pytest
from children import on_changes, outcome, prepare, resume, train

REWARD = '''
def parts(data_source, solution_str, ground_truth, extra_info):
    """The share of right digits, and whether there are as many as there should be."""
    right = sum(a == b for a, b in zip(solution_str, ground_truth)) / len(ground_truth)
    return {"score": right, "right": right, "size": float(len(solution_str) == len(ground_truth))}


def steps(data_source, solution_str, ground_truth, extra_info):
    """A reward for every digit, where it ends."""
    found = [[n + 1, float(a == b)] for n, (a, b) in enumerate(zip(solution_str, ground_truth))]
    return {"score": sum(reward for _, reward in found), "step_rewards": found}
'''

METHODS = {
    "remax": ["algorithm.adv_estimator=remax", "actor.recipe=remax"],
    "gdpo": ["algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[right,size]", "reward.function={file}:parts"],
    "optimal_token_baseline": ["algorithm.adv_estimator=optimal_token_baseline", "actor.ppo_mini_batch_size=1"],
    "reinforce_plus_plus": ["algorithm.adv_estimator=reinforce_plus_plus", "rollout.n=1", "data.train_batch_size=12"],
    "grpo_process": ["algorithm.adv_estimator=grpo_process", "reward.function={file}:steps"],
    "running_baseline": ["algorithm.adv_estimator=running_baseline", "data.train_files=[{data}]"],
    "epochs": ["actor.ppo_epochs=2", "actor.ppo_mini_batch_size=1", "actor.micro_batch_tokens=30"],
    "clip_cov": ["actor.recipe=clip_cov", "actor.ppo_epochs=2", "actor.clip_cov_lb=0", "actor.clip_cov_ratio=0.3"],
    "kl_in_loss": [
        "actor.use_kl_loss=true",
        "actor.kl_loss_target=0.01",
        "actor.kl_loss_horizon=50",
        "actor.ref_model_sync_steps=3",
    ],
    "kl_in_reward": [
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_ctrl.type=adaptive",
        "algorithm.kl_ctrl.kl_coef=0.2",
        "algorithm.kl_ctrl.horizon=50",
    ],
}
# A step of these adapts a coefficient, which then has to be another one.
ADAPTIVE = {"kl_in_loss": "kl/loss_coef", "kl_in_reward": "kl/reward_coef"}


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    prepare()
    folder = tmp_path_factory.mktemp("methods")
    file, data = folder / "reward.py", folder / "two.jsonl"
    file.write_text(REWARD)
    # So few questions that every step asks them again: what the running baseline remembers of them counts.
    data.write_text('{"prompt": "12+34=", "answer": "46"}\n{"prompt": "21+40=", "answer": "61"}\n')
    return lambda name: [setting.format(file=file, data=data) for setting in METHODS[name]]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_and_goes_on_where_it_was_killed(settings, name, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    ended = train(whole, *settings(name))
    assert (ended.code, ended.err) == (0, "")
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert all(row["update/skipped"] == 0 and row["reward/failed"] == 0 for row in rows[1:])
    assert any(row["grad_norm"] > 0 for row in rows[1:])
    if name in ADAPTIVE:
        assert len({row[ADAPTIVE[name]] for row in rows[1:]}) > 2

    def killed_in_step_4():
        def act(_):
            if (cut / "rollouts" / "step_000003.parquet").exists():
                os.kill(os.getpid(), signal.SIGKILL)

        on_changes(cut, act)

    assert train(cut, *settings(name), before=killed_in_step_4).code == -signal.SIGKILL
    assert resume(cut).code == 0
    assert outcome(cut) == outcome(whole)


def test_what_cannot_be_meant_and_rows_left_out_are_said_before_the_first_step(tmp_path):
    prepare()
    data = tmp_path / "train.jsonl"
    data.write_text('{"prompt": "12+34=", "answer": "46"}\n' * 3 + "nonsense\n")
    said = train(tmp_path / "run", f"data.train_files=[{data}]", "data.max_bad_rows=0.3", "rollout.top_p=0.9").out
    before = said.partition("step 0")[0]
    assert "rollout.top_p=0.9: answers are drawn from the likeliest tokens alone" in before
    assert f"1 row of the data files is unusable and left out: {data}, row 4: not JSON" in before


def test_a_run_without_held_out_questions_trains_all_the_same(tmp_path):
    prepare()
    assert train(tmp_path / "run", "data.val_size=0").code == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 5
    assert not any(name.startswith("eval/") for row in rows for name in row)
