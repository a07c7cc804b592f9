"""limits: what may be under way at once, on all machines, and what may be asked of a model endpoint."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kokuban.console import _errors
from kokuban.console._options import credentials_of, json_option, nats_option
from kokuban.console._task_commands import execute
from kokuban.console._terminal import json_line, one_line, put, tell

if TYPE_CHECKING:
    from kokuban.blackboard.wire import Bus
    from kokuban.schemas import BoardLimits
    from kokuban.schemas.quota import Endpoint, EndpointLimits

_FORMS = (
    "endpoint.NAME.concurrency, endpoint.NAME.requests, endpoint.NAME.tokens, role.ROLE, tenant.NAME, "
    "tenant.NAME.budget, task, weight.NAME"
)
_FIELDS = {"concurrency": "concurrency", "requests": "requests_per_minute", "tokens": "tokens_per_minute"}
_MOST = {"endpoint": 2**53 - 1, "role": 10_000, "tenant": 100_000, "task": 10_000}


class Setting(NamedTuple):
    """One `NAME=VALUE`, read. `field` is what of the named thing is set; `value` None takes the limit away."""

    kind: str
    name: str
    field: str
    value: Any


@click.group(cls=_errors.Group, name="limits")
def limits() -> None:
    """What may be under way at once: show it, change it. Everything that runs follows at once, without a restart."""


@limits.command("set", epilog="Example: kokuban limits set endpoint.openai.concurrency=4 role.coder=8")
@click.argument("settings", nargs=-1, required=True, metavar="NAME=VALUE…")
@nats_option
def set_limits(settings: tuple[str, ...], nats: str | None) -> None:
    """Set limits. VALUE is a number; 0 is none at all, and `none` takes the limit away.

    \b
    endpoint.NAME.concurrency   requests under way at a model endpoint
    endpoint.NAME.requests      requests that it gets in any minute
    endpoint.NAME.tokens        tokens, input and output, in any minute
    role.ROLE                   steps of a role
    tenant.NAME                 steps of a tenant's tasks
    tenant.NAME.budget          what all its tasks may spend: tokens=N,usd=N,…
    task                        steps of one task
    weight.NAME                 what counts how much for what runs next
    """
    read = [_read(text) for text in settings]
    targets = [(setting.kind, setting.name, setting.field) for setting in read]
    for setting, target in zip(settings, targets, strict=True):
        if targets.count(target) > 1:
            raise click.UsageError(f"limits: {setting.partition('=')[0]} is set twice")
    execute(_set(nats, read))


@limits.command("show", epilog="Example: kokuban limits show --json")
@json_option
@nats_option
def show_limits(as_json: bool, nats: str | None) -> None:
    """Show the limits that were set, as `set` takes them, and how each endpoint is used. Roles have their contract's
    limit where none is set."""
    execute(_show(nats, as_json))


def _read(text: str) -> Setting:
    """Raises a usage error that says what is wrong and what would be right."""
    from kokuban.schemas import subjects

    where, separator, value = text.partition("=")
    parts = where.split(".")
    kind, name, field = (*parts, "", "")[:3]
    shape = {"endpoint": 3, "role": 2, "tenant": len(parts) if len(parts) in (2, 3) else 2, "task": 1, "weight": 2}
    if not separator or len(parts) != shape.get(kind):
        raise click.UsageError(f"limits: {text[:100]!r} is not NAME=VALUE, with NAME one of {_FORMS}")
    if (kind == "endpoint" and field not in _FIELDS) or (kind == "tenant" and field not in ("", "budget")):
        raise click.UsageError(f"limits: {where!r} is no limit; NAME is one of {_FORMS}")
    if name or kind != "task":
        subjects.token(name, where)
    if kind == "weight":
        from kokuban.supervisor import WEIGHTS

        if name not in WEIGHTS:
            raise click.UsageError(f"limits: there is no weight {name!r}; they are {', '.join(WEIGHTS)}")
    return Setting(kind, name, field, None if value == "none" else _value(kind, field, where, value))


def _value(kind: str, field: str, where: str, value: str) -> Any:
    if field == "budget":
        from kokuban.console._values import read_budget

        try:
            return read_budget(value)
        except ValueError as error:
            raise click.UsageError(f"limits: {where}: {error}") from error
    if kind == "weight":
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not abs(number) <= 1e9:
            raise click.UsageError(f"limits: {where}={value!r} is not a number from -1e9 to 1e9, or none")
        return number
    if not (value.isascii() and value.isdecimal() and int(value) <= _MOST[kind]):
        raise click.UsageError(f"limits: {where}={value!r} is not a whole number from 0 to {_MOST[kind]}, or none")
    return int(value)


@asynccontextmanager
async def _connected(nats: str | None, user: str) -> AsyncIterator[Bus]:
    from kokuban.blackboard.client import DEFAULT_URL
    from kokuban.blackboard.wire import Bus, ensure_board, ensure_control

    secret = credentials_of(user, nats)
    async with await Bus.connect(nats or DEFAULT_URL, name="kokuban limits", credentials=secret) as bus:
        await ensure_board(bus)
        await ensure_control(bus)
        yield bus


async def _set(nats: str | None, settings: list[Setting]) -> None:
    from kokuban.blackboard.wire import change_board_limits, change_limits

    async with _connected(nats, "admin") as bus:
        who = bus.person or os.environ.get("KOKUBAN_PRINCIPAL", "local")
        of_board = [setting for setting in settings if setting.kind != "endpoint"]
        await _warn(bus, [setting.name for setting in of_board if setting.kind == "role"])
        if of_board:
            board = await change_board_limits(bus, lambda old: _board(old, of_board), principal=who)
            for line in _board_lines(board):
                put(line)
        for name in dict.fromkeys(setting.name for setting in settings if setting.kind == "endpoint"):
            mine = [setting for setting in settings if (setting.kind, setting.name) == ("endpoint", name)]
            now = await change_limits(bus, name, _endpoint(mine), principal=who)
            for line in _endpoint_lines(name, now) or [f"endpoint.{name}: no limits"]:
                put(line)


async def _warn(bus: Bus, roles: list[str]) -> None:
    """Say so when there is no such role: it may be registered later, or the name is mistyped."""
    known = await _roles(bus) if roles else []
    for role in roles:
        if role not in known:
            tell(f"warning: there is no role {role!r} on this board; the roles are {', '.join(known)}")


async def _roles(bus: Bus) -> list[str]:
    from kokuban.blackboard.registered import load
    from kokuban.schemas.contracts import builtin_crew

    return list(dict.fromkeys((*builtin_crew(), *(await load(bus)).roles)))


def _endpoint(settings: list[Setting]) -> Callable[[EndpointLimits], EndpointLimits]:
    from msgspec.structs import replace

    return lambda old: replace(old, **{_FIELDS[setting.field]: setting.value for setting in settings})


def _board(old: BoardLimits, settings: list[Setting]) -> BoardLimits:
    from msgspec.structs import replace

    from kokuban.schemas import Budget, TenantLimits

    roles, tenants, weights, task = dict(old.roles), dict(old.tenants), dict(old.weights), old.steps_per_task
    for kind, name, field, value in settings:
        if kind == "task":
            task = value
        elif kind == "tenant":
            was = tenants.pop(name, TenantLimits())
            budget = Budget(**value) if field and value is not None else None
            now = replace(was, budget=budget) if field else replace(was, concurrency=value)
            if now != TenantLimits():
                tenants[name] = now
        else:
            of_kind: dict[str, Any] = roles if kind == "role" else weights
            of_kind.pop(name, None)
            if value is not None:
                of_kind[name] = value
    return replace(old, roles=roles, tenants=tenants, weights=weights, steps_per_task=task)


async def _show(nats: str | None, as_json: bool) -> None:
    import msgspec

    from kokuban.blackboard.wire import board_limits, endpoint_limits, endpoint_use, limited_endpoints
    from kokuban.schemas.quota import EndpointLimits

    async with _connected(nats, "client") as bus:
        board = await board_limits(bus)
        names = await limited_endpoints(bus)
        endpoints = {
            name: (await endpoint_limits(bus, name) or EndpointLimits(), await endpoint_use(bus, name))
            for name in names
        }
        roles = await _roles(bus)
    if as_json:
        used = {name: {"limits": limits, "use": _use(use)} for name, (limits, use) in endpoints.items()}
        put(json_line(msgspec.json.encode({"board": board, "endpoints": used})))
        return
    if not (_board_lines(board) or endpoints):
        tell(_unlimited(roles))
    for line in _board_lines(board):
        put(line)
    for name, (limits, use) in endpoints.items():
        for line in _endpoint_lines(name, limits):
            put(line)
        put(f"  {_use_line(name, use)}")


def _unlimited(roles: list[str]) -> str:
    from kokuban.supervisor import WEIGHTS

    return (
        "No limits are set (roles have those of their contracts). `kokuban limits set NAME=VALUE` takes\n"
        f"  role.ROLE                with ROLE of {', '.join(roles)}\n"
        "  endpoint.NAME.concurrency, endpoint.NAME.requests, endpoint.NAME.tokens\n"
        "                           with NAME what --endpoint gave its workers; without it, the provider and the\n"
        "                           address: openai, openai-compatible-127-0-0-1-8000\n"
        "  tenant.NAME, tenant.NAME.budget, task\n"
        f"  weight.NAME              with NAME of {', '.join(WEIGHTS)}"
    )


def _board_lines(board: BoardLimits) -> list[str]:
    lines = [f"role.{role}={count}" for role, count in sorted(board.roles.items())]
    for name, tenant in sorted(board.tenants.items()):
        if tenant.concurrency is not None:
            lines.append(f"tenant.{name}={tenant.concurrency}")
        if tenant.budget is not None:
            lines.append(f"tenant.{name}.budget={_budget(tenant.budget)}")
    if board.steps_per_task is not None:
        lines.append(f"task={board.steps_per_task}")
    lines += [f"weight.{name}={weight:g}" for name, weight in sorted(board.weights.items())]
    return [one_line(line) for line in lines]


def _budget(budget: Any) -> str:
    from decimal import Decimal

    money = None if budget.micros is None else f"{Decimal(budget.micros) / 1_000_000:f}"
    given = {
        "tokens": budget.tokens, "usd": money, "steps": budget.steps, "tool-calls": budget.tool_calls,
        "seconds": budget.seconds,
    }  # fmt: skip
    return ",".join(f"{name}={value}" for name, value in given.items() if value is not None)


def _endpoint_lines(name: str, limits: EndpointLimits) -> list[str]:
    given = {word: getattr(limits, field) for word, field in _FIELDS.items()}
    return [one_line(f"endpoint.{name}.{word}={value}") for word, value in given.items() if value is not None]


def _use(use: Endpoint) -> dict[str, Any]:
    """As it was last written: what has ended since by its time alone is still in it."""
    return {
        "under_way": len(use.holders), "workers": sorted({holder.worker for holder in use.holders}),
        "waiting": len(use.waiting), "requests": sum(moment.requests for moment in use.window),
        "tokens": sum(moment.tokens for moment in use.window), "not_before": use.not_before or None,
    }  # fmt: skip


def _use_line(name: str, use: Endpoint) -> str:
    counts = _use(use)
    pause = ""
    if use.not_before:
        from datetime import UTC, datetime

        pause = f"; asked for a pause until {datetime.fromtimestamp(use.not_before, UTC):%H:%M:%S} UTC"
    return (
        f"{name}: {counts['under_way']} under way, {counts['waiting']} processes waiting; before that "
        f"{counts['requests']} requests and {counts['tokens']} tokens in a minute{pause}"
    )
