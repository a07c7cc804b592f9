"""supervisor and worker: one process each, for any machine. SIGTERM or Ctrl-C drains, a second one ends it at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kokuban.console import _errors
from kokuban.console._logging import configure_logging, log_options
from kokuban.console._memory import embeddings_of, embeddings_option
from kokuban.console._models import ModelChoice, choose_for, model_options, required
from kokuban.console._options import (
    PATH,
    Seconds,
    approve_option,
    credentials_of,
    isolation_option,
    nats_option,
    policy_of,
    policy_option,
)
from kokuban.console._programs import contract_on, load_program
from kokuban.console._values import duration

if TYPE_CHECKING:
    from kokuban.agents import Role
    from kokuban.agents.models import Attempt
    from kokuban.agents.policy import Policy, PolicyFile
    from kokuban.schemas.contracts import Contract, Crew

DRAIN_SECONDS = 8.0

_drain_option = click.option(
    "--drain-seconds", type=Seconds(), default=DRAIN_SECONDS, show_default=True, metavar="N",
    help="After SIGTERM, time for the work under way; what is not done by then goes to another process.",
)  # fmt: skip


@click.command(epilog="Example: kokuban supervisor --nats nats://127.0.0.1:4222")
@click.option(
    "--limit", "limits", multiple=True, envvar="KOKUBAN_LIMITS", metavar="ROLE=N",
    help="At most N steps of a role at once, on all machines (or KOKUBAN_LIMITS='coder=8 verifier=8').",
)  # fmt: skip
@click.option(
    "--steps-per-task", type=click.IntRange(1, 10_000), default=8, show_default=True, metavar="N",
    envvar="KOKUBAN_STEPS_PER_TASK", help="At most N steps of one task at once.",
)  # fmt: skip
@click.option(
    "--keep-finished", callback=duration, default="7d", show_default=True, metavar="TIME",
    envvar="KOKUBAN_KEEP_FINISHED",
    help="How long after its end a task is archived (90, 90s, 30m, 2h, 7d; sooner when the store is full).",
)  # fmt: skip
@click.option(
    "--keep-tombstones", callback=duration, default="90d", show_default=True, metavar="TIME",
    envvar="KOKUBAN_KEEP_TOMBSTONES", help="How long an archived task's key, end and archive stay after that.",
)  # fmt: skip
@click.option(
    "--replicas", type=click.Choice(["1", "3", "5"]), default="1", show_default=True, envvar="KOKUBAN_REPLICAS",
    help="On how many servers of a cluster the board is kept; one that has fewer is given more.",
)  # fmt: skip
@nats_option
@log_options
def supervisor(
    nats: str | None, limits: tuple[str, ...], steps_per_task: int, keep_finished: int, keep_tombstones: int,
    replicas: str, log_level: str, log_format: str,
) -> None:  # fmt: skip
    """Run a supervisor: it decides what is done next. Of several, one leads and the others stand by."""
    import asyncio

    from kokuban.schemas.contracts import InvalidContract, builtin_crew, with_limits

    configure_logging(log_level, log_format)
    try:
        crew = with_limits(builtin_crew(), dict(_limit(text) for text in limits))
    except InvalidContract as error:
        raise click.UsageError(str(error)) from error
    asyncio.run(_supervise(nats, crew, steps_per_task, keep_finished, keep_tombstones, int(replicas)))


def _limit(text: str) -> tuple[str, int]:
    role, _, count = text.partition("=")
    if not count.isdecimal():
        raise click.UsageError(f"limit: {text!r} is not ROLE=N, such as coder=8")
    return role, int(count)


async def _supervise(
    nats: str | None, crew: Crew, steps_per_task: int, keep_finished: int, keep_tombstones: int, replicas: int
) -> None:
    from datetime import timedelta

    from kokuban.blackboard.client import DEFAULT_URL
    from kokuban.blackboard.wire import Bus
    from kokuban.supervisor import Limits, Retention, Supervisor

    retention = Retention(timedelta(seconds=keep_finished), timedelta(seconds=keep_tombstones))
    secret = credentials_of("supervisor", nats)
    async with await Bus.connect(nats or DEFAULT_URL, name="kokuban supervisor", credentials=secret) as bus:
        member = Supervisor(bus, crew=crew, limits=Limits(steps_per_task), retention=retention, replicas=replicas)
        await _until_stopped(member.run(), drain=None, drain_seconds=0)


@click.command(epilog="Example: kokuban worker coder --model openai:gpt-4.1-mini --concurrency 2")
@click.argument("role")
@click.option(
    "--concurrency", type=click.IntRange(1, 1_000), metavar="N",
    help="Steps under way at once in this process (default: the role's limit).",
)  # fmt: skip
@click.option(
    "--home", type=PATH, metavar="DIR",
    help="Where this process makes a folder of its own, removed at its end (default: a temporary folder).",
)  # fmt: skip
@click.option(
    "--program", metavar="MODULE:CLASS",
    help="The Python class that does the work, looked for in the current folder first: for a role of your own.",
)  # fmt: skip
@click.option(
    "--exec", "command", metavar="COMMAND",
    help="A program that does the work, in any language: it gets the order as a file, the step's files as its folder, "
    "and a model server of its own (see docs/exec.md).",
)  # fmt: skip
@click.option(
    "--prompt", "prompt_file", type=PATH, metavar="FILE",
    help="For a registered role without a program: its prompt, with a slot {{task}} (see docs/roles.md).",
)  # fmt: skip
@click.option(
    "--tools", "tools_file", type=PATH, metavar="FILE", envvar="KOKUBAN_TOOLS",
    help="Python modules and MCP servers whose tools the role's contract may name (TOML; see docs/tools.md).",
)  # fmt: skip
@embeddings_option
@approve_option
@policy_option
@isolation_option
@model_options
@nats_option
@_drain_option
@log_options
def worker(
    role: str, concurrency: int | None, home: Path | None, nats: str | None, drain_seconds: float, log_level: str,
    log_format: str, program: str | None, approve_tools: tuple[str, ...], policy_file: Path | None,
    command: str | None, prompt_file: Path | None, tools_file: Path | None,
    embeddings: str | None, **model: Any,
) -> None:  # fmt: skip
    """Run a worker of ROLE: planner, researcher, coder, verifier, integrator, or one that you registered.

    A registered role runs --program, or else asks its model with --prompt and the tools that its contract names.
    """
    import asyncio

    from kokuban.schemas.contracts import builtin_crew

    configure_logging(log_level, log_format)
    if program and command:
        raise click.UsageError("exec: give either --program or --exec")
    own = load_program(program) if program else None
    if command is not None:
        own = _program(command)
    if (own is None or command is not None) and role in builtin_crew():
        contract = contract_of(role)
    else:
        contract, kinds = _registered(nats, role)
        own = own or _agent(contract, prompt_file, kinds)
    named = choose_for(contract.role, contract.models, **model) if contract.model else None
    choice = (named if command else required(named)) if contract.model else None
    policy = policy_of(policy_file, approve_tools)
    _warn_of_unknown(approve_tools, contract)
    asyncio.run(_work(contract, choice, concurrency, home, nats, drain_seconds, own, policy, tools_file, embeddings))


def _program(command: str) -> Role:
    from kokuban.agents.roles.program import Program

    if not command.strip():
        raise click.UsageError("exec: it is empty; give a command")
    return Program(command)


def _agent(contract: Contract, prompt_file: Path | None, kinds: dict[str, Any]) -> Role:
    """The program of a role that has none of its own. Raises a usage error for one that asks no model."""
    from kokuban.agents.roles.agent import Agent

    if not contract.model:
        raise click.UsageError(f"role: {contract.role!r} asks no model, so --program MODULE:CLASS has to do its work")
    shape = contract.shape if contract.shape != "workflow" else "react"
    if prompt_file is None:
        return Agent(contract.role, contract.summary, None, kinds, shape)
    try:
        return Agent.of_file(prompt_file, contract.role, contract.summary, kinds, shape)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"prompt: {error}") from error


def _warn_of_unknown(tools: Sequence[str], contract: Contract) -> None:
    """A tool that wants approval and does not exist is mostly misspelt; one of another role is not this worker's."""
    import structlog

    from kokuban.agents.tools import BUILT_IN_TOOLS

    known = {*(tool.name for tool in BUILT_IN_TOOLS), *contract.tools}
    unknown = sorted(set(tools) - known)
    if unknown:
        structlog.get_logger("kokuban.worker").warning(
            "--approve-tool names no tool that is known here", tools=unknown, known=sorted(known)
        )


