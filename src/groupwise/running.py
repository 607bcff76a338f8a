"""What the commands do: start a run, resume one, evaluate and sample a model."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from groupwise.advice import advice, on_bad_rows
from groupwise.checks import check_config
from groupwise.config import RunConfig
from groupwise.errors import BadValueError, TrainingStoppedError, os_reason, unwritten
from groupwise.evaluation import evaluate
from groupwise.inspect import write_report
from groupwise.loop import train
from groupwise.observe import Console
from groupwise.overrides import as_dict, build, differences, dump_config, load_config, read_overrides
from groupwise.parts import Parts, as_prompts, sampling_of
from groupwise.policy import Policy, save_model
from groupwise.signals import StopRequest
from groupwise.store.files import remove_litter, write_text
from groupwise.store.folder import abandon, clear, fresh_folder, has_finished, is_run, write_folder
from groupwise.store.lock import RunLock
from groupwise.types import Task


def start_run(config: RunConfig) -> int:
    """A new run in a folder that holds none; the exit code."""
    check_config(config)
    run_dir = make_folder(config)
    config = replace(config, trainer=replace(config.trainer, run_dir=str(run_dir)))
    with RunLock(run_dir):
        # Under the lock: another process may have finished a run here since this one was called.
        if is_run(run_dir):
            raise BadValueError(
                f"trainer.run_dir={run_dir} already holds a run; go on with it by `groupwise train --resume {run_dir}`"
                ", or choose another folder"
            )
        try:
            parts = Parts(config)
        except BaseException:
            abandon(run_dir)
            raise
        try:
            # Whatever lies here without a config.yaml is the litter of a start that did not get so far.
            clear(run_dir)
            write_text(run_dir / "config.yaml", dump_config(config))
        except OSError as error:
            raise unwritable(run_dir, error) from error
        return work(config, parts, run_dir)


def resume_run(run_dir: Path, settings: Iterable[str]) -> int:
    """Go on with the run in a folder, under the settings it was started with; the exit code."""
    if not is_run(run_dir):
        raise BadValueError(f"--resume {run_dir}: there is no run there (no config.yaml); give the folder of a run")
    saved: RunConfig = build(RunConfig, load_config(run_dir / "config.yaml"))
    # The folder may have moved since.
    config = replace(saved, trainer=replace(saved.trainer, run_dir=str(run_dir)))
    asked, _ = read_overrides(settings, as_dict(config))
    if changed := differences(config, asked):
        raise BadValueError(
            f"--resume {run_dir} goes on with the settings the run was started with, but these differ: "
            f"{'; '.join(changed)}; leave them out, or start a new run"
        )
    if has_finished(run_dir):
        print(f"{run_dir} has finished: {config.trainer.total_training_steps} steps; nothing to do")
        return 0
    check_config(config)
    with RunLock(run_dir):
        remove_litter(run_dir)
        return work(config, Parts(config), run_dir)


def work(config: RunConfig, parts: Parts, run_dir: Path) -> int:
    """Train, and when the last step is done, leave the report and the model."""
    with Console(config.trainer.total_training_steps) as console, StopRequest(console.interrupt) as stop:
        console.start(config)
        for line in [*advice(config), *on_bad_rows(parts.bad_rows)]:
            console.note(line)
        try:
            finished = train(config, parts, run_dir, console, stop)
        except TrainingStoppedError:
            report(run_dir, console)
            raise
        left = report(run_dir, console)
        if finished:
            left["model"] = str(export(parts.policy, run_dir))
        else:
            console.note(f"stopped; go on with: groupwise train --resume {run_dir}")
        console.finish(left)
    return stop.exit_code or 0


def export(policy: Policy, run_dir: Path) -> Path:
    """The last thing a run writes: with its model it has finished."""
    folder = run_dir / "model"
    try:
        write_folder(folder, lambda building: save_model(policy, building))
    except OSError as error:
        raise unwritten("the model", run_dir, error) from error
    return folder


def report(run_dir: Path, console: Console) -> dict[str, str]:
    """Where the report is; nothing where there was no room for it."""
    try:
        return {"report": str(write_report(run_dir))}
    except OSError as error:
        console.note(f"report.html could not be written ({os_reason(error)}); later: groupwise report {run_dir}")
        return {}


def evaluate_model(model: str, settings: Iterable[str]) -> dict[str, float]:
    config = settings_for(model, settings)
    parts = Parts(config)
    if not parts.held_out:
        raise BadValueError(
            "there are no held-out questions; give data.val_files=FILE, or data.task=NAME without files"
        )
    return evaluate(parts.engine, parts.held_out, parts.reward, sampling_of(config), config.data.val_n)


def sample_model(model: str, prompt: str | None, settings: Iterable[str]) -> Iterator[str]:
    """Lines of answers: to the prompt, or to a few held-out questions with their scores."""
    config = settings_for(model, settings)
    parts = Parts(config)
    if prompt is None:
        prompts = parts.held_out[:4]
    else:
        prompts = as_prompts(parts.policy, [Task("prompt", prompt, None)], config.data, "sample")
    groups = parts.engine.generate(prompts, min(config.rollout.n, 4), sampling_of(config))
    for group in groups if prompt is not None else parts.reward(groups):
        yield f"{group.prompt.task.prompt}"
        for answer in group.completions:
            score = "" if answer.score is None else f"   score {answer.score:g}"
            yield f"    {answer.text}   ({answer.finish_reason}){score}"


def settings_for(model: str, settings: Iterable[str]) -> RunConfig:
    """A run's settings with its model, or the defaults with the model named."""
    folder = Path(model)
    base: dict[str, Any] = load_config(folder / "config.yaml") if is_run(folder) else {}
    trained = folder / "model"
    if base and not trained.is_dir():
        raise BadValueError(f"{model}: the run has no model yet; let it finish: groupwise train --resume {model}")
    config, _ = read_overrides(settings, base)
    config = replace(config, model=replace(config.model, path=str(trained) if base else model))
    check_config(config)
    return config


def make_folder(config: RunConfig) -> Path:
    """The run's folder, there and writable."""
    given = config.trainer.run_dir
    run_dir = Path(given or "runs")
    try:
        if given is None:
            files = config.data.train_files
            run_dir = fresh_folder(run_dir, Path(files[0]).stem if files else config.data.task)
        run_dir.mkdir(parents=True, exist_ok=True)
        probe = run_dir / f".writable-{time.time_ns()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise unwritable(run_dir, error) from error
    return run_dir


def unwritable(run_dir: Path, error: OSError) -> BadValueError:
    return BadValueError(
        f"trainer.run_dir={run_dir} cannot be written: {os_reason(error)}; choose a folder you may write to"
    )
