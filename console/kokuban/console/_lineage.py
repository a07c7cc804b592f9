"""lineage: where an artifact comes from and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from kokuban.console._options import credentials_of, json_option, nats_option
from kokuban.console._task_commands import execute
from kokuban.console._terminal import Paint, json_line, one_line, put

if TYPE_CHECKING:
    from kokuban.blackboard import Kin, Lineage


@click.command(epilog="Example: kokuban lineage 3f9a --task t-1f2e3d4c5b6a")
@click.argument("artifact")
@click.option("--task", metavar="TASK", help="Look in this task only.")
@json_option
@nats_option
def lineage(artifact: str, task: str | None, as_json: bool, nats: str | None) -> None:
    """Show what ARTIFACT (a digest, or its first digits) derives from, what derives from it, and what of that is stale.

    Replaced: its step has made another one since. Stale: something that it derives from was replaced.
    """
    execute(_lineage(artifact, task, as_json, nats))


async def _lineage(digest: str, task: str | None, as_json: bool, nats: str | None) -> None:
    import msgspec

    from kokuban.blackboard import Client

    async with await Client.connect(nats, name="kokuban lineage", credentials=credentials_of("client", nats)) as board:
        found = await board.lineage(digest, task)
    if as_json:
        put(json_line(msgspec.json.encode(_json(found))))
        return
    for line in _lines(found, Paint(sys.stdout)):
        put(line)


def _lines(found: Lineage, paint: Paint) -> Iterator[str]:
    yield f"{_kin(found.artifact, paint)}  {found.artifact.ref.digest}  of {found.task}"
    yield "derives from:" if found.ancestors or found.outside else "derives from nothing"
    for kin in found.ancestors:
        yield f"  {_kin(kin, paint)}"
    for digest in found.outside:
        yield f"  {one_line(digest)}  (no artifact of this task)"
    yield "what derives from it:" if found.descendants else "nothing derives from it"
    for kin in found.descendants:
        yield f"  {_kin(kin, paint)}"


def _kin(kin: Kin, paint: Paint) -> str:
    from kokuban.console._live import short

    ref = kin.ref
    state = ["" if kin.current else paint("replaced", "yellow"), paint("stale", "red") if kin.stale else ""]
    words = [
        paint(f"{ref.kind}/{ref.name}", "cyan"), short(ref.digest), f"{kin.role}/{ref.step}", f"#{ref.seq}", *state
    ]  # fmt: skip
    return "  ".join(word for word in words if word)


def _json(found: Lineage) -> dict[str, Any]:
    return {
        "task": found.task, "artifact": _kin_json(found.artifact), "outside": found.outside,
        "ancestors": [_kin_json(kin) for kin in found.ancestors],
        "descendants": [_kin_json(kin) for kin in found.descendants],
    }  # fmt: skip


def _kin_json(kin: Kin) -> dict[str, Any]:
    from kokuban.console._live import ref_json

    return ref_json(kin.ref) | {"role": kin.role, "current": kin.current, "stale": kin.stale}
