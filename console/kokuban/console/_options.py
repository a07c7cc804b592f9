"""What a person says about a task on the command line, checked before anything is started or written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kokuban.console._values import budget, duration

if TYPE_CHECKING:
    from kokuban.agents.policy import Policy, PolicyFile
    from kokuban.blackboard import Client
    from kokuban.blackboard.workspace import Tree


class PathName(click.Path):
    """A path, there or not. An empty one, as an unset shell variable gives, is not taken for the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; a usage error for an empty one."""
        if value == "":
            self.fail("it is empty; name a path, or leave it out", param, ctx)
        return super().convert(value, param, ctx)


PATH = PathName(path_type=Path)


class Seconds(click.FloatRange):
    """A time in seconds, 0 or more, or more than 0. `nan` and `inf` are numbers to Python, and no time to wait."""

    def __init__(self, *, positive: bool = False) -> None:
        super().__init__(0, min_open=positive)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The time; a usage error for what is none."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is no time in seconds", param, ctx)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    """A task to submit. `steps` to `seconds` bound one attempt at a step; None leaves it to the role's contract.
    `budget` holds the fields of a `Budget`, of the whole task."""

    goal: str
    workspace: Path | None = None
    sources: tuple[Path, ...] = ()
    checks: tuple[str, ...] = ()
    key: str | None = None
    attempts: int = 3
    check_seconds: int = 60
    steps: int | None = None
    tool_calls: int | None = None
    tokens: int | None = None
    seconds: int | None = None
    budget: dict[str, int] | None = None
    tenant: str = "default"
    priority: int = 0
    deadline_seconds: int | None = None
    after: tuple[str, ...] = ()
    replans: int = 1
    approve: tuple[str, ...] = ()
    votes: int = 1
    approval_seconds: int | None = None
    parent: str | None = None

    def _fields(self) -> dict[str, Any]:
        """What describes the task beside its content."""
        from kokuban.schemas import Budget

        fields = asdict(self)
        for name in ("goal", "workspace", "sources", "parent"):
            del fields[name]
        return fields | {"budget": None if self.budget is None else Budget(**self.budget)}

    async def validate(self, *, checks_run_here: bool) -> None:
        """Raises what would make the task fail at once: `InvalidTask`, `WorkspaceError`, and, when the checks will run
        on this machine, for a check whose program is not there."""
        import asyncio

        from kokuban.blackboard.client import check_spec, read_sources
        from kokuban.blackboard.workspace import scan
        from kokuban.schemas import TaskSpec, subjects

        if self.parent is not None:
            subjects.token(self.parent, "parent")
        check_spec(TaskSpec(self.goal, "sha256:" + "0" * 64, **self._fields()))
        tree = await asyncio.to_thread(scan, self.workspace) if self.workspace else {}
        await asyncio.to_thread(read_sources, self.sources)
        if checks_run_here:
            for check in self.checks:
                await _check_program(check, tree)

    async def submit(self, board: Client) -> str:
        """Put it on the board; the task's id."""
        return await board.submit(
            self.goal, workspace=self.workspace, sources=self.sources, parent=self.parent, **self._fields()
        )


async def _check_program(check: str, tree: Tree) -> None:
    """Raise `InvalidTask` when the check's first word is a plain name that the shell of a check would not find."""
    import posixpath
    import re
    import tempfile

    from kokuban.agents import sandbox
    from kokuban.blackboard import InvalidTask

    word = check.split()[0]
    if not re.fullmatch(r"[\w./+][\w./+-]*", word, re.ASCII):
        return  # quotes, variables, groups: the shell's own business
    if "/" in word and not word.startswith("/"):
        if posixpath.normpath(word) not in tree:
            raise InvalidTask(
                f"check: {check!r} starts with {word!r}, which is not in the workspace; "
                f"if the task is to make it, write it as an argument: sh {word}"
            )
        return
    with tempfile.TemporaryDirectory(prefix="kokuban-") as folder:
        found = await sandbox.run(
            ["/bin/sh", "-c", 'command -v "$1"', "sh", word], cwd=Path(folder), home=Path(folder), timeout_seconds=10
        )
    if not found.ok:
        raise InvalidTask(
            f"check: {check!r} starts with {word!r}, and there is no such program here; install it or correct the name"
        )