def _registered(nats: str | None, role: str) -> tuple[Contract, dict[str, Any]]:
    """A role of the board's. Raises a usage error when there is none, also when the board cannot be asked about a role
    that is not built in."""
    import asyncio

    from kokuban.blackboard.wire import CannotConnect
    from kokuban.schemas.contracts import builtin_crew

    try:
        return asyncio.run(contract_on(nats, role))
    except CannotConnect as error:
        if role in builtin_crew():
            raise
        known = ", ".join(builtin_crew())
        raise click.UsageError(f"role: {role!r} is none of {known}, and the board cannot be asked: {error}") from error


def contract_of(role: str) -> Contract:
    """A built-in role's contract. Raises a usage error that names the known ones."""
    from kokuban.schemas.contracts import builtin_crew

    crew = builtin_crew()
    if role not in crew:
        raise click.UsageError(f"role: there is no {role!r}; the roles are {', '.join(crew)} (--program runs yours)")
    return crew[role]


async def _work(
    contract: Contract,
    choice: ModelChoice | None,
    concurrency: int | None,
    home: Path | None,
    nats: str | None,
    drain_seconds: float,
    program: Role | None = None,
    policy: Policy | PolicyFile | None = None,
    tools_file: Path | None = None,
    embeddings: str | None = None,
) -> None:
    import socket
    from contextlib import AsyncExitStack

    import structlog

    from kokuban.agents.roles import program_for
    from kokuban.agents.sandbox import isolation
    from kokuban.agents.toolbox import Toolbox
    from kokuban.agents.worker import Worker
    from kokuban.blackboard.client import DEFAULT_URL
    from kokuban.blackboard.wire import Bus, Quota
    from kokuban.console._homes import own_home

    kept_apart = isolation()  # required and not there: said before anything is begun
    if choice is not None:
        await choice.validate()
    secret = credentials_of(f"role-{contract.role}", nats)
    async with (
        await Bus.connect(nats or DEFAULT_URL, name=f"kokuban worker {contract.role}", credentials=secret) as bus,
        AsyncExitStack() as stack,
    ):
        meter = None
        if choice is not None:
            who = f"{contract.role}-{socket.gethostname()}-{os.getpid()}"
            names = {one.endpoint_name for one in choice.each}
            gates = {name: await stack.enter_async_context(Quota(bus, name, who)) for name in sorted(names)}
            meter = choice.meter(gates, _log_attempt)
        toolbox = await stack.enter_async_context(Toolbox.open(tools_file)) if tools_file is not None else None
        own = stack.enter_context(own_home(contract.role, home))
        os.chdir(own)
        member = Worker(
            bus, contract, program or program_for(contract.role), home=own, meter=meter,
            concurrency=concurrency or contract.limits.concurrency,
            native_tools=choice.native_tools if choice else False, policy=policy or policy_of(None, ()),
            toolbox=toolbox, embeddings=embeddings_of(embeddings),
        )  # fmt: skip
        model = ", ".join(one.spec for one in choice.each) if choice else None
        structlog.get_logger("kokuban.worker").info(
            "ready", role=contract.role, worker=member.id, model=model, isolation=str(kept_apart)
        )
        try:
            await _until_stopped(member.run(), drain=member.drain, drain_seconds=drain_seconds)
        finally:
            if meter is not None:
                await meter.aclose()


