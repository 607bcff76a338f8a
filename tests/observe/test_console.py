"""Plain output line by line, and a live view that fits every terminal."""

import io
import os
import re
import subprocess
import sys

import pytest
from rich.cells import cell_len

from groupwise.config import DataConfig, RolloutConfig, RunConfig, TrainerConfig
from groupwise.observe import Console
from hostile import PAYLOADS

CONFIG = RunConfig(data=DataConfig(train_batch_size=4), rollout=RolloutConfig(n=8))


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


class Broken(io.StringIO):
    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")


def plain(total_steps=100):
    stream, clock = io.StringIO(), Clock()
    return Console(total_steps, stream, clock=clock), stream, clock


def test_plain_output_line_by_line():
    console, stream, clock = plain(total_steps=20)
    console.start(CONFIG)
    clock.now += 5
    console.step({"step": 0, "eval/accuracy": 0.5})
    clock.now += 2
    row = {"reward/mean": 0.25, "groups/no_signal": 0.25, "response_length/mean": 3.5}
    row |= {"actor/entropy": 0.75, "grad_norm": 1.5, "loss": 1e-9}
    console.step({"step": 1, **row, "kl": None})
    clock.now += 2
    console.step({"step": 2, **row, "eval/accuracy": 0.625, "time/tokens_per_second": 1234.4})
    console.finish({"report": "runs/a/report.html", "seconds": 9.0})
    # Step 1: 3.5 tokens x 32 answers / 2 s = 56 tokens/s; 19 steps of 2 s are left.
    expected = """
embedded on sums  |  grpo, 4 prompts x 8 answers  |  20 steps
step  0/20  left       -  reward        -  signal    -  length       -  entropy        -  grad        -  tokens/s       -  accuracy 0.500
step  1/20  left    0:38  reward    0.250  signal  75%  length     3.5  entropy    0.750  grad    1.500  tokens/s      56
step  2/20  left    0:36  reward    0.250  signal  75%  length     3.5  entropy    0.750  grad    1.500  tokens/s    1234  accuracy 0.625
stopped: accuracy 0.500 -> 0.625, step 2 of 20, 0:09
report  runs/a/report.html
seconds  9.000
"""  # noqa: E501
    assert stream.getvalue() == expected.lstrip()


def shown_steps(stream):
    return [int(found) for found in re.findall(r"^step +(\d+)/", stream.getvalue(), re.MULTILINE)]


def test_a_long_run_is_throttled_but_never_silent():
    console, stream, clock = plain(total_steps=1000)
    for step in range(101):
        console.step({"step": step} | ({"eval/accuracy": 0.5} if step % 25 == 0 else {}))
        clock.now += 31 if step in (32, 33) else 0.1
    # The first ten, then every tenth, every evaluation, and whatever comes after 30 seconds of silence.
    assert shown_steps(stream) == [*range(11), 20, 25, 30, 33, 34, 40, 50, 60, 70, 75, 80, 90, 100]
    console.step({"step": 1000})
    assert shown_steps(stream)[-1] == 1000


def test_columns_stay_where_they_are():
    console, stream, _ = plain()
    console.step({"step": 0, "eval/accuracy": 0.5})
    console.step(
        {"step": 7, "reward/mean": -123456.0, "grad_norm": 1e-9, "response_length/mean": 12345.6, "eval/accuracy": 1}
    )
    console.step({"step": 100, "reward/mean": float("nan"), "grad_norm": "?", "groups/no_signal": 1.0})
    first, *others = stream.getvalue().splitlines()
    for line in others:
        for name in ("left", "reward", "signal", "length", "entropy", "grad", "tokens/s"):
            assert line.index(name) == first.index(name)


def test_time_left_of_a_resumed_run_counts_from_where_it_began():
    console, _, clock = plain()
    console.start(CONFIG)
    clock.now += 3
    console.step({"step": 51})
    assert console.progress.seconds_left == 49 * 3


@pytest.mark.parametrize("name", PAYLOADS)
def test_hostile_text_reaches_no_terminal(name):
    text = PAYLOADS[name]
    for terminal in (False, True):
        stream = Terminal()
        console = Console(2, stream, terminal=terminal, width=60)
        console.start(RunConfig(trainer=TrainerConfig(run_dir=text)))
        console.note(text)
        console.step({"step": 1, "reward/mean": text})
        console.finish({"report": text})
        rest = stream.getvalue()
        if terminal:
            rest = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", rest).replace("\r", "")
        assert [char for char in set(rest) if not char.isprintable() and char != "\n"] == []


