"""What the commands do: start a run, resume one, evaluate and sample a model."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from groupwise.advice import advice, on_bad_rows
from groupwise.checks import check_config, check_ranges
from groupwise.config import ModelConfig, RunConfig
from groupwise.errors import BadValueError, TrainingStoppedError, os_reason, unwritten
from groupwise.evaluation import EVALUATION_STEP, evaluate
from groupwise.inspect import write_report
from groupwise.loop import train
from groupwise.observe import Console, warnings_as_lines
from groupwise.overrides import as_dict, build, differences, dump_config, load_config, read_overrides
from groupwise.parts import Parts, as_prompts, sampling_of
from groupwise.policy import Policy, save_model
from groupwise.signals import StopRequest
from groupwise.store.files import remove_litter, write_text
from groupwise.store.folder import OURS, abandon, fresh_folder, has_finished, is_run, set_aside, write_folder
from groupwise.store.lock import RunLock
from groupwise.types import Prompt, Task

# Questions that `sample` asks, and answers it shows to each, unless told.
_SHOWN = 4


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
            refuse_to_overwrite(config, run_dir)
            parts = Parts(config)
        except BaseException:
            abandon(run_dir)
            raise
        try:
            # Without a config.yaml this is no run: what lies here is in the way.
            remove_litter(run_dir)
            if aside := set_aside(run_dir):
                print(f"{run_dir} held no run; what lay where a run writes is now in {aside}", file=sys.stderr)
            write_text(run_dir / "config.yaml", dump_config(config))
        except OSError as error:
            raise unwritable(run_dir, error) from error
        return work(config, parts, run_dir)


def refuse_to_overwrite(config: RunConfig, run_dir: Path) -> None:
    """A run cannot go on where it has put its own files in the place of the model it began with."""
    model = Path(config.model.path).expanduser().resolve()
    if any(model.is_relative_to((run_dir / name).resolve()) for name in OURS):
        raise BadValueError(
            f"model.path={config.model.path} lies where trainer.run_dir={run_dir} would write; choose another folder "
            "for the run"
        )


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
            with warnings_as_lines(console.note):
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
    questions = held_out(parts)
    return evaluate(parts.engine, questions, parts.reward, sampling_of(config, EVALUATION_STEP), config.data.val_n)


def held_out(parts: Parts) -> list[Prompt]:
    if not parts.held_out:
        raise BadValueError(
            "there are no held-out questions; give data.val_files=FILE, or data.task=NAME without files"
        )
    return parts.held_out


def sample_model(model: str, prompt: str | None, settings: Iterable[str]) -> Iterator[str]:
    """Lines of answers: to the prompt, or to a few held-out questions with their scores."""
    given = list(settings)
    config = settings_for(model, given)
    parts = Parts(config)
    if prompt is None:
        prompts = held_out(parts)[:_SHOWN]
    else:
        # A model with a chat template reads messages; the built-in questions are text under any model.
        is_chat = parts.policy.tokenizer.chat_template and config.model.path != ModelConfig().path
        asked: Any = [{"role": "user", "content": prompt}] if is_chat else prompt
        prompts = as_prompts(parts.policy, [Task("prompt", asked, None)], config.data, "sample")
    n = config.rollout.n if any(setting.startswith("rollout.n=") for setting in given) else _SHOWN
    groups = parts.engine.generate(prompts, n, sampling_of(config))
    for group in groups if prompt is not None else parts.reward(groups):
        yield f"{group.prompt.task.prompt if prompt is None else prompt}"
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
    check_ranges(config)
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
