"""`groupwise train | eval | sample`: the command line. Heavy packages are imported once the arguments are
understood."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from groupwise.errors import BadValueError, GroupwiseError, MissingFieldError, UnknownNameError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train language models with reinforcement learning and no critic.",
)

Settings = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="settings, such as rollout.n=8")]
BAD_INPUT, STOPPED = 2, 1


@app.command()
def train(
    settings: Settings = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="go on with the run in this folder")] = None,
) -> None:
    """Train a model; without settings, the small one that comes with the package."""
    from groupwise.overrides import read_overrides
    from groupwise.running import resume_run, start_run

    if resume is not None:
        raise typer.Exit(resume_run(resume, settings or []))
    config, notes = read_overrides(settings or [])
    for note in notes:
        print(note, file=sys.stderr)
    raise typer.Exit(start_run(config))


@app.command("eval")
def evaluate(
    model: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="a run's folder, or a model")],
    settings: Settings = None,
) -> None:
    """Held-out accuracy, mean@n, pass@k and maj@n of a run's model, or of any model."""
    from groupwise.running import evaluate_model

    for name, value in evaluate_model(model, settings or []).items():
        print(f"{name:<10} {value:.4f}")


@app.command()
def sample(
    model: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="a run's folder, or a model")],
    prompt: Annotated[str | None, typer.Argument(help="what to ask; without it, held-out questions")] = None,
    settings: Settings = None,
) -> None:
    """What the model answers, with scores where the right answer is known."""
    from groupwise.running import sample_model

    # `groupwise sample RUN rollout.n=3` has a setting where the prompt would stand.
    is_setting = prompt is not None and "=" in prompt and prompt.split("=")[0].replace(".", "").isidentifier()
    given = [*([prompt] if is_setting and prompt else []), *(settings or [])]
    for line in sample_model(model, None if is_setting else prompt, given):
        print(line)


def main() -> None:
    """The program: errors about what the caller gave are one line on standard error and exit code 2."""
    # The tokenizers' own threads would fight torch's.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app()
    except (BadValueError, UnknownNameError, MissingFieldError) as error:
        fail(error, BAD_INPUT)
    except GroupwiseError as error:
        fail(error, STOPPED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(STOPPED)


def fail(error: Exception, code: int) -> None:
    print(f"groupwise: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(code)