def live(width, steps=30):
    stream, clock = Terminal(), Clock()
    with Console(steps, stream, terminal=True, width=width, clock=clock) as console:
        console.start(RunConfig(trainer=TrainerConfig(run_dir="runs/first")))
        for step in range(steps + 1):
            clock.now += 1000
            row = {"step": step, "reward/mean": step / steps, "groups/no_signal": 0.25, "response_length/mean": 4e4}
            row["grad_norm"] = 2.5
            console.step(row | ({"eval/accuracy": step / steps} if step % 10 == 0 else {}))
        console.note("a note of several words that is wider than a narrow terminal is")
        console.finish({"report": "runs/first/report.html"})
    return stream.getvalue()


@pytest.mark.parametrize("width", [12, 40, 80, 200])
def test_the_live_view_never_wraps(width):
    written = live(width)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).replace("\r", "\n")
    prose = ("runs/first/report.html",) if width < 22 else ()  # a path stays whole
    too_wide = [line for line in text.split("\n") if cell_len(line.rstrip()) > width and line.strip() not in prose]
    assert too_wide == []


def test_the_live_view_shows_how_it_goes():
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", live(80)).rsplit("\r", 1)[-1]
    lines = [line.rstrip() for line in last.splitlines()]
    assert lines[0] == "█" * (78 - len(" 30/30 100%  0:00 left")) + " 30/30 100%  0:00 left"
    assert lines[1].startswith("reward       1.000  ▁▁")
    assert lines[1].endswith("██  from 0.000")
    assert lines[2] == "accuracy     1.000  ▁▃▆█  from 0.000"  # 0, 1/3, 2/3, 1 of seven: 0, 2.3, 4.7, 7
    assert lines[3] == "entropy          -"
    assert lines[4].startswith("signal         75%  ▄▄")
    assert lines[5] == "grad norm    2.500  before clipping"
    assert lines[6] == "length       40000  tokens an answer"
    assert lines[7] == "speed       20,480  tokens a second"  # 40000 x 512 answers / 1000 s
    assert lines[8] == "done: accuracy 0.000 -> 1.000, step 30 of 30, 8:36:40"


def test_a_narrow_view_keeps_its_curves_and_leaves_out_where_they_began():
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", live(40)).rsplit("\r", 1)[-1]
    assert last.splitlines()[2].rstrip() == "accuracy     1.000  ▁▃▆█"


def test_the_terminal_is_given_back():
    # Nothing is hidden or switched that a run killed by force could not bring back.
    assert not re.search(r"\x1b\[\?[0-9]+[lh]", live(80))
    stream, before = Terminal(), sys.stdout

    def interrupted():
        with Console(3, stream, terminal=True, width=80) as console:
            console.start(CONFIG)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sys.stdout is before


@pytest.mark.parametrize(("terminal", "expected"), [(False, "stopping\n"), (True, "  stopping")])
def test_a_signal_is_answered_at_once(tmp_path, terminal, expected):
    with (tmp_path / "out").open("w+", encoding="utf-8") as stream:
        console = Console(3, stream, terminal=terminal, width=80)
        console.start(CONFIG)
        stream.flush()
        before = stream.tell()
        console.interrupt("stopping")
        stream.seek(before)
        assert stream.read() == expected
        console.close()


def test_a_stream_that_breaks_costs_the_lines_and_not_the_run():
    before = sys.stdout
    for terminal in (False, True):
        with Console(3, Broken(), terminal=terminal, width=80) as console:
            console.start(CONFIG)
            console.step({"step": 1})
            console.note("hello")
            console.finish()
        assert sys.stdout is before


def test_a_stream_that_recovers_is_written_to_again():
    stream = io.StringIO()
    console = Console(3, stream)
    write, stream.write = stream.write, Broken().write
    console.note("lost")
    stream.write = write
    console.note("kept")
    assert stream.getvalue() == "kept\n"


def test_the_kind_of_output_is_found_out(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")

    def escapes(stream):
        with Console(3, stream, width=80) as console:
            console.start(CONFIG)
        return "\x1b" in stream.getvalue()

    class Old(Terminal):
        encoding = "latin-1"

    assert escapes(Terminal())
    assert not escapes(io.StringIO())
    assert not escapes(Old())
    monkeypatch.setenv("TERM", "dumb")
    assert not escapes(Terminal())


def test_a_stream_of_another_encoding_gets_what_it_can_show():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    Console(3, stream).note("für 漢")
    assert raw.getvalue() == rb"f\xfcr \u6f22" + b"\n"


def test_a_run_in_a_pipe_never_imports_rich():
    code = (
        "import sys\n"
        "from groupwise.config import RunConfig\n"
        "from groupwise.observe import Console\n"
        "console = Console(1)\n"
        "console.start(RunConfig())\n"
        "console.step({'step': 1})\n"
        "assert not {'rich', 'torch', 'numpy'} & set(sys.modules)\n"
    )
    plain = {name: value for name, value in os.environ.items() if name != "GROUPWISE_CHECK_SHAPES"}
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd="src", env=plain)