def _said(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Refuse text that says nothing or cannot be stored."""
    hints = {"goal": "say what is to be done", "checks": "give a command such as 'python3 -m unittest'"}
    for text in value if isinstance(value, tuple) else (value,):
        if text is None:
            continue
        if not text.strip():
            hint = hints.get(parameter.name or "", "leave it out, or give it a value")
            raise click.BadParameter(f"it is empty; {hint}", context, parameter)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise click.BadParameter("it is not UTF-8 text", context, parameter) from error
    return value


def task_options(command: Any) -> Any:
    """Adds the options that describe a task, handed over as the fields of a `TaskRequest` beside the goal."""
    for option in (
        click.option("--approval-seconds", callback=duration, metavar="TIME",
                     help="How long an approval is waited for, such as 30m or 2d (default: for ever)."),
        click.option("--votes", type=click.IntRange(1, 100), metavar="N", default=1, show_default=True,
                     help="How many people must approve."),
        click.option("--approve", multiple=True, callback=_said, metavar="KIND",
                     help="Artifacts of this kind count once people have approved them. May be repeated."),
        click.option("--replans", type=click.IntRange(0, 10), metavar="N", default=1, show_default=True,
                     help="How often the plan may be made again when a step's attempts are used up."),
        click.option("--after", multiple=True, callback=_said, metavar="TASK",
                     help="Start when this task is done. May be repeated."),
        click.option("--deadline", "deadline_seconds", callback=duration, metavar="TIME",
                     help="End the task this long after it is stored, such as 30m or 2d."),
        click.option("--priority", type=click.IntRange(-100, 100), metavar="N", default=0, show_default=True,
                     help="Higher goes first."),
        click.option("--tenant", callback=_said, metavar="NAME", default="default", show_default=True,
                     help="On whose account it runs."),
        click.option("--budget", callback=budget, metavar="NAME=N,…",
                     help="What the whole task may spend: any of tokens, usd, steps, tool-calls, seconds."),
        click.option("--seconds", type=click.IntRange(1, 86_400), metavar="N", help="Wall clock for a step's attempt."),
        click.option("--tokens", type=click.IntRange(0), metavar="N", help="Tokens for a step's attempt."),
        click.option("--tool-calls", type=click.IntRange(0), metavar="N", help="Tool calls for a step's attempt."),
        click.option("--steps", type=click.IntRange(1, 10_000), metavar="N", help="Model turns for a step's attempt."),
        click.option("--attempts", type=click.IntRange(1, 10), metavar="N", default=3, show_default=True,
                     help="Tries that a step has."),
        click.option("--check-seconds", type=click.IntRange(1, 3_600), metavar="N", default=60, show_default=True,
                     help="Wall clock for one check."),
        click.option("--key", callback=_said, metavar="KEY", help="The same key is the same task, however often sent."),
        click.option("--check", "checks", multiple=True, callback=_said, metavar="CMD",
                     help="A shell command that must pass on the result. May be repeated."),
        click.option("--source", "sources", multiple=True, type=PATH, metavar="PATH",
                     help="A document or a folder of documents to find facts in. May be repeated."),
        click.option("--workspace", type=PATH, metavar="DIR", help="The folder to work on. It is not changed."),
    ):  # fmt: skip
        command = option(command)
    return command


goal_argument = click.argument("goal", callback=_said)


def address(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse what is no server's address, without showing it: it may hold a password."""
    from urllib.parse import urlsplit

    if not value:
        return None
    try:
        parts = urlsplit(value if "://" in value else f"nats://{value}")
        sound = parts.scheme in ("nats", "tls", "ws", "wss") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or not value.isprintable() or " " in value:
        raise click.BadParameter("it is no server's address; one looks like nats://127.0.0.1:4222", context, parameter)
    return value


_GIVEN = "kokuban.credentials"


def _keep(context: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    if value is not None and not value.exists():
        raise click.BadParameter(f"there is no file or folder {value}", context, parameter)
    context.meta[_GIVEN] = value


def nats_option(command: Any) -> Any:
    """Adds `--nats`, handed over as `nats`, and `--credentials`, which `credentials_of` reads."""
    url = click.option(
        "--nats",
        envvar="KOKUBAN_NATS_URL",
        metavar="URL",
        callback=address,
        help="The NATS server (or KOKUBAN_NATS_URL)  [default: nats://127.0.0.1:4222]",
    )
    secret = click.option(
        "--credentials", envvar="KOKUBAN_CREDENTIALS", type=PATH, metavar="FILE", callback=_keep, expose_value=False,
        help="For a server that asks: your file of `kokuban auth`, or the folder of it (or KOKUBAN_CREDENTIALS).",
    )  # fmt: skip
    return url(secret(command))


def credentials_of(user: str, nats: str | None) -> Path | None:
    """The credential's file with which this command connects as `user` (`client`, `role-coder` …): what --credentials
    names, else that of the store `.kokuban` here, if it is its server that is asked. None: no credential."""
    context = click.get_current_context(silent=True)
    given: Path | None = context.meta.get(_GIVEN) if context else None
    if given is not None:
        return given / f"{user}.nk" if given.is_dir() else given
    if not Path(".kokuban").is_dir():
        return None
    from kokuban.blackboard.wire.embedded import store_credential

    return store_credential(nats or "nats://127.0.0.1:4222", user)


json_option = click.option("--json", "as_json", is_flag=True, help="JSON on standard output, one object a line.")

out_option = click.option(
    "--out", type=PATH, metavar="DIR", help="Write the result to this new folder: files, diff, report, manifest."
)

approve_option = click.option(
    "--approve-tool", "approve_tools", multiple=True, envvar="KOKUBAN_APPROVE_TOOLS", metavar="TOOL",
    help="A person must approve each call of this tool (or KOKUBAN_APPROVE_TOOLS='write_file delete_file').",
)  # fmt: skip

policy_option = click.option(
    "--policy", "policy_file", type=PATH, envvar="KOKUBAN_POLICY", metavar="FILE",
    help="Rules (TOML) for what tool calls may do: allow, approve or deny (or KOKUBAN_POLICY; see docs/policy.md).",
)  # fmt: skip


def _isolated(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """For this process and those that it starts. What is required and not there is said before anything is begun."""
    if value is None:
        return
    import os

    os.environ["KOKUBAN_ISOLATION"] = value
    if value == "required":
        from kokuban.agents.sandbox import SandboxError, isolation

        try:
            isolation()
        except SandboxError as error:
            raise click.UsageError(str(error), context) from error


isolation_option = click.option(
    "--isolation", type=click.Choice(["required", "preferred", "none"]), envvar="KOKUBAN_ISOLATION",
    callback=_isolated, expose_value=False,
    help="Run commands in bubblewrap: always, where it works (the default), or never (or KOKUBAN_ISOLATION).",
)  # fmt: skip


def policy_of(file: Path | None, approve_tools: Sequence[str]) -> Policy | PolicyFile:
    """What decides about tool calls. Raises a usage error for a file that is no policy."""
    from kokuban.agents.policy import InvalidPolicy, PolicyFile, default_policy

    if file is None:
        return default_policy(approve_tools)
    try:
        return PolicyFile(file.expanduser().absolute(), approve_tools)
    except InvalidPolicy as error:
        raise click.UsageError(str(error)) from error


person_option = click.option(
    "--as", "person", envvar="KOKUBAN_PERSON", metavar="NAME",
    help="Who speaks (or KOKUBAN_PERSON); a server that asks for credentials lets you speak as their owner only  "
    "[default: whom your credential speaks for, else your user name on this machine]",
)  # fmt: skip
