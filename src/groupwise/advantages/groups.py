"""Which answers compete with which, and exact statistics over them.

`Groups` is what every group-relative estimator is written with:

    groups = Groups.of(["a", "a", "b", "b"])
    moments = groups.moments(scores)                    # float64, two passes
    advantages = moments.deviations / moments.stds()    # one number per row

Every sum is taken in one canonical order: a group's values sorted ascending, then neighbours added pairwise
until one number is left. The bits of a statistic therefore depend on the values of the group alone, not on
the order of the rows, on the other groups of the batch, or on the device. A NaN among a group's values makes
that group's statistics NaN and touches no other group.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from groupwise.advantages import kernels
from groupwise.advantages.labels import number_labels
from groupwise.errors import BadValueError
from groupwise.types import Bool, Float64, Int, Shaped

IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Table:
    """The groups of about one size (their number of answers rounds up to the same power of two), one per row.

    `values` ascend along a row; the places past a group's size hold NaN, and `rows` holds the number of rows
    of the batch there. `is_real` tells the two kinds of place apart.
    """

    numbers: Int[Tensor, "G"]
    sizes: Int[Tensor, "G"]
    rows: Int[Tensor, "G N"]
    is_real: Bool[Tensor, "G N"]
    values: Float64[Tensor, "G N"]


@dataclass(frozen=True)
class Moments:
    """Mean and spread of every group, kept as differences from the group's lowest value.

    Differences first: equal scores give exactly 0 at any magnitude, where a mean of the raw values is off by a
    rounding error that a small standard deviation then blows up to an advantage of 1.
    """

    groups: Groups
    values: Float64[Tensor, "B"]
    lows: Float64[Tensor, "G"]
    mean_rises: Float64[Tensor, "G"]
    square_sums: Float64[Tensor, "G"]

    @cached_property
    def rises(self) -> Float64[Tensor, "B"]:
        """Each value minus the lowest of its group."""
        return self.values - self.groups.spread(self.lows)

    @cached_property
    def deviations(self) -> Float64[Tensor, "B"]:
        """Each value minus the mean of its group."""
        return self.rises - self.groups.spread(self.mean_rises)

    @property
    def means(self) -> Float64[Tensor, "G"]:
        return self.lows + self.mean_rises

    def stds(self, ddof: int = 1) -> Float64[Tensor, "G"]:
        """Square root of the squared deviations' sum over (n - ddof); 0 where n <= ddof."""
        freedom = self.groups.sizes - ddof
        return square_root(self.square_sums * (freedom > 0) / freedom.clamp_min(1))


