"""Runs in forked children, so that they can be killed at a chosen write without starting Python anew each time."""

import contextlib
import errno
import json
import os
import resource
import signal
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from groupwise import cli
from groupwise.config import ModelConfig
from groupwise.overrides import read_overrides
from groupwise.parts import EMBEDDED
from groupwise.policy import load_policy
from groupwise.running import resume_run, start_run
from groupwise.store.folder import is_run

_ADDITIONS = {"os.rename", "os.mkdir"}
_CHANGES = _ADDITIONS | {"os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}

SMALL = (
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
)


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code, or minus a signal, and what it said."""

    code: int
    out: str
    err: str


def forked(work):
    """Fork, run `work` there, and wait. An exception that comes out of it is printed, and is code 99."""
    sys.stdout.flush()
    (out, out_of_child), (err, err_of_child) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.dup2(out_of_child, 1)
            os.dup2(err_of_child, 2)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            code = work()
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    os.close(out_of_child)
    os.close(err_of_child)
    with ThreadPoolExecutor(2) as readers:
        said = readers.map(_read_all, (out, err))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Ended(code, *said)


def _read_all(pipe):
    with os.fdopen(pipe, encoding="utf-8") as stream:
        return stream.read()


def in_child(work):
    return forked(work).code


def program(*arguments, before=None):
    """The command line in a child. before: what the child does first, such as breaking something."""

    def work():
        if before is not None:
            before()
        sys.argv = ["groupwise", *map(str, arguments)]
        cli.main()

    return forked(work)


def train(run_dir, *more, before=None):
    return program("train", *SMALL, *more, f"trainer.run_dir={run_dir}", before=before)


def resume(run_dir, *more, before=None):
    return program("train", "--resume", run_dir, *more, before=before)


def settings(run_dir, *more):
    return read_overrides([*SMALL, f"trainer.run_dir={run_dir}", *more])[0]


def start_or_resume(run_dir, *more):
    return resume_run(run_dir, []) if is_run(run_dir) else start_run(settings(run_dir, *more))


def on_changes(run_dir, act, events=_CHANGES):
    """Call `act` with a running number just before every change to a file or folder of the run."""
    seen = 0

    def watch(event, arguments):
        nonlocal seen
        if event == "open":
            changes = isinstance(arguments[2], int) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
        else:
            changes = event in events
        path = arguments[0] if arguments else None
        if changes and isinstance(path, str | os.PathLike) and str(path).startswith(str(run_dir)):
            seen += 1
            act(seen)

    sys.addaudithook(watch)


def refuse_write(run_dir, number):
    """From now on, in this process: the `number`-th write to the run finds the disk full, the next one does not."""

    def act(seen):
        if seen == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    on_changes(run_dir, act, _ADDITIONS)


def fill_disk(run_dir, number):
    """From the `number`-th write to the run on, no file of this process takes another byte."""

    def act(seen):
        if seen == number:
            _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))

    on_changes(run_dir, act, _ADDITIONS)


def killed_at_write(run_dir, number):
    """Work that ends by SIGKILL just before its `number`-th change to a file or folder of the run."""

    def work():
        on_changes(run_dir, lambda seen: os.kill(os.getpid(), signal.SIGKILL) if seen == number else None)
        return start_or_resume(run_dir)

    return work


def outcome(run_dir):
    """Everything a run leaves that must not depend on whether it was interrupted."""
    run_dir = Path(run_dir)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    kept = [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]
    files = [*run_dir.glob("rollouts/*"), *run_dir.glob("model/*"), *run_dir.glob("checkpoints/*/state.safetensors")]
    return kept, {str(path.relative_to(run_dir)): path.read_bytes() for path in files}


def litter(run_dir):
    """Temporary files and folders in a run's folder."""
    return [str(path.relative_to(run_dir)) for path in Path(run_dir).rglob(".*") if path.name != ".lock"]


def prepare(threads=1):
    """Import in the parent what every child needs, and keep to one thread: a fork has no others."""
    torch.set_num_threads(threads)
    load_policy(ModelConfig(), EMBEDDED)
