"""Exact statistics per group: hand arithmetic, an order of summation that shows in no bit, and exact zeros."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groupwise.advantages import Groups
from groupwise.advantages import groups as groups_module
from groupwise.advantages.groups import pairwise_sum, sorted_sum, square_root
from groupwise.errors import BadValueError
from oracles import grouping
from samples import f64, same_bits


def test_moments_of_two_groups_by_hand():
    groups = Groups.of(["a", "b", "a", "b", "a"])
    moments = groups.moments(f64([1.0, 10.0, 2.0, 14.0, 6.0]))
    # a: 1, 2, 6: mean 9/3 = 3, deviations -2, -1, 3, squares 4 + 1 + 9 = 14.  b: 10, 14: mean 12, squares 4 + 4 = 8.
    assert moments.means.tolist() == [3.0, 12.0]
    assert moments.deviations.tolist() == [-2.0, -2.0, -1.0, 2.0, 3.0]
    assert moments.square_sums.tolist() == [14.0, 8.0]
    assert moments.rises.tolist() == [0.0, 0.0, 1.0, 4.0, 5.0]
    assert moments.stds().tolist() == [math.sqrt(7.0), math.sqrt(8.0)]
    assert moments.stds(ddof=0).tolist() == [math.sqrt(14 / 3), 2.0]


def test_the_std_is_zero_where_a_group_has_no_more_answers_than_ddof():
    moments = Groups.of(["a", "b", "b", "c", "c", "c"]).moments(f64([5.0, 1.0, 3.0, 0.0, 0.0, 3.0]))
    # c: mean 1, squares 1 + 1 + 4 = 6; over 3 - 2 = 1.
    assert moments.stds(ddof=2).tolist() == [0.0, 0.0, math.sqrt(6.0)]
    assert moments.stds(ddof=1)[0] == 0.0


@given(values=st.lists(st.floats(0, allow_infinity=False) | st.just(math.nan), max_size=20))
def test_a_square_root_is_rounded_correctly_whatever_the_processor(values):
    # The standard library's is: IEEE 754 leaves no choice, and a vectorised library takes one.
    assert same_bits(square_root(f64(values)), f64([math.sqrt(value) for value in values]))


def test_a_square_root_of_another_device_stays_there():
    assert square_root(torch.ones(3, dtype=torch.float64, device="meta")).device.type == "meta"


@pytest.mark.parametrize("score", [0.1, 0.35, 100.1, 1e6 + 0.1, -1e15 / 3, 5e-324])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8, 31, 1000])
def test_equal_values_have_no_spread_in_any_bit(score, size):
    moments = Groups.of([0] * size).moments(f64([score] * size))
    assert moments.deviations.eq(0).all()
    assert moments.stds(0).item() == 0.0
    assert moments.means.item() == score


def test_a_nan_makes_its_group_nan_and_no_other():
    groups = Groups.of(["a", "b", "a", "b"])
    moments = groups.moments(f64([1.0, 2.0, math.nan, 4.0]))
    assert moments.means.isnan().tolist() == [True, False]
    assert moments.rises.isnan().tolist() == [True, False, True, False]
    assert moments.deviations.isnan().tolist() == [True, False, True, False]
    assert moments.stds().isnan().tolist() == [True, False]
    assert moments.means[1] == 3.0


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40), st.data())
def test_the_order_of_the_rows_shows_in_no_bit(values, data):
    labels = data.draw(st.lists(st.sampled_from("abc"), min_size=len(values), max_size=len(values)))
    shuffle = data.draw(st.permutations(range(len(values))))
    there = Groups.of(labels).moments(f64(values))
    here = Groups.of([labels[row] for row in shuffle]).moments(f64([values[row] for row in shuffle]))
    assert torch.equal(here.deviations, there.deviations[list(shuffle)])
    stds = there.groups.spread(there.stds())
    assert torch.equal(here.groups.spread(here.stds()), stds[list(shuffle)])


@given(st.lists(st.integers(-64000, 64000).map(lambda n: n / 64), min_size=2, max_size=40))
def test_moments_agree_with_loops(values):
    moments = Groups.of([0] * len(values)).moments(f64(values))
    assert moments.means.item() == pytest.approx(grouping.mean(values), rel=1e-14, abs=1e-12)
    assert moments.stds().item() == pytest.approx(grouping.std(values, 1), rel=1e-12, abs=1e-12)


@given(st.lists(st.floats(-1e12, 1e12), max_size=70), st.randoms(use_true_random=False))
def test_a_sorted_sum_has_the_same_bits_in_any_order_and_is_the_sum(values, random):
    shuffled = list(values)
    random.shuffle(shuffled)
    total = sorted_sum(f64(values))
    assert torch.equal(total, sorted_sum(f64(shuffled)))
    # log2(128) = 7 additions on the way of each value, each off by at most half an ulp of the sum of magnitudes.
    assert abs(total.item() - math.fsum(values)) <= 7 * 2**-53 * math.fsum(map(abs, values))


def test_zeros_appended_change_no_bit_of_a_pairwise_sum():
    values = torch.rand(4, 8, dtype=torch.float64)
    padded = torch.nn.functional.pad(values, (0, 24))
    assert torch.equal(pairwise_sum(padded), pairwise_sum(values))


def test_sums_per_group_by_hand():
    groups = Groups.of([7, 8, 7, 7, 9])
    assert groups.sum(f64([1.0, 10.0, 2.0, 3.0, -1.0])).tolist() == [6.0, 10.0, -1.0]


def test_tables_hold_each_group_once_in_ascending_order():
    groups = Groups.of(list("aabbbcbb"))
    values = f64([3.0, 1.0, 9.0, 7.0, 8.0, 5.0, 7.0, 6.0])
    found = {}
    for table in groups.tables(values):
        assert table.values[~table.is_real].isnan().all()
        assert table.rows[~table.is_real].eq(groups.num_rows).all()
        for number, row_values, rows, real in zip(table.numbers, table.values, table.rows, table.is_real, strict=True):
            found[groups.labels[number]] = (row_values[real].tolist(), rows[real].tolist())
    # Ties (the two 7s) stay in the order of the batch.
    assert found == {"a": ([1.0, 3.0], [1, 0]), "b": ([6.0, 7.0, 7.0, 8.0, 9.0], [7, 3, 6, 4, 2]), "c": ([5.0], [5])}


def test_order_lists_the_rows_group_by_group():
    groups = Groups.of(["b", "a", "b", "c", "a"])
    assert groups.order.tolist() == [0, 2, 1, 4, 3]
    assert groups.starts.tolist() == [0, 2, 4]
    assert Groups.of(["b", "b", "a"]).order.tolist() == [0, 1, 2]
    assert groups.spread(f64([1.0, 2.0, 3.0])).tolist() == [1.0, 2.0, 1.0, 3.0, 2.0]


@pytest.mark.parametrize("num_groups", [2**16, 2**16 + 1])
def test_the_order_is_right_however_many_groups_there_are(num_groups):
    # Every label once, then the last and the first again.
    labels = [*range(num_groups), num_groups - 1, 0]
    assert Groups.of(labels).order[:4].tolist() == [0, num_groups + 1, 1, 2]
    assert Groups.of(labels).order[-2:].tolist() == [num_groups - 1, num_groups]


def test_taking_rows_drops_empty_groups_and_remembers_the_labelled_sizes():
    groups = Groups.of(["a", "b", "a", "c", "b"]).take(torch.tensor([False, True, False, True, True]))
    assert groups.labels == ["b", "c"]
    assert groups.ids.tolist() == [0, 1, 0]
    assert groups.sizes.tolist() == [2, 1]
    fewer = groups.take(torch.tensor([True, True, False]))
    assert fewer.sizes.tolist() == [1, 1]
    assert fewer.labelled_sizes.tolist() == [2, 1]


def test_selecting_rows_keeps_every_group_and_counts_repeats():
    groups = Groups.of(["a", "b", "a", "c"]).select(torch.tensor([0, 0, 2, 3]))
    assert groups.labels == ["a", "b", "c"]
    assert groups.ids.tolist() == [0, 0, 0, 2]
    assert groups.sizes.tolist() == [3, 0, 1]
    moments = groups.moments(f64([1.0, 2.0, 6.0, 5.0]))
    assert moments.deviations.tolist() == [-2.0, -1.0, 3.0, 0.0]


def test_a_group_made_beforehand_is_used_as_it_is():
    groups = Groups.of(["a", "b"])
    assert Groups.of(groups) is groups
    assert Groups.of(groups, 2) is groups


def test_a_grouping_can_move_between_devices():
    groups = Groups.of(["a", "b", "a"]).take(torch.tensor([True, True, False]))
    moved = groups.to("meta")
    assert moved.device == torch.device("meta")
    assert moved.labels == ["a", "b"]
    assert moved.labelled_sizes.tolist() == [2, 1]
    assert moved.host_ids.tolist() == [0, 1]
    assert groups.to("cpu") is groups


def test_the_copy_to_a_gpu_is_from_pinned_memory_and_does_not_wait(monkeypatch):
    calls = []
    move = torch.Tensor.to

    def pin(tensor):
        calls.append("pin")
        return tensor

    def to(tensor, device, non_blocking=False):
        calls.append((device.type, non_blocking))
        return move(tensor, "cpu")

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", to)
    assert groups_module._to_device(np.array([1, 2]), torch.device("cuda")).tolist() == [1, 2]
    assert calls == ["pin", ("cuda", True)]
    calls.clear()
    groups = Groups.of(["b", "a", "b", "c", "a"], device="cuda")
    assert calls == ["pin", ("cuda", True)]
    assert (groups.ids.tolist(), groups.sizes.tolist()) == ([0, 1, 0, 2, 1], [2, 2, 1])
    assert (groups.order.tolist(), groups.starts.tolist()) == ([0, 2, 1, 4, 3], [0, 2, 4])


@pytest.mark.parametrize("labels", ["a", "aab", "abcde", "aabbccd"])
def test_every_table_of_a_grouping_begins_at_a_multiple_of_16_bytes(labels):
    groups = Groups.of(list(labels))
    tables = (groups.ids, groups.sizes, groups.order, groups.starts)
    assert all(table.is_contiguous() and table.storage_offset() % 2 == 0 for table in tables)


@pytest.mark.parametrize("index", [["a"], ["a", "b", "c"], Groups.of(["a"])])
def test_an_index_of_another_length_is_refused(index):
    with pytest.raises(BadValueError, match=r"index has \d labels for 2 answers; give every answer the uid"):
        Groups.of(index, 2)


def test_no_rows_are_no_groups():
    groups = Groups.of([], 0)
    assert groups.num_groups == 0
    assert groups.moments(f64([])).deviations.tolist() == []
    assert groups.sum(f64([])).tolist() == []
    assert groups.order.tolist() == []
    assert sorted_sum(f64([])).item() == 0.0


def test_statistics_of_a_group_do_not_see_the_other_groups():
    values = torch.rand(5, dtype=torch.float64) * 1e3
    alone = Groups.of([0] * 5).moments(values)
    crowd = torch.cat([torch.rand(100, dtype=torch.float64), values])
    among = Groups.of([*range(1, 101), *[0] * 5]).moments(crowd)
    assert same_bits(among.deviations[100:], alone.deviations)
    assert among.stds()[100] == alone.stds()[0]