@dataclass(frozen=True, eq=False)
class Groups:
    """The grouping of a batch. Built once from labels, it serves any number of statistics.

    ids: the group number of each row, counted in order of first appearance. sizes: answers per group. order: the rows,
    group by group, within a group as they stand in the batch. starts: where each group starts in `order`. labels: the
    label of each group, for messages. host_*: the same in host memory, where looking at them never waits for a GPU.
    labelled_sizes: answers per group before `take` left some out, so that a group shrunk by failures is not mistaken
    for one that was never sampled.
    """

    ids: Int[Tensor, "B"]
    sizes: Int[Tensor, "G"]
    order: Int[Tensor, "B"]
    starts: Int[Tensor, "G"]
    labels: list[Hashable]
    host_ids: IntArray
    host_sizes: IntArray
    host_order: IntArray
    host_starts: IntArray
    labelled_sizes: IntArray

    @classmethod
    def of(
        cls,
        index: Groups | Iterable[Any],
        num_rows: int | None = None,
        device: torch.device | str = "cpu",
    ) -> Groups:
        """From one label per answer (tensor, array or sequence); a `Groups` is moved to `device` and returned."""
        if isinstance(index, Groups):
            groups = index.to(device)
        else:
            ids, labels = number_labels(index)
            groups = cls._numbered(ids, labels, torch.device(device))
        if num_rows is not None and groups.num_rows != num_rows:
            raise BadValueError(
                f"index has {groups.num_rows} labels for {num_rows} answers; give every answer the uid of its prompt"
            )
        return groups

    @classmethod
    def _numbered(
        cls, ids: IntArray, labels: list[Hashable], device: torch.device, labelled_sizes: IntArray | None = None
    ) -> Groups:
        sizes = np.bincount(ids, minlength=len(labels))
        on_host = (ids, sizes, _order(ids, len(labels)), np.cumsum(sizes) - sizes)
        asked = sizes if labelled_sizes is None else labelled_sizes
        here, many, rows, starts = _together_to_device(on_host, device)
        return cls(here, many, rows, starts, labels, *on_host, asked)

    @property
    def num_rows(self) -> int:
        return len(self.host_ids)

    @property
    def num_groups(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        return self.ids.device

    @cached_property
    def largest(self) -> int:
        """The number of answers of the largest group."""
        return int(self.host_sizes.max(initial=0))

    def to(self, device: torch.device | str) -> Groups:
        device = torch.device(device)
        same = device.type == self.device.type and device.index in (None, self.device.index)
        return self if same else Groups._numbered(self.host_ids, self.labels, device, self.labelled_sizes)

    def take(self, rows: Bool[Tensor, "B"]) -> Groups:
        """The grouping of the rows marked True; groups without such a row are gone."""
        kept = self.host_ids[rows.cpu().numpy()]
        numbers, ids = np.unique(kept, return_inverse=True)
        labels = [self.labels[number] for number in numbers]
        return Groups._numbered(ids.astype(np.int64), labels, self.device, self.labelled_sizes[numbers])

    def select(self, rows: Int[Tensor, "S"]) -> Groups:
        """The grouping of a list of rows, repeats allowed: the steps of answers, say."""
        ids = self.host_ids[rows.cpu().numpy()]
        return Groups._numbered(ids, self.labels, self.device)

    def a_few_at_a_time(self, num_rows: int) -> Iterator[tuple[Int[Tensor, "S"] | slice, Groups]]:
        """Whole groups of about `num_rows` rows together: which rows they are, and their grouping."""
        step_of_group = self.host_starts // num_rows
        steps = np.unique(step_of_group)
        if len(steps) == 1:
            yield slice(None), self
            return
        step_of_row = step_of_group[self.host_ids]
        for step in steps:
            kept = step_of_row == step
            yield _to_device(np.flatnonzero(kept), self.device), self.take(torch.from_numpy(kept))

    def spread(self, statistic: Shaped[Tensor, "G"]) -> Shaped[Tensor, "B"]:
        """One number per group to one number per row."""
        return statistic[self.ids]

    @cached_property
    def layout(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Per power of two: the numbers of the groups that fit it, their rows, and True where a place is one of them.

        Places past the end of a group hold `num_rows`.
        """
        sizes, starts = self.host_sizes, self.host_starts
        order = np.append(self.host_order, self.num_rows)
        # frexp(n - 1) has the exponent of the power of two at or above n; 0 for a group of one, whose width is 1.
        widths = 2 ** np.frexp(np.maximum(sizes - 1, 0))[1].astype(np.int64)
        layout = []
        for width in np.unique(widths[sizes > 0]):
            numbers = np.flatnonzero((widths == width) & (sizes > 0))
            real = np.arange(width) < sizes[numbers, None]
            places = np.where(real, starts[numbers, None] + np.arange(width), self.num_rows)
            rows = order[places]
            layout.append(
                (_to_device(numbers, self.device), _to_device(rows, self.device), _to_device(real, self.device))
            )
        return layout

    def tables(self, values: Float64[Tensor, "B"]) -> Iterator[Table]:
        """The values of each group, sorted, groups of similar size together."""
        padded = torch.cat([values.double(), values.new_full((1,), torch.nan, dtype=torch.float64)])
        for numbers, rows, is_real in self.layout:
            ordered, places = padded[rows].sort(dim=1, stable=True)
            yield Table(numbers, self.sizes[numbers], rows.gather(1, places), is_real, ordered)

    def sum(self, values: Float64[Tensor, "B"]) -> Float64[Tensor, "G"]:
        total = values.new_zeros(self.num_groups, dtype=torch.float64)
        for table in self.tables(values):
            total[table.numbers] = pairwise_sum(torch.where(table.is_real, table.values, 0.0))
        return total

    def moments(self, values: Float64[Tensor, "B"]) -> Moments:
        """Two passes in float64: the mean of the rises above the lowest value, then the squared deviations."""
        fused = kernels.group_moments(self, values)
        if fused is not None:
            return Moments(self, values, *fused)
        lows, rises, squares = values.new_zeros(3, self.num_groups, dtype=torch.float64)
        for table in self.tables(values):
            low = table.values[:, 0]
            rise = torch.where(table.is_real, table.values - low[:, None], 0.0)
            mean = pairwise_sum(rise) / table.sizes
            deviation = torch.where(table.is_real, rise - mean[:, None], 0.0)
            lows[table.numbers] = torch.where(mean.isnan(), mean, low)
            rises[table.numbers] = mean
            squares[table.numbers] = pairwise_sum(deviation * deviation)
        return Moments(self, values, lows, rises, squares)


def pairwise_sum(table: Float64[Tensor, "G N"]) -> Float64[Tensor, "G"]:
    """Sum along rows whose length is a power of two by adding neighbours. Zeros appended change no bit."""
    while table.shape[1] > 1:
        table = table[:, 0::2] + table[:, 1::2]
    return table[:, 0]


def sums_above(table: Float64[Tensor, "G N"]) -> Float64[Tensor, "G N"]:
    """At every place the sum of the row behind it, by doubling strides: the same additions on every device, where a
    device's own `cumsum` adds in an order of its own."""
    width = table.shape[1]
    sums, stride = pad(table[:, 1:], (0, 1)), 1
    while stride < width:
        sums = sums + pad(sums[:, stride:], (0, stride))
        stride *= 2
    return sums


def square_root(values: Float64[Tensor, "N"]) -> Float64[Tensor, "N"]:
    """Rounded correctly, as IEEE 754 asks and a GPU does. MKL's, which torch calls on a CPU, is not: on some
    processors one root in a hundred ends in another bit."""
    if not values.is_cpu:
        return values.sqrt()
    return torch.from_numpy(np.sqrt(values.numpy()))


def sorted_sum(values: Float64[Tensor, "B"]) -> Float64[Tensor, ""]:
    """The sum of all values in the canonical order, whatever order they come in."""
    width = 1 << max(values.numel() - 1, 0).bit_length()
    table = pad(values.sort().values, (0, width - values.numel()))
    return pairwise_sum(table[None])[0]


def _order(ids: IntArray, num_groups: int) -> IntArray:
    """The rows, group by group; within a group as they stand."""
    if np.all(ids[1:] >= ids[:-1]):
        return np.arange(len(ids))
    # Of 16 bits numpy sorts by counting, ten times as fast.
    return np.argsort(ids.astype(np.uint16) if num_groups <= 1 << 16 else ids, kind="stable")


def _together_to_device(arrays: Sequence[IntArray], device: torch.device) -> list[Tensor]:
    """In one copy. Each begins at a multiple of 16 bytes, as every tensor of its own does: a kernel would be compiled
    a second time for one that does not."""
    lengths = [len(array) for array in arrays]
    starts = [0, *accumulate(length + length % 2 for length in lengths)]
    packed = np.empty(starts[-1], np.int64)
    for array, start, length in zip(arrays, starts, lengths, strict=False):
        packed[start : start + length] = array
    moved = _to_device(packed, device)
    return [moved[start : start + length] for start, length in zip(starts, lengths, strict=False)]


def _to_device(array: np.ndarray[Any, np.dtype[Any]], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
