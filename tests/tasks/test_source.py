"""Batches by position: resumable, each epoch a permutation, nothing dropped between epochs."""

import json

import pytest

from groupwise.config import DataConfig
from groupwise.errors import BadValueError
from groupwise.tasks import EpochTasks, GeneratedTasks, PromptSource, tasks_of
from groupwise.types import Task

TEN = [Task(key=f"t{number}", prompt=f"{number}?", answer=str(number)) for number in range(10)]


def keys(tasks):
    return [task.key for task in tasks]


def test_every_epoch_is_a_permutation_of_its_own():
    source = PromptSource(EpochTasks(TEN, seed=0))
    epochs = [keys(source.next_batch(10)) for _ in range(3)]
    assert all(sorted(epoch) == sorted(keys(TEN)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_rest_of_an_epoch_opens_the_next_batch():
    source, in_one = PromptSource(EpochTasks(TEN, seed=0)), PromptSource(EpochTasks(TEN, seed=0))
    batches = [keys(source.next_batch(4)) for _ in range(5)]
    assert [key for batch in batches for key in batch] == keys(in_one.next_batch(20))
    # 4 + 4 + 2 end the first epoch in the middle of the third batch
    assert sorted(batches[0] + batches[1] + batches[2][:2]) == sorted(keys(TEN))
    assert sorted(batches[2][2:] + batches[3] + batches[4]) == sorted(keys(TEN))


def test_without_shuffling_the_order_is_the_files():
    source = PromptSource(EpochTasks(TEN, seed=0, shuffle=False))
    assert keys(source.next_batch(12)) == [*keys(TEN), "t0", "t1"]


def test_a_batch_larger_than_the_data_asks_again():
    assert len(PromptSource(EpochTasks(TEN[:3], seed=0)).next_batch(8)) == 8


@pytest.mark.parametrize("tasks", [lambda: EpochTasks(TEN, seed=1), lambda: GeneratedTasks("sums", 2, seed=1)])
@pytest.mark.parametrize("stopped_after", [0, 1, 3, 7])
def test_resumed_from_its_state_it_goes_on_as_if_never_stopped(tasks, stopped_after):
    whole = PromptSource(tasks())
    expected = [keys(whole.next_batch(3)) for _ in range(9)]
    first = PromptSource(tasks())
    for _ in range(stopped_after):
        first.next_batch(3)
    state = json.loads(json.dumps(first.state()))
    second = PromptSource(tasks())
    second.load_state(state)
    assert [keys(second.next_batch(3)) for _ in range(9 - stopped_after)] == expected[stopped_after:]


def test_seeds_order_differently():
    assert keys(PromptSource(EpochTasks(TEN, seed=0)).next_batch(10)) != keys(
        PromptSource(EpochTasks(TEN, seed=1)).next_batch(10)
    )


def test_a_position_in_other_data_is_refused():
    state = PromptSource(EpochTasks(TEN, seed=0)).state()
    with pytest.raises(BadValueError, match=r"the files or the task changed; bring them back or start a new run"):
        PromptSource(EpochTasks(TEN[:9], seed=0)).load_state(state)


def test_no_tasks_and_no_batch_are_refused():
    with pytest.raises(BadValueError, match=r"data.train_files must hold at least one usable row"):
        EpochTasks([], seed=0)
    with pytest.raises(BadValueError, match=r"data.train_batch_size=0"):
        PromptSource(EpochTasks(TEN, seed=0)).next_batch(0)


def test_default_configuration_asks_sums():
    tasks = tasks_of(DataConfig(), seed=0)
    assert {task.data_source for task in tasks.train.next_batch(32)} == {"sums"}
    assert len(tasks.held_out) == 256
    assert keys(tasks.held_out) == keys(tasks_of(DataConfig(), seed=1).held_out)


def test_configuration_with_files(tmp_path):
    train, val = tmp_path / "train.jsonl", tmp_path / "val.jsonl"
    train.write_text("".join(json.dumps({"prompt": f"{n}?", "answer": n}) + "\n" for n in range(5)))
    val.write_text("".join(json.dumps({"prompt": f"v{n}?", "answer": n}) + "\n" for n in range(30)) + "nonsense\n")
    tasks = tasks_of(DataConfig(train_files=(str(train),), val_files=(str(val),), val_size=10, shuffle=False), seed=0)
    assert [task.answer for task in tasks.train.next_batch(5)] == [0, 1, 2, 3, 4]
    assert [task.answer for task in tasks.listed] == [0, 1, 2, 3, 4]
    # ten of the thirty, from all over the file and in its order
    answers = [task.answer for task in tasks.held_out]
    assert len(answers) == 10
    assert answers == sorted(answers)
    assert answers[-1] > 20
    assert [(bad.file, bad.row) for bad in tasks.bad_rows] == [(str(val), 31)]


def test_files_to_train_on_alone_mean_no_evaluation(tmp_path):
    train = tmp_path / "train.jsonl"
    train.write_text('{"prompt": "1?", "answer": 1}\n')
    assert tasks_of(DataConfig(train_files=(str(train),)), seed=0).held_out == []
    with pytest.raises(BadValueError, match=r"data.val_size=-1"):
        tasks_of(DataConfig(val_size=-1), seed=0)
