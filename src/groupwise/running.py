"""What the commands do: start a run, resume one, evaluate and sample a model."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from groupwise.checks import check_config
from groupwise.config import RunConfig
from groupwise.errors import BadValueError
from groupwise.evaluation import evaluate
from groupwise.inspect import write_report
from groupwise.loop import train
from groupwise.observe import Console
from groupwise.overrides import build, differences, dump_config, load_config, read_overrides
from groupwise.parts import Parts, as_prompts
from groupwise.policy import save_model
from groupwise.store.files import remove_litter, write_text
from groupwise.store.folder import clear, fresh_folder, has_finished, is_run, replace_folder
from groupwise.store.lock import RunLock
from groupwise.types import Sampling, Task


def start_run(config: RunConfig) -> int:
    """A new run in a folder that holds none; the exit code."""
    check_config(config)
    run_dir = Path(config.trainer.run_dir) if config.trainer.run_dir else fresh_folder(Path("runs"), config.data.task)
    config = replace(config, trainer=replace(config.trainer, run_dir=str(run_dir)))
    if is_run(run_dir):
        raise BadValueError(
            f"trainer.run_dir={run_dir} already holds a run; go on with it by `groupwise train --resume {run_dir}`, "
            "or choose another folder"
        )
    make_folder(run_dir)
    with RunLock(run_dir):
        parts = Parts(config)
        # Whatever lies here without a config.yaml is the litter of a start that did not get so far.
        clear(run_dir)
        write_text(run_dir / "config.yaml", dump_config(config))
        return work(config, parts, run_dir)


def resume_run(run_dir: Path, settings: Iterable[str]) -> int:
    """Go on with the run in a folder, under the settings it was started with; the exit code."""
    if not is_run(run_dir):
        raise BadValueError(f"--resume {run_dir}: there is no run there (no config.yaml); give the folder of a run")
    saved = load_config(run_dir / "config.yaml")
    config: RunConfig = build(RunConfig, saved)
    asked, _ = read_overrides(settings, saved)
    if changed := differences(config, asked):
        raise BadValueError(
            f"--resume {run_dir} goes on with the settings the run was started with, but these differ: "
            f"{'; '.join(changed)}; leave them out, or start a new run"
        )
    with RunLock(run_dir):
        if has_finished(run_dir, config.trainer.total_training_steps):
            print(f"{run_dir} has finished: {config.trainer.total_training_steps} steps; nothing to do")
            return 0
        remove_litter(run_dir)
        return work(config, Parts(config), run_dir)


def work(config: RunConfig, parts: Parts, run_dir: Path) -> int:
    """Train, and when the last step is done, leave the model and the report."""
    with Console(config.trainer.total_training_steps) as console:
        console.start(config)
        code = train(config, parts, run_dir, console)
        if code:
            console.note(f"stopped; go on with: groupwise train --resume {run_dir}")
        else:
            replace_folder(run_dir / "model", lambda folder: save_model(parts.policy, folder))
        report = write_report(run_dir)
        console.finish(
            {"report": str(report), "model": str(run_dir / "model")} if not code else {"report": str(report)}
        )
    return code


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


def sampling_of(config: RunConfig) -> Sampling:
    rollout = config.rollout
    return Sampling(
        config.data.max_response_length, rollout.temperature, rollout.top_p, rollout.top_k, config.trainer.seed
    )


def make_folder(run_dir: Path) -> None:
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        probe = run_dir / f".writable-{time.time_ns()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise BadValueError(
            f"trainer.run_dir={run_dir} cannot be written: {error.strerror}; choose a folder you may write to"
        ) from error
