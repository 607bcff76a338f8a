"""A run folder belongs to one living process."""

import subprocess
import sys

import pytest

from groupwise.errors import BadValueError
from groupwise.store.lock import RunLock

HOLD = """
import sys, time
from pathlib import Path
from groupwise.store.lock import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(folder):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    process = holder(tmp_path)
    with pytest.raises(BadValueError, match="in use by another living process"), RunLock(tmp_path):
        pass
    process.kill()
    process.communicate()
    with RunLock(tmp_path):
        pass


def test_the_lock_is_free_again_afterwards_and_a_program_started_meanwhile_does_not_keep_it(tmp_path):
    with RunLock(tmp_path):
        code = "import time; print('up', flush=True); time.sleep(60)"
        child = subprocess.Popen([sys.executable, "-c", code], close_fds=False, stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "up\n"
    try:
        with RunLock(tmp_path):
            pass
    finally:
        child.kill()
        child.communicate()
