"""A measurement in a process of its own: it says what it found, line by line, and the parent keeps the last line.

    found = run_child([sys.executable, __file__, "--child", "ours"], seconds=240)   # in the parent
    tell({"steps": [1.9]})                                                          # in the child, as often as it likes

A child that fails, or is not done in time, leaves what it told so far, and `failed` says why it ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MARK = "RESULT "
_TAIL_LINES, _TAIL_CHARACTERS = 40, 4000
_OUT_OF_MEMORY = "OutOfMemoryError"


def tell(result: dict[str, Any]) -> None:
    """What is known by now; each call takes the place of the one before."""
    print(MARK + json.dumps(result), flush=True)


def run_child(command: Sequence[str], seconds: float) -> dict[str, Any]:
    """The last thing the child told; with `failed` where it did not end well. The end of what it wrote to standard
    error is then shown on ours."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        with out.open("wb") as out_file, err.open("wb") as err_file:
            # A session of its own, so that whatever the child started ends with it.
            child = subprocess.Popen(list(command), stdout=out_file, stderr=err_file, start_new_session=True)
            try:
                code: int | None = child.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(child)
        complaints = err.read_text(errors="replace")
        lines = [line for line in out.read_text(errors="replace").splitlines() if line.startswith(MARK)]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix(MARK)) if lines else {}
    if code == 0 and lines:
        return found
    found["failed"] = _why(code, complaints, seconds)
    print(f"{' '.join(command)}: {found['failed']}\n{_tail(complaints)}", file=sys.stderr, flush=True)
    return found


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    child.wait()


def _why(code: int | None, complaints: str, seconds: float) -> str:
    if code is None:
        return f"not done after {seconds:g} s"
    if _OUT_OF_MEMORY in complaints:
        return "out of GPU memory"
    if code == 0:
        return "told nothing"
    last = next((line for line in reversed(complaints.splitlines()) if line.strip()), "")
    return f"ended with {code}: {last.strip()[:200]}"


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-_TAIL_LINES:])[-_TAIL_CHARACTERS:]
