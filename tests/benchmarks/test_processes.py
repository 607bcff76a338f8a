"""What a measurement in a process of its own leaves, however it ends."""

import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from processes import run_child

TELL = f"import sys; sys.path.append({str(Path(__file__).parents[2] / 'benchmarks')!r}); from processes import tell; "


def child(code, seconds=60):
    return run_child([sys.executable, "-c", TELL + code], seconds)


def test_the_last_thing_told_counts():
    assert child("print('noise'); tell({'a': 1}); tell({'a': 2}); print('more noise')") == {"a": 2}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise ValueError('too wide')", "ended with 1: ValueError: too wide"),
        ("class OutOfMemoryError(RuntimeError): pass\nraise OutOfMemoryError('CUDA: 9 GiB')", "out of GPU memory"),
        ("import os; os.kill(os.getpid(), 9)", "ended with -9: "),
        ("pass", "told nothing"),
    ],
)
def test_why_a_child_failed(code, reason, capsys):
    assert child(code) == {"failed": reason}
    assert reason in capsys.readouterr().err


def test_a_child_that_fails_later_leaves_what_it_told(capsys):
    assert child("tell({'a': 1}); print('the cause', file=sys.stderr); sys.exit(3)") == {
        "a": 1,
        "failed": "ended with 3: the cause",
    }
    assert "the cause" in capsys.readouterr().err


def test_a_child_out_of_time_is_ended_with_what_it_started(tmp_path):
    go, survived = tmp_path / "go", tmp_path / "survived"
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.05)\n"
    grandchild = waits + f"pathlib.Path({str(survived)!r}).touch()"
    code = f"import subprocess, time; subprocess.Popen([sys.executable, '-c', {grandchild!r}]); tell({{'a': 1}}); "
    assert child(code + "time.sleep(60)", seconds=2) == {"a": 1, "failed": "not done after 2 s"}
    go.touch()
    time.sleep(0.5)
    assert not survived.exists()