def _log_attempt(attempt: Attempt) -> None:
    import structlog

    usage, context = attempt.usage, attempt.context
    structlog.get_logger("kokuban.model").info(
        attempt.outcome, step=context.step, role=context.role, attempt=context.attempt, turn=context.turn,
        model=attempt.model, number=attempt.number, seconds=round(attempt.seconds, 3),
        input_tokens=usage.input_tokens if usage else 0, output_tokens=usage.output_tokens if usage else 0,
        error=attempt.error,
    )  # fmt: skip


async def _until_stopped(
    work: Coroutine[Any, Any, None], *, drain: Callable[[], None] | None, drain_seconds: float
) -> None:
    """Await `work` until it ends or this process is told to stop (a signal, or the end of its launcher): then call
    `drain`, and cancel what still runs after `drain_seconds`. Raises what `work` raises."""
    import asyncio

    from kokuban.console.launcher import exit_with_parent, stop_signals

    stopping = asyncio.Event()
    exit_with_parent(stopping.set, drain_seconds=drain_seconds + 2)
    with stop_signals(stopping.set, lambda: os._exit(_errors.INTERRUPTED)):
        running = asyncio.create_task(work)
        stopped = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done() and drain is not None:
                drain()
                await asyncio.wait({running}, timeout=drain_seconds)
        finally:
            stopped.cancel()
            if not running.done():
                running.cancel()
            await asyncio.wait({running})
        if not running.cancelled():
            running.result()
