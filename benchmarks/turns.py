"""Two measurements that take turns: each in a process of its own, one at work while the other waits.

    players = [Player(command) for command in commands]          # in the parent
    starts = [player.hear() for player in players]
    found = [player.turn() for player in players]                # as often as it likes

    say({"start": 1.2})                                          # in the child
    while is_my_turn():
        say({"seconds": work()})

What else goes on in the machine then meets both alike.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

MARK = "TURN "
_TAIL = 3000


def say(found: dict[str, Any]) -> None:
    """What a child has found in its turn."""
    print(MARK + json.dumps(found), flush=True)


def is_my_turn() -> bool:
    """Wait for it; False when the parent wants no more."""
    return sys.stdin.readline() != ""


class Player:
    """A child of its own; leaving the `with` block ends it."""

    def __init__(self, command: Sequence[str], seconds: float = 600.0) -> None:
        self._command, self._seconds = list(command), seconds
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the child
        # What the shared machine lends to one of them must not depend on which it is: the same environment for all.
        self._child = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def turn(self) -> dict[str, Any]:
        """One turn, and what came of it."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write("go\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            self._fail("ended before its turn")
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """The next thing the child says."""
        try:
            line = self._lines.get(timeout=self._seconds)
        except queue.Empty:
            self._fail(f"said nothing for {self._seconds:g} s")
        if not line:
            self._fail("ended")
        found: dict[str, Any] = json.loads(line.removeprefix(MARK))
        return found

    def leave(self) -> None:
        """No more turns: the child ends, or is ended."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.close()
            self._child.wait(20)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._child.kill()
            self._child.wait()

    def _listen(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith(MARK):
                self._lines.put(line)
        self._lines.put("")

    def _fail(self, why: str) -> None:
        self._child.kill()
        self._child.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace")[-_TAIL:]
        raise RuntimeError(f"{' '.join(self._command)} {why} (code {self._child.returncode}):\n{said}")
