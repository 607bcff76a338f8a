"""A run's parts: what does not fit is refused before any work, and what a step draws depends on its number alone."""

import json
import re

import pytest
import torch

from groupwise.errors import BadValueError, UnknownNameError
from groupwise.overrides import read_overrides
from groupwise.parts import Parts
from groupwise.types import Sampling

SMALL = ("data.train_batch_size=3", "data.val_size=2", "data.max_response_length=4", "rollout.n=2", "model.device=cpu")


def parts(*settings):
    return Parts(read_overrides([*SMALL, *settings])[0])


@pytest.fixture
def data(tmp_path):
    """A file of ten sums, with what is asked for behind them."""

    def write(*more):
        rows = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(10)]
        file = tmp_path / "train.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *more]))
        return f"data.train_files=[{file}]", file

    return write


@pytest.mark.parametrize(
    ("prompt", "settings", "said"),
    [
        ("1" * 40, ["data.max_prompt_length=20"], "has 40 tokens, more than data.max_prompt_length=20; raise it or"),
        ("1" * 254, [], "has 254 tokens; with data.max_response_length=4 that is more than the model's context of 256"),
        ("1" * 300, [], "has a prompt of 300 tokens, and the model's context ends at 256"),
    ],
)
def test_a_prompt_anywhere_in_the_files_that_does_not_fit_is_refused_at_the_start(data, prompt, settings, said):
    setting, file = data({"prompt": prompt, "answer": "1"})
    with pytest.raises(BadValueError, match=rf"{re.escape(f'{file}:11')}'.*{re.escape(said)}"):
        parts(setting, *settings)


def test_the_longest_prompt_that_fits_is_taken(data):
    setting, _ = data({"prompt": "1" * 252, "answer": "1"})
    assert len(parts(setting, "actor.micro_batch_tokens=255").next_prompts(1)) == 3


def test_a_budget_that_cannot_hold_the_longest_answer_is_refused_at_the_start(data):
    setting, _ = data({"prompt": "1" * 30, "answer": "1"})
    with pytest.raises(
        BadValueError, match=r"actor.micro_batch_tokens=32 does not hold a prompt of 30 .* raise it to 33"
    ):
        parts(setting, "actor.micro_batch_tokens=32")
    # two-digit sums: six tokens
    with pytest.raises(BadValueError, match=r"actor.micro_batch_tokens=8 does not hold a prompt of 6 .* raise it to 9"):
        parts("actor.micro_batch_tokens=8")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            "actor.optim.lr_scheduler_type=cosin",
            "unknown actor.optim.lr_scheduler_type 'cosin'; the nearest is 'cosine'",
        ),
        ("algorithm.convention=trll", "unknown algorithm.convention 'trll'; the nearest is 'trl'"),
        ("actor.recipe=grop", "unknown actor.recipe 'grop'; the nearest is 'grpo'"),
        ("actor.loss_agg_mode=token-means", "unknown actor.loss_agg_mode 'token-means'; the nearest is 'token-mean'"),
        ("algorithm.adv_estimator=grop", "the nearest is 'grpo'"),
    ],
)
def test_a_mistyped_name_is_refused_at_the_start(setting, said):
    with pytest.raises(UnknownNameError, match=re.escape(said)):
        parts(setting)


def test_every_prompt_of_a_run_has_a_uid_of_its_own_even_where_it_asks_the_same(tmp_path):
    file = tmp_path / "one.jsonl"
    file.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    run = parts(f"data.train_files=[{file}]")
    uids = [prompt.uid for step in (1, 2, 3) for prompt in run.next_prompts(step)]
    assert uids == ["1-0", "1-1", "1-2", "2-0", "2-1", "2-2", "3-0", "3-1", "3-2"]
    again = parts(f"data.train_files=[{file}]")
    assert [prompt.uid for step in (1, 2, 3) for prompt in again.next_prompts(step)] == uids


def test_a_reference_is_kept_only_where_a_kl_coefficient_is_not_zero():
    def has_reference(*settings):
        return any(name.startswith("updater.reference.") for name in parts(*settings).tensors())

    assert not has_reference()
    assert not has_reference("actor.use_kl_loss=true", "actor.kl_loss_coef=0")
    assert not has_reference("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0")
    assert has_reference("actor.use_kl_loss=true")
    assert has_reference("algorithm.use_kl_in_reward=true")


def test_a_part_of_the_reward_that_an_answer_lacks_is_that_answers_failure(tmp_path):
    (tmp_path / "reward.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info):\n"
        "    parts = {'score': 1.0, 'short': float(len(solution_str) < 3)}\n"
        "    return parts if len(solution_str) == 2 else {**parts, 'digits': float(solution_str.isdigit())}\n"
    )
    run = parts(
        "algorithm.adv_estimator=gdpo",
        "algorithm.gdpo_reward_keys=[short,digits]",
        f"reward.function={tmp_path / 'reward.py'}:score",
        "data.train_batch_size=8",
        "rollout.n=8",
    )
    sampled = run.engine.generate(run.next_prompts(1), 8, Sampling(max_tokens=4, step=1))
    groups = run.reward(sampled)
    answers = [answer for group in groups for answer in group.completions]
    lacking = [len(answer.text) == 2 for answer in answers]
    assert 0 < sum(lacking) < len(answers)
    assert [answer.score is None for answer in answers] == lacking
    said = {answer.failure for answer in answers} - {None}
    assert len(said) == 1
    assert "returned no part 'digits'" in said.pop()
    judged = run.judge(groups)
    assert all(map(torch.isfinite, torch.tensor(judged.advantages)))
    assert any(judged.advantages)
    assert not any(value for value, lacks in zip(judged.advantages, lacking, strict=True) if lacks)
    assert judged.metrics["reward/failed"] == sum(lacking) / len(answers)
