"""A run as it happens: a live view on a terminal, plain lines anywhere else.

It writes to standard output: the progress of a run is what the program has to say, and `groupwise train | tee log`
keeps it, while errors stay alone on standard error.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from groupwise.config import RunConfig
from groupwise.observe.example import most_telling
from groupwise.observe.progress import ACCURACY, ENTROPY, GRAD_NORM, LENGTH, REWARD, Progress
from groupwise.observe.text import BLOCKS, duration, fixed, printable
from groupwise.types import Group

if TYPE_CHECKING:
    from groupwise.observe.live import LiveView

FIRST_STEPS = 10
"""Plain lines: every step up to this one, ..."""
LINES_PER_RUN = 100
"""... then about so many for the rest of the run, every evaluation, ..."""
LONGEST_SILENCE = 30.0
"""... and a line after so many seconds in any case."""


class Console:
    """What a run shows of itself.

        with Console(total_steps=100) as console:
            console.start(config)
            console.step({"step": 1, "reward/mean": 0.5})
            console.finish({"report": "runs/a/report.html"})

    stream: standard output unless given. terminal, width: found out from the stream unless given. A stream that
    breaks (a closed pipe, a full disk) costs the lines, not the run.
    """

    def __init__(
        self,
        total_steps: int,
        stream: TextIO | None = None,
        *,
        terminal: bool | None = None,
        width: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.progress = Progress(total_steps, clock)
        self._stream = sys.stdout if stream is None else stream
        self._is_live = can_be_live(self._stream) if terminal is None else terminal
        self._width = width
        self._clock = clock
        self._view: LiveView | None = None
        self._last_line = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, config: RunConfig) -> None:
        answers = config.data.train_batch_size * config.rollout.n
        self.progress.begin(answers)
        source = ", ".join(config.data.train_files) or config.data.task
        facts = [
            f"{config.model.path} on {source}",
            f"{config.algorithm.adv_estimator}, {config.data.train_batch_size} prompts x {config.rollout.n} answers",
            f"{self.progress.total_steps} steps",
        ]
        if config.trainer.run_dir:
            facts.insert(0, config.trainer.run_dir)
        if self._is_live:
            from groupwise.observe.live import LiveView

            self._view = LiveView(self.progress, self._stream, self._width)
        self._line("  |  ".join(facts))
        if self._view is not None:
            self._attempt(self._view.start)

    def step(self, metrics: Mapping[str, Any]) -> None:
        """One row of metrics.jsonl; any key may be absent."""
        self.progress.update(metrics)
        self._redraw()
        if not self._is_live and self._is_due():
            self._last_line = self._clock()
            self._line(plain_line(self.progress))

    def doing(self, what: str) -> None:
        """What the run is at, until it is at something else or a step is over."""
        self.progress.doing = what
        self._redraw()

    def answers(self, groups: Sequence[Group], advantages: Sequence[float]) -> None:
        """What the model said in this step; advantages: one per answer, in their order."""
        if self._view is not None:
            self.progress.example = most_telling(groups, advantages)

    def note(self, text: str) -> None:
        """A line that stays, above the live view."""
        self._line(text)

    def interrupt(self, text: str) -> None:
        """`note` for the handler of a signal, which may come in the middle of a write: past every buffer and lock.

        On a live view the text stands behind the last line until the view is drawn anew.
        """
        shown = f"  {text}" if self._view is not None else f"{text}\n"
        self._attempt(lambda: os.write(self._stream.fileno(), shown.encode()))

    def finish(self, summary: Mapping[str, Any] | None = None) -> None:
        """The verdict, then one line for each entry of the summary."""
        self.progress.doing = ""
        self.close()
        self._line(_verdict(self.progress))
        for key, value in (summary or {}).items():
            shown = fixed(value) if isinstance(value, float) else str(value)
            self._line(f"{key}  {shown}")

    def close(self) -> None:
        """Gives the terminal back. Safe to call twice; leaving the `with` block calls it."""
        if self._view is not None:
            self._attempt(self._view.stop)

    def _is_due(self) -> bool:
        step, total = self.progress.step, self.progress.total_steps
        every = max(1, total // LINES_PER_RUN)
        return (
            step <= FIRST_STEPS
            or step >= total
            or step % every == 0
            or ACCURACY in self.progress.latest
            or self._clock() - self._last_line >= LONGEST_SILENCE
        )

    def _redraw(self) -> None:
        if self._view is not None:
            self._attempt(self._view.refresh)

    def _line(self, text: str) -> None:
        clean, view = printable(text), self._view
        self._attempt((lambda: self._write(clean)) if view is None else (lambda: view.line(clean)))

    def _write(self, line: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        self._stream.flush()

    @staticmethod
    def _attempt(write: Callable[[], object]) -> None:
        with suppress(OSError):
            write()


def plain_line(progress: Progress) -> str:
    """One step as one line; a column stays where it is whether or not it has a value, an accuracy comes last."""
    latest = progress.latest
    left, signal, speed = progress.seconds_left, progress.signal, progress.tokens_per_second
    places = len(str(progress.total_steps))
    columns = [
        f"step {progress.step:{places}d}/{progress.total_steps}",
        f"left {'-' if left is None else duration(left):>7}",
        f"reward {_or_dash(latest.get(REWARD)):>8}",
        f"signal {'-' if signal is None else f'{signal:.0%}':>4}",
        f"length {_or_dash(latest.get(LENGTH), 1):>7}",
        f"entropy {_or_dash(latest.get(ENTROPY)):>8}",
        f"grad {_or_dash(latest.get(GRAD_NORM)):>8}",
        f"tokens/s {'-' if speed is None else f'{speed:.0f}':>7}",
    ]
    if ACCURACY in latest:
        columns.append(f"accuracy {fixed(latest[ACCURACY])}")
    return "  ".join(columns)


def _verdict(progress: Progress) -> str:
    accuracies, is_over = progress.curves[ACCURACY], progress.step >= progress.total_steps
    change = f"accuracy {fixed(accuracies[0])} -> {fixed(accuracies[-1])}, " if accuracies else ""
    where = f"step {progress.step} of {progress.total_steps}"
    return f"{'done' if is_over else 'stopped'}: {change}{where}, {duration(progress.elapsed)}"


def _or_dash(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else fixed(value, digits)


def can_be_live(stream: TextIO) -> bool:
    """A terminal that moves its cursor and has the characters of the spark-line."""
    if not stream.isatty() or os.environ.get("TERM", "") in ("", "dumb"):
        return False
    try:
        (BLOCKS + "░█·…").encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
