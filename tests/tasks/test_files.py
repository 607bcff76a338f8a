"""Data files: both schemas, good rows kept, bad ones reported with file and row."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from groupwise.errors import BadValueError
from groupwise.tasks import load_tasks

GOOD = {"prompt": "6*7?", "answer": "42"}
VERL = {
    "data_source": "maths",
    "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6*7?"}],
    "ability": "maths",
    "reward_model": {"style": "rule", "ground_truth": "42"},
    "extra_info": {"index": 3, "split": "train"},
}


def jsonl(path, *lines):
    path.write_bytes(
        b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    )
    return str(path)


def as_parquet(path, *rows):
    parquet.write_table(pa.Table.from_pylist(list(rows)), path)
    return str(path)


@pytest.mark.parametrize("write", [jsonl, as_parquet])
def test_verls_schema(tmp_path, write):
    file = write(tmp_path / ("train.jsonl" if write is jsonl else "train.parquet"), VERL)
    (task,) = load_tasks([file]).tasks
    assert task.prompt == VERL["prompt"]
    assert task.answer == "42"
    assert task.data_source == "maths"
    assert task.extra_info == {"index": 3, "split": "train", "ability": "maths"}
    assert task.key == f"{file}:1"


@pytest.mark.parametrize("write", [jsonl, as_parquet])
def test_the_simple_schema_hands_other_columns_on(tmp_path, write):
    file = write(
        tmp_path / ("train.jsonl" if write is jsonl else "train.parquet"),
        {"prompt": "6*7?", "answer": 42, "level": "easy"},
        {"prompt": "7*7?", "answer": 49, "level": "hard"},
    )
    first, second = load_tasks([file]).tasks
    assert (first.prompt, first.answer, first.data_source, first.extra_info) == ("6*7?", 42, "", {"level": "easy"})
    assert (second.answer, second.extra_info) == (49, {"level": "hard"})


def test_several_files_in_their_order_blank_lines_passed_over(tmp_path):
    first = jsonl(tmp_path / "a.jsonl", {**GOOD, "answer": "a1"}, b"", {**GOOD, "answer": "a3"})
    second = as_parquet(tmp_path / "b.parquet", {**GOOD, "answer": "b1"})
    loaded = load_tasks([first, second])
    assert [task.answer for task in loaded.tasks] == ["a1", "a3", "b1"]
    assert [task.key for task in loaded.tasks] == [f"{first}:1", f"{first}:3", f"{second}:1"]
    assert loaded.bad_rows == []


def test_messages_lose_the_empty_fields_parquet_adds(tmp_path):
    file = as_parquet(
        tmp_path / "train.parquet",
        {"prompt": [{"role": "user", "content": "1?"}], "answer": "1"},
        {"prompt": [{"role": "user", "content": "2?", "name": "ann"}], "answer": "2"},
    )
    assert load_tasks([file]).tasks[0].prompt == [{"role": "user", "content": "1?"}]


BAD_ROWS = [
    (b"not json at all", "not JSON: Expecting value"),
    (b'{"prompt": "6*7?", "answer": "42"', "not JSON"),
    (b'{"prompt": "6*7?", "answer": "4\xff2"}', "not UTF-8 (byte 31)"),
    (b'{"prompt": "6*7?", "answer": NaN}', "not JSON: NaN is not a JSON value"),
    (rb'{"prompt": "6*\ud83d7?", "answer": "42"}', r"half a character, '\ud83d', stands alone in a text"),
    (rb'{"prompt": "6*7?", "answer": "42", "extra_info": {"note": "\udc00"}}', r"half a character, '\udc00'"),
    (b"[" * 100_000, "nested too deeply"),
    (b"[1, 2]", "the row is a list, not an object"),
    (b'"text"', "the row is a str"),
    ({"answer": "42"}, "'prompt' is missing"),
    ({"prompt": None, "answer": "42"}, "'prompt' is missing"),
    ({"prompt": "", "answer": "42"}, "'prompt' is empty"),
    ({"prompt": [], "answer": "42"}, "'prompt' is empty"),
    ({"prompt": 42, "answer": "42"}, "'prompt' is a int; it must be text or a list of chat messages"),
    ({"prompt": ["hello"], "answer": "42"}, "message 0 of 'prompt' is a str"),
    ({"prompt": [{"role": "user"}], "answer": "42"}, "'content' of message 0 of 'prompt' is a NoneType"),
    ({"prompt": [{"role": "user", "content": [{"type": "image"}]}], "answer": "42"}, "'content' of message 0"),
    ({"prompt": "6*7?"}, "'answer' is missing, and so is 'reward_model'"),
    ({"prompt": "6*7?", "answer": None}, "'answer' is missing"),
    ({"prompt": "6*7?", "reward_model": {"style": "rule"}}, "'reward_model.ground_truth' is missing"),
    ({"prompt": "6*7?", "reward_model": "42"}, "'reward_model' is a str, not an object"),
    ({**GOOD, "data_source": 7}, "'data_source' is a int, not text"),
    ({**GOOD, "extra_info": "none"}, "'extra_info' is a str, not an object"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD_ROWS)
def test_a_bad_row_is_skipped_and_reported(tmp_path, bad, reason):
    file = jsonl(tmp_path / "train.jsonl", GOOD, bad, GOOD)
    loaded = load_tasks([file], max_bad_rows=0.5)
    assert [task.key for task in loaded.tasks] == [f"{file}:1", f"{file}:3"]
    (row,) = loaded.bad_rows
    assert (row.file, row.row) == (file, 2)
    assert reason in row.reason
    assert str(row).startswith(f"{file}, row 2: ")


def test_escaped_characters_are_read_whole(tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_bytes(rb'{"prompt": "\ud83d\ude00 \u00e9?", "answer": "42"}')
    assert load_tasks([str(file)]).tasks[0].prompt == "\U0001f600 \u00e9?"


def test_a_bad_row_of_a_parquet_file(tmp_path):
    broken = pa.StringArray.from_buffers(
        3, pa.py_buffer(b"\x00\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00"), pa.py_buffer(b"a\xffc")
    )
    numbers = pa.array([1.5, 2.5, float("nan")])
    file = tmp_path / "train.parquet"
    parquet.write_table(pa.table({"prompt": broken, "answer": numbers}), file)
    loaded = load_tasks([str(file)], max_bad_rows=1.0)
    assert [(task.prompt, task.answer) for task in loaded.tasks] == [("a", 1.5)]
    assert [(row.row, row.reason) for row in loaded.bad_rows] == [
        (2, "not UTF-8 (byte 0 of a text)"),
        (3, "'answer' is nan"),
    ]


def test_the_share_of_bad_rows_is_a_limit(tmp_path):
    file = jsonl(tmp_path / "train.jsonl", *[GOOD] * 19, b"bad")
    assert len(load_tasks([file], max_bad_rows=0.05).bad_rows) == 1
    with pytest.raises(
        BadValueError,
        match=r"data.train_files: 1 of 20 rows are unusable, more than the share "
        r"data.max_bad_rows=0.04 \(.*train.jsonl, row 20: not JSON.*\); mend them or raise",
    ):
        load_tasks([file], max_bad_rows=0.04)
    with pytest.raises(
        BadValueError, match=r"data.max_bad_rows=5: it is a share of the rows; use a number from 0 to 1"
    ):
        load_tasks([file], max_bad_rows=5)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing.jsonl", None, r"data.val_files=.*missing.jsonl: the file cannot be read \(No such file"),
        ("empty.jsonl", b"", r"data.val_files=.*empty.jsonl: there is no usable row; name files that hold"),
        ("blank.jsonl", b"\n\n", r"there is no usable row"),
        ("none.jsonl", b"bad\n", r"there is no usable row \(.*none.jsonl, row 1: not JSON"),
        ("data.csv", b"a,b\n", r"the ending '.csv' is not known; use one of .parquet, .jsonl, .json"),
        ("noise.parquet", b"PAR1 this is no parquet", r"noise.parquet: it is no parquet file, or a damaged one"),
        ("empty.parquet", b"", r"empty.parquet: it is no parquet file, or a damaged one"),
    ],
)
def test_files_that_cannot_be_used_at_all(tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadValueError, match=said):
        load_tasks([str(tmp_path / name)], max_bad_rows=1.0, key="data.val_files")


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "data.jsonl").mkdir()
    with pytest.raises(BadValueError, match=r"the file cannot be read \(Is a directory\)"):
        load_tasks([str(tmp_path / "data.jsonl")])


def test_a_truncated_parquet_file_is_refused(tmp_path):
    file = tmp_path / "train.parquet"
    as_parquet(file, *[GOOD] * 100)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(BadValueError, match=r"it is no parquet file, or a damaged one"):
        load_tasks([str(file)])


def test_the_fingerprint_is_of_the_contents_in_their_order(tmp_path):
    a, b = jsonl(tmp_path / "a.jsonl", GOOD), jsonl(tmp_path / "b.jsonl", {**GOOD, "answer": "43"})
    copy = jsonl(tmp_path / "copy.jsonl", GOOD)
    assert load_tasks([a, b]).fingerprint == load_tasks([copy, b]).fingerprint
    assert load_tasks([a, b]).fingerprint != load_tasks([b, a]).fingerprint
    assert load_tasks([a]).fingerprint != load_tasks([b]).fingerprint
