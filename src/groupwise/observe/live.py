"""The live view on a terminal. Loaded only there, so that a run in a pipe never imports rich."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions
from rich.live import Live
from rich.text import Text

from groupwise.observe.progress import Progress
from groupwise.observe.text import duration, fixed, sparkline

WIDEST = 100
_LABEL, _VALUE = 10, 8


class LiveView:
    """A few lines at the bottom of the terminal, redrawn in place after every step.

    Nothing runs beside the training: no thread draws, so none can be caught in a fork.
    """

    def __init__(self, progress: Progress, stream: TextIO, width: int | None) -> None:
        self._terminal = _Terminal(
            file=stream, force_terminal=True, width=width, highlight=False, markup=False, emoji=False
        )
        self._live = Live(_Panel(progress), console=self._terminal, auto_refresh=False)

    def start(self) -> None:
        self._live.start(refresh=True)

    def refresh(self) -> None:
        self._live.refresh()

    def stop(self) -> None:
        self._live.stop()

    def line(self, text: str) -> None:
        """Broken between words; a longer word, such as a path, stays whole for the terminal to wrap and the user to
        copy."""
        self._terminal.print(Text(text, overflow="ignore"), crop=False)


class _Terminal(RichConsole):
    def on_broken_pipe(self) -> None:
        # rich would end the program; a terminal that went away is no reason to end a run.
        raise BrokenPipeError


class _Panel:
    """Draws itself for whatever width the terminal has at that moment."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __rich_console__(self, terminal: RichConsole, options: ConsoleOptions) -> Iterator[Text]:
        width = min(options.max_width, WIDEST)
        for line in lines(self._progress, width):
            line.no_wrap, line.overflow = True, "ellipsis"
            line.truncate(width, overflow="ellipsis")
            yield line


def lines(progress: Progress, width: int) -> list[Text]:
    """The view as text, no line longer than `width`."""
    room = max(0, width - _LABEL - _VALUE - 2)
    latest = progress.latest
    reward = progress.rewards[-1] if progress.rewards else None
    accuracy = progress.accuracies[-1] if progress.accuracies else None
    signal, speed = progress.signal, progress.tokens_per_second
    return [
        _bar(progress, width),
        _row("reward", _number(reward), sparkline(progress.rewards, room), "cyan"),
        _row("accuracy", _number(accuracy), sparkline(progress.accuracies, room), "green"),
        _row("signal", "-" if signal is None else f"{signal:.0%}", "of groups teach something"),
        _row("length", _number(latest.get("response_length/mean"), 1), "tokens an answer"),
        _row("speed", "-" if speed is None else f"{speed:,.0f}", "tokens/s"),
    ]


def _bar(progress: Progress, width: int) -> Text:
    left = progress.seconds_left
    right = f" {progress.step}/{progress.total_steps} {progress.share:4.0%}"
    right += "" if left is None else f"  {duration(left)} left"
    room = max(0, width - len(right))
    done = round(progress.share * room)
    return Text.assemble(("█" * done, "green"), ("░" * (room - done), "dim"), right)


def _row(label: str, value: str, rest: str, style: str = "dim") -> Text:
    return Text.assemble((f"{label:<{_LABEL}}", "dim"), (f"{value:>{_VALUE}}", "bold"), "  ", (rest, style))


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else fixed(value, digits)
