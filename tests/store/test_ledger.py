"""The metrics file and the rollouts: strict, in order, cut back on resume."""

import json
import math

import pyarrow.parquet as pq
import pytest

from groupwise.store.ledger import Metrics, forget_rollouts, write_rollouts
from groupwise.types import Completion, Group, Prompt, Task


def group(uid="3-0", **changes):
    answer = Completion((5, 1), (-0.5, -0.1), "stop", "46", 1.0, {"exact": 1.0})
    failed = Completion((5,), (-0.5,), "length", "4", None, {}, "raised ValueError")
    return Group(Prompt(uid, Task("sums/1", changes.get("prompt", "12+34="), "46"), (2, 3)), (answer, failed))


def test_rows_are_strict_json_with_null_for_what_is_not_defined(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.append({"step": 0, "loss": math.nan, "kl": math.inf, "reward/mean": 0.5})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 0, "loss": null, "kl": null, "reward/mean": 0.5}\n'


def test_cutting_back_forgets_the_rows_after_a_checkpoint(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.append({"step": 0})
    size = metrics.size
    metrics.append({"step": 1})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "torn')
    metrics.cut_back(size)
    metrics.append({"step": 1, "again": True})
    assert metrics.rows() == [{"step": 0}, {"step": 1, "again": True}]


def test_a_metrics_file_that_is_missing_or_short_is_not_lengthened(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.cut_back(100)
    assert (metrics.size, metrics.rows()) == (0, [])
    metrics.append({"step": 0})
    metrics.cut_back(10_000)
    assert metrics.rows() == [{"step": 0}]


def test_every_answer_is_a_row_with_its_score_and_advantage(tmp_path):
    write_rollouts(tmp_path / "rollouts", 7, [group(), group("3-1")], [0.5, 0.0, -0.5, 0.25])
    rows = pq.read_table(tmp_path / "rollouts" / "step_000007.parquet").to_pylist()
    assert [row["advantage"] for row in rows] == [0.5, 0.0, -0.5, 0.25]
    assert rows[0] == {
        "step": 7,
        "uid": "3-0",
        "key": "sums/1",
        "prompt": "12+34=",
        "response": "46",
        "score": 1.0,
        "advantage": 0.5,
        "finish_reason": "stop",
        "num_tokens": 2,
        "parts": '{"exact": 1.0}',
        "failure": None,
    }
    assert (rows[1]["score"], rows[1]["failure"]) == (None, "raised ValueError")


def test_chat_prompts_are_kept_as_json(tmp_path):
    messages = [{"role": "user", "content": "é?"}]
    write_rollouts(tmp_path, 1, [group(prompt=messages)], [0.0, 0.0])
    assert json.loads(pq.read_table(tmp_path / "step_000001.parquet").to_pylist()[0]["prompt"]) == messages


def test_the_same_answers_make_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_rollouts(tmp_path / name, 1, [group()], [0.5, -0.5])
    assert (tmp_path / "a/step_000001.parquet").read_bytes() == (tmp_path / "b/step_000001.parquet").read_bytes()


def test_rollouts_of_steps_to_be_repeated_are_removed(tmp_path):
    for name in ("step_000001.parquet", "step_000002.parquet", "step_000010.parquet", "step_x.parquet", "other.txt"):
        (tmp_path / name).touch()
    forget_rollouts(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.txt", "step_000001.parquet", "step_x.parquet"]


@pytest.mark.parametrize("count", [3, 5])
def test_a_wrong_number_of_advantages_is_not_written(tmp_path, count):
    with pytest.raises(ValueError, match="4 answers"):
        write_rollouts(tmp_path, 1, [group(), group("3-1")], [0.0] * count)
