"""Matrix products on a CPU: torch's own choice of library beside oneDNN, for the shapes of a small model's update.

    python benchmarks/products_cpu.py

Float32, torch's own number of threads. GFLOP/s of the three products of a linear layer: forward, and backward for the
input and for the weight. Medians of calls that take turns; a ratio is oneDNN's rate over the other's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from report import RESULTS, publish

from groupwise.policy.products import FEWEST_ROWS, Product, onednn_is_faster

SHAPES = ((64, 128, 384), (FEWEST_ROWS, 128, 384), (2200, 96, 256), (4352, 128, 384), (4352, 384, 128))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--date")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    told = " ".join((__doc__ or "").split("\n\n")[2].split())
    publish(
        "products-cpu",
        "Matrix products on a CPU",
        {"GFLOP/s": [row for shape in SHAPES for row in rows_of(*shape, arguments.repeats)]},
        folder=arguments.out,
        date=arguments.date,
        notes=f"{told}\n\nTaken on this processor: {'oneDNN' if onednn_is_faster() else 'torch’s choice'}.",
    )


def rows_of(rows: int, width: int, out: int, repeats: int) -> list[dict[str, Any]]:
    states, weight, gradient = torch.randn(rows, width), torch.randn(out, width), torch.randn(rows, out)
    products = {
        "forward": (states, weight),
        "of the input": (gradient, weight.t()),
        "of the weight": (gradient.t(), states.t()),
    }
    found = []
    for name, (left, right) in products.items():
        theirs, ours = seconds(
            [lambda a=left, b=right: a @ b.t(), lambda a=left, b=right: Product.apply(a, b, None)], repeats
        )
        operations = 2e-9 * rows * width * out
        row = {"rows x in x out": f"{rows} x {width} x {out}", "product": name}
        found.append(row | {"torch": operations / theirs, "oneDNN": operations / ours, "x torch": theirs / ours})
    return found


def seconds(functions: list[Callable[[], Any]], repeats: int) -> list[float]:
    spent: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats + 3):
        for times, function in zip(spent, functions, strict=True):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
    return [statistics.median(times[3:]) for times in spent]


if __name__ == "__main__":
    main()
