"""run and demo: a task from goal to deliverable in one command, with a server and a crew of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kokuban.console._crew import commands_of, exec_option
from kokuban.console._models import ModelChoice, choose, model_options, required
from kokuban.console._options import (
    PATH,
    Seconds,
    TaskRequest,
    approve_option,
    goal_argument,
    isolation_option,
    json_option,
    out_option,
    policy_of,
    policy_option,
    task_options,
)
from kokuban.console._terminal import tell

_timeout_option = click.option(
    "--timeout", type=Seconds(positive=True), metavar="SECONDS", help="Give up after this long (exit 4)."
)
_store_option = click.option(
    "--store", type=PATH, metavar="DIR",
    help="Keep board and logs in this folder (default: a temporary one, removed at the end).",
)  # fmt: skip


@click.command(
    epilog="Example: kokuban run 'Fix the failing test' --workspace . --check 'python3 -m unittest' "
    "--model openai:gpt-4.1-mini --out fixed"
)
@goal_argument
@task_options
@approve_option
@policy_option
@isolation_option
@exec_option
@model_options
@out_option
@_store_option
@json_option
@_timeout_option
def run(
    out: Path | None, store: Path | None, as_json: bool, timeout: float | None, model: tuple[str, ...],
    base_url: str | None, record: Path | None, native_tools: bool | None, endpoint: str | None,
    prices: tuple[str, ...], approve_tools: tuple[str, ...], policy_file: Path | None,
    commands: tuple[str, ...], text_tools: bool, **task: Any,
) -> int:  # fmt: skip
    """Do one task with a server, a supervisor and five agents of its own, and show what it gave.

    Artifacts are shown on standard error as they are admitted, the result on standard output. Exit code 0: done,
    1: the task ended otherwise (the text says how).
    """
    choice = choose(model, base_url, record, native_tools, endpoint, prices, text_tools)
    policy_of(policy_file, approve_tools)  # said now rather than by each worker
    from kokuban.schemas.contracts import builtin_crew

    own = commands_of(commands, list(builtin_crew()))
    if choice is not None:
        choice.check_roles(list(builtin_crew()))
    return _run(TaskRequest(**task), choice, out, store, as_json, timeout, approve_tools, policy_file, own)


@click.command(epilog="Example: kokuban demo --example add-a-feature")
@click.option("--example", default="fix-a-bug", show_default=True, metavar="NAME", help="Which bundled example to do.")
@model_options
@out_option
@json_option
@_timeout_option
def demo(example: str, out: Path | None, as_json: bool, timeout: float | None, **model: Any) -> int:
    """Do a bundled example. Without a model, a recorded session of a real one is replayed."""
    import os
    import sys

    folder = _example(example)
    # The checks run `python3`: this interpreter, whatever the machine's own is, so that a recording fits.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    choice = choose(**model)
    if choice is None:
        recording = folder / "recording"
        if not recording.is_dir():
            required(choice)
        choice = choose(f"recorded:{recording}")
        tell(_about(recording))
    return _run(_example_task(folder), choice, out, None, as_json, timeout)


def _run(
    request: TaskRequest, choice: ModelChoice | None, out: Path | None, store: Path | None, as_json: bool,
    timeout: float | None, approve_tools: tuple[str, ...] = (), policy: Path | None = None,
    commands: dict[str, str] | None = None,
) -> int:  # fmt: skip
    import asyncio

    from kokuban.blackboard.workspace import check_out_path
    from kokuban.console._embedded import run_task
    from kokuban.console._logging import configure_logging

    configure_logging()
    if out is not None:
        check_out_path(out)
    return asyncio.run(
        run_task(
            request, required(choice), out=out, store=store, as_json=as_json, timeout=timeout,
            approve_tools=approve_tools, policy=policy, commands=commands,
        )
    )  # fmt: skip


def _example(name: str) -> Path:
    """The folder of a bundled example. Raises a usage error that names the known ones."""
    here = Path(__file__).resolve()
    for examples in (here.parent / "_examples", here.parents[3] / "examples"):
        known = sorted(path.parent.name for path in examples.glob("*/example.toml"))
        if name in known:
            return examples / name
        if known:
            raise click.UsageError(f"example: there is no {name!r}; the examples are {', '.join(known)}")
    raise click.UsageError("example: this installation has no examples; get them with the source code")


def _example_task(folder: Path) -> TaskRequest:
    import tomllib

    example = tomllib.loads((folder / "example.toml").read_text("utf-8"))
    return TaskRequest(
        goal=(folder / example["goal"]).read_text("utf-8").strip(),
        workspace=folder / example["workspace"],
        sources=tuple(folder / source for source in example.get("sources", ())),
        checks=tuple(example.get("checks", ())),
        **example.get("limits", {}),
    )


def _about(recording: Path) -> str:
    """What is replayed, as far as the recording says it."""
    import tomllib

    about: dict[str, Any] = {}
    if (recording / "ABOUT.toml").is_file():
        about = tomllib.loads((recording / "ABOUT.toml").read_text("utf-8"))
    words = [f"No model is configured: replaying a recorded session of a real model, {about.get('model', 'unnamed')}"]
    words += [f"recorded {about['recorded']}"] if "recorded" in about else []
    words += [f"with {about['with']}"] if "with" in about else []
    return ", ".join(words) + "."
