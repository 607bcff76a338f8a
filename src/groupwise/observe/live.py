"""The live view on a terminal. Loaded only there, so that a run in a pipe never imports rich."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions
from rich.live import Live
from rich.text import Text

from groupwise.observe.example import Example, Said
from groupwise.observe.progress import ACCURACY, ENTROPY, GRAD_NORM, LENGTH, NO_SIGNAL, REWARD, Progress
from groupwise.observe.text import duration, fixed, middle_cut, printable, sparkline

WIDEST = 78
"""Lines that a terminal made narrower would break leave marks on it; few are made narrower than this."""
_WIDE, _LABEL, _VALUE = 60, 10, 8


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
    def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002
        # rich would hide it, and a run that is killed could not bring it back.
        return False

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
    latest, curves, signal = progress.latest, progress.curves, progress.signal
    taught = [1.0 - share for share in curves[NO_SIGNAL]]
    return [
        _bar(progress, width),
        _curve("reward", curves[REWARD], width, "cyan"),
        _curve("accuracy", curves[ACCURACY], width, "green"),
        _curve("entropy", curves[ENTROPY], width, "yellow"),
        _curve("signal", taught, width, "magenta", "-" if signal is None else f"{signal:.0%}"),
        _row("grad norm", _number(latest.get(GRAD_NORM)), "before clipping"),
        _row("length", _number(latest.get(LENGTH), 1), "tokens an answer"),
        _row("speed", _speed(progress.tokens_per_second), "tokens a second"),
        *_example(progress.example, width),
        *([_row("now", "", progress.doing)] if progress.doing else []),
    ]


def _bar(progress: Progress, width: int) -> Text:
    left = progress.seconds_left
    right = f" {progress.step}/{progress.total_steps} {progress.share:4.0%}"
    right += "" if left is None else f"  {duration(left)} left"
    room = max(0, width - len(right))
    done = round(progress.share * room)
    return Text.assemble(("█" * done, "green"), ("░" * (room - done), "dim"), right)


def _curve(label: str, values: list[float], width: int, style: str, value: str | None = None) -> Text:
    """The latest value, how it came to it, and where it began."""
    if not values:
        return _row(label, "-", "")
    begun = f"  from {_number(values[0])}" if len(values) > 1 and width >= _WIDE else ""
    room = max(0, width - _LABEL - _VALUE - 2 - len(begun))
    row = _row(label, value or _number(values[-1]), sparkline(values, room), style)
    return row.append(begun, "dim")


def _example(example: Example | None, width: int) -> list[Text]:
    """A prompt of the last step and what the model made of it, with the advantages."""
    if example is None:
        return []
    room = max(1, width - _LABEL)
    prompt = Text.assemble((f"{'prompt':<{_LABEL}}", "dim"), middle_cut(printable(example.prompt), room))
    return [prompt, _said("best", example.best, width, "green"), _said("worst", example.worst, width, "red")]


def _said(label: str, said: Said, width: int, style: str) -> Text:
    room = max(1, width - _LABEL - _VALUE - 2)
    return _row(label, f"{said.advantage:+.2f}", middle_cut(printable(said.text), room), style)


def _row(label: str, value: str, rest: str, style: str = "dim") -> Text:
    return Text.assemble((f"{label:<{_LABEL}}", "dim"), (f"{value:>{_VALUE}}", "bold"), "  ", (rest, style))


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else fixed(value, digits)


def _speed(tokens: float | None) -> str:
    return "-" if tokens is None else f"{tokens:,.0f}"
