"""Clocks for the benchmarks: medians of repeated runs, after a warm-up, nothing shared between two runs but the
inputs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

# Keeps the GPU busy while the host queues a whole call behind it: about 2 ms at 2 GHz.
_SPIN_CYCLES = 4_000_000


def wall_ms(function: Callable[[], Any], repeats: int = 9, warmup: int = 2) -> float:
    """From the call until its result is there: what a caller waits."""
    for _ in range(warmup):
        function()
    _synchronize()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        _synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def device_ms(function: Callable[[], Any], repeats: int = 15, warmup: int = 3) -> float:
    """Time on the GPU alone: the call is queued behind a spinning kernel, so the host's own time does not show.

    Only for calls that never wait for the GPU themselves.
    """
    for _ in range(warmup):
        function()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        torch.cuda._sleep(_SPIN_CYCLES)
        start.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def copy_bandwidth(num_bytes: int = 4 << 30) -> float:
    """Bytes per ms, read and written, of a device-to-device copy."""
    source = torch.empty(num_bytes, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * num_bytes / device_ms(lambda: target.copy_(source), repeats=9)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
