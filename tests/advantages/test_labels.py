"""Labels are equal when Python says so, whatever container they come in."""

from decimal import Decimal
from uuid import UUID

import numpy as np
import pytest
import torch

from groupwise.advantages.labels import number_labels
from groupwise.errors import BadValueError


def ids(index):
    return number_labels(index)[0].tolist()


def test_groups_are_counted_in_order_of_first_appearance():
    numbers, names = number_labels(["b", "a", "b", "c", "a"])
    assert numbers.tolist() == [0, 1, 0, 2, 1]
    assert names == ["b", "a", "c"]


def test_strings_are_never_read_as_numbers():
    assert ids(["007", "7", "7.0", 7, "007"]) == [0, 1, 2, 3, 0]
    assert ids(np.array(["007", "7", "007"])) == [0, 1, 0]
    assert ids(np.array(["1", 1, "1"], dtype=object)) == [0, 1, 0]


def test_an_integer_a_float_and_a_bool_of_one_value_are_one_label():
    assert ids([1, 1.0, True, 0, False, 0.0]) == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    "index",
    [
        [3, 1, 3],
        (3, 1, 3),
        np.array([3, 1, 3]),
        np.array([3, 1, 3], dtype=np.uint8),
        np.array([3.5, 1.5, 3.5], dtype=np.float16),
        np.array(["x", "y", "x"], dtype=object),
        np.array([b"x", b"y", b"x"]),
        np.array(["2026-01-01", "2026-01-02", "2026-01-01"], dtype="datetime64[D]"),
        np.array([True, False, True]),
        torch.tensor([3, 1, 3]),
        torch.tensor([3.0, 1.0, 3.0], dtype=torch.bfloat16),
        torch.tensor([True, False, True]),
        [torch.tensor(3), torch.tensor(1), torch.tensor(3)],
        [torch.tensor(3), 1, np.int64(3)],
        [("a", 1), ("a", 2), ("a", 1)],
        [None, 0, None],
        iter(["x", "y", "x"]),
    ],
    ids=lambda index: type(index).__name__,
)
def test_every_container_and_dtype_gives_the_same_groups(index):
    assert ids(index) == [0, 1, 0]


def test_uuids_group_by_value_not_by_object():
    first, again, other = UUID(int=7), UUID(int=7), UUID(int=8)
    assert first is not again
    assert ids(np.array([first, other, again], dtype=object)) == [0, 1, 0]


def uid(text):
    """Always an object of its own."""
    return "".join(list(text))


@pytest.mark.parametrize("make", [list, lambda labels: np.array(labels, dtype=object)])
def test_runs_of_one_object_are_seen_once_and_change_nothing(make):
    first, second, again = uid("prompt 1"), uid("prompt 2"), uid("prompt 1")
    assert first is not again
    labels = make([first, first, second, second, second, again, first, second])
    numbers, names = number_labels(labels)
    assert numbers.tolist() == [0, 0, 1, 1, 1, 0, 0, 1]
    assert (names[0] is first, names[1] is second) == (True, True)


@pytest.mark.parametrize("step", [1, 2, -1])
def test_a_strided_index_is_read_where_it_stands(step):
    names = [uid(f"prompt {row // 3}") for row in range(20)]
    index = np.array(names, dtype=object)[::step]
    assert ids(index) == ids(list(names)[::step])
    assert ids(np.arange(20)[::step] // 3) == ids((np.arange(20)[::step] // 3).tolist())


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, "U1", "S1"])
def test_equal_neighbours_of_an_array_are_one_label(dtype):
    index = np.array([1, 1, 0, 0, 0, 1]).astype(dtype)
    numbers, names = number_labels(index)
    assert numbers.tolist() == [0, 0, 1, 1, 1, 0]
    assert names == [index[0].item(), index[2].item()]


def test_a_label_is_refused_by_its_row_whatever_runs_stand_before_it():
    nan, unhashable = float("nan"), ["b"]
    for make in (list, lambda labels: np.fromiter(labels, dtype=object)):
        with pytest.raises(BadValueError, match=r"index\[4\] is nan"):
            number_labels(make(["a", "a", "a", "b", nan, nan]))
        with pytest.raises(BadValueError, match=r"index\[3\] is the list \['b'\]"):
            number_labels(make(["a", "a", "a", unhashable, unhashable]))
        tensor = torch.tensor(7)
        assert ids(make([tensor, tensor, 7, torch.tensor(8)])) == [0, 0, 0, 1]
        with pytest.raises(BadValueError, match=r"index\[2\] is nan"):
            number_labels(make([tensor, tensor, torch.tensor(nan)]))


def test_labels_of_any_size_need_no_table_of_that_size():
    numbers, names = number_labels(np.array([10**12, -5, 10**12, 2**62]))
    assert numbers.tolist() == [0, 1, 0, 2]
    assert names == [10**12, -5, 2**62]


def test_no_labels_are_no_groups():
    for empty in ([], np.array([]), torch.empty(0)):
        numbers, names = number_labels(empty)
        assert numbers.tolist() == []
        assert names == []


@pytest.mark.parametrize(
    ("index", "row"),
    [
        (["a", float("nan")], 1),
        (np.array([1.0, 2.0, np.nan]), 2),
        (torch.tensor([torch.nan, 1.0]), 0),
        ([torch.tensor(1.0), torch.tensor(torch.nan)], 1),
        (np.array(["a", np.float64("nan")], dtype=object), 1),
        ([Decimal(1), Decimal("NaN")], 1),
    ],
)
def test_a_nan_label_is_refused_by_row(index, row):
    with pytest.raises(BadValueError, match=rf"index\[{row}\] is .*not equal to itself and so names no group"):
        number_labels(index)


@pytest.mark.parametrize(
    ("index", "row", "kind"),
    [
        (["a", ["b"]], 1, "list"),
        ([{"a": 1}], 0, "dict"),
        (np.array([[1, 2], [3, 4]]), 0, "list"),
        (torch.tensor([[1], [2]]), 0, "list"),
        (["a", "b", ("c", ["d"])], 2, "tuple"),
        ([torch.tensor(1), torch.tensor([1, 2])], 1, "list"),
        ([np.array([1, 2])], 0, "ndarray"),
    ],
)
def test_an_unhashable_label_is_refused_by_row(index, row, kind):
    with pytest.raises(BadValueError, match=rf"index\[{row}\] is the {kind} .*cannot name a group.*one-dimensional"):
        number_labels(index)


@pytest.mark.parametrize("index", [torch.tensor(3), np.array("a"), None, 7, "aabb", b"aabb"])
def test_a_single_value_is_not_an_index(index):
    with pytest.raises(BadValueError, match=r"index is a single value \(.*\); it must hold one label per answer"):
        number_labels(index)


def test_arrays_that_compare_in_a_way_of_their_own_are_read_as_they_are_listed():
    # What a mask hides is listed as None; padded text is compared without its blanks, and listed with them.
    assert number_labels(np.ma.array([1, 1, 2], mask=[0, 1, 0]))[1] == [1, None, 2]
    padded = np.char.array(np.array(["a", "b"]), itemsize=2)
    assert number_labels(padded)[1] == padded.tolist()
