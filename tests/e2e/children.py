"""Runs in forked children, so that they can be killed at a chosen write without starting Python anew each time."""

import json
import os
import signal
import sys
from pathlib import Path

import torch

from groupwise.config import ModelConfig
from groupwise.overrides import read_overrides
from groupwise.parts import EMBEDDED
from groupwise.policy import load_policy
from groupwise.running import resume_run, start_run
from groupwise.store.folder import is_run

_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree"}


def in_child(work):
    """Fork, run `work` there, and give back how it ended: an exit code, or minus a signal."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def settings(run_dir, *more):
    small = [
        "data.train_batch_size=3",
        "data.val_size=4",
        "data.val_n=2",
        "data.max_response_length=4",
        "rollout.n=4",
        "trainer.num_threads=1",
        "trainer.total_training_steps=4",
        "trainer.save_freq=2",
        "trainer.test_freq=2",
        "trainer.max_ckpt_to_keep=1",
        f"trainer.run_dir={run_dir}",
    ]
    return read_overrides([*small, *more])[0]


def start_or_resume(run_dir, *more):
    return resume_run(run_dir, []) if is_run(run_dir) else start_run(settings(run_dir, *more))


def killed_at_write(run_dir, number):
    """Work that ends by SIGKILL just before its `number`-th change to a file or folder of the run."""

    def work():
        seen = 0

        def watch(event, arguments):
            nonlocal seen
            if event == "open":
                changes = isinstance(arguments[2], int) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
            else:
                changes = event in _CHANGES
            path = arguments[0] if arguments else None
            if changes and isinstance(path, str | os.PathLike) and str(path).startswith(str(run_dir)):
                seen += 1
                if seen == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        return start_or_resume(run_dir)

    return work


def outcome(run_dir):
    """Everything a run leaves that must not depend on whether it was interrupted."""
    run_dir = Path(run_dir)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    kept = [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]
    files = [*run_dir.glob("rollouts/*"), *run_dir.glob("model/*"), *run_dir.glob("checkpoints/*/state.safetensors")]
    return kept, {str(path.relative_to(run_dir)): path.read_bytes() for path in files}


def prepare():
    """Import in the parent what every child needs, and keep to one thread: a fork has no others."""
    torch.set_num_threads(1)
    load_policy(ModelConfig(), EMBEDDED)
