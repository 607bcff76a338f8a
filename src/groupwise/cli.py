"""`groupwise train | eval | sample`: the command line. Heavy packages are imported once the arguments are
understood."""

from __future__ import annotations

import os
import re
import sys
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from groupwise.errors import BadValueError, GroupwiseError, MissingFieldError, UnknownNameError, os_reason
from groupwise.observe import printable, waiting, warnings_as_lines

app = typer.Typer(
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train language models with reinforcement learning and no critic: every answer is judged against the other "
    "answers to the same prompt.",
)

Settings = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="settings, such as rollout.n=8")]
Model = Annotated[str, typer.Argument(metavar="RUN|MODEL", help="a run's folder, or a model's: folder, hub id, .gguf")]
_SETTING = re.compile(r"[a-z_]+(\.[a-z_]+)+=")
BAD_INPUT, STOPPED, INTERRUPTED = 2, 1, 130
# What typer raises at a wrong option; it has no public name there.
UsageError: Any = typer.BadParameter.__base__


@app.callback(invoke_without_command=True)
def groupwise(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="The version, and exit.")] = False
) -> None:
    if version:
        from groupwise import __version__

        print(f"groupwise {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(BAD_INPUT)


@app.command()
def train(
    settings: Settings = None,
    file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="YAML with settings; the ones behind it win")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="go on with the run in this folder")] = None,
) -> None:
    """Train a model; without settings, the small one that comes with the package."""
    with _loading():
        from groupwise.overrides import read_overrides
        from groupwise.running import resume_run, start_run

    if resume is not None:
        if file is not None:
            raise BadValueError(f"--config {file}: a resumed run has its settings in its folder; leave --config out")
        raise typer.Exit(resume_run(resume, settings or []))
    config, notes = read_overrides(settings or [], file=file)
    for note in notes:
        print(note, file=sys.stderr)
    raise typer.Exit(start_run(config))


@app.command("eval")
def evaluate(
    model: Model,
    settings: Settings = None,
) -> None:
    """Held-out accuracy, mean@n, pass@k and maj@n of a run's model, or of any model."""
    with _loading():
        from groupwise.running import evaluate_model

    for name, value in evaluate_model(model, settings or []).items():
        print(f"{name:<10} {value:.4f}")


@app.command()
def sample(
    model: Model,
    prompt: Annotated[str | None, typer.Argument(help="what to ask; without it, held-out questions")] = None,
    settings: Settings = None,
) -> None:
    """What the model answers, with scores where the right answer is known."""
    with _loading():
        from groupwise.running import sample_model

    # `groupwise sample RUN rollout.n=3` has a setting where the prompt would stand.
    is_setting = prompt is not None and _SETTING.match(prompt) is not None
    given = [*([prompt] if is_setting and prompt else []), *(settings or [])]
    for line in sample_model(model, None if is_setting else prompt, given):
        print(line)


@app.command()
def report(run: Annotated[Path, typer.Argument(metavar="RUN", help="a run's folder, finished or not")]) -> None:
    """Write report.html into a run's folder: curves, answers, settings. A run writes its own when it ends."""
    from groupwise.inspect import write_report

    try:
        print(write_report(run))
    except OSError as error:
        raise BadValueError(f"{run}: report.html cannot be written: {os_reason(error)}") from error


def main() -> None:
    """The program: errors about what the caller gave are one line on standard error and exit code 2."""
    # The tokenizers' own threads would fight torch's.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # A program started with a stream closed has none; without this, the next file opened would stand in for it.
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    try:
        with warnings_as_lines(_say):
            code = app(prog_name="groupwise", standalone_mode=False)
    except (BadValueError, UnknownNameError, MissingFieldError) as error:
        code = fail(str(error), BAD_INPUT)
    except UsageError as error:
        code = fail(error.format_message(), BAD_INPUT)
    except GroupwiseError as error:
        code = fail(str(error), STOPPED)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        code = STOPPED
    _flush()
    sys.exit(code)


def _loading() -> AbstractContextManager[None]:
    return waiting("groupwise: loading torch and transformers")


def fail(message: str, code: int) -> int:
    """One line, whatever the message says, and the code."""
    _say(message)
    return code


def _say(message: str) -> None:
    with suppress(OSError):
        print(f"groupwise: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)


def _flush() -> None:
    """What a reader that went away, or a full disk, did not take is dropped: Python would complain of it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")
