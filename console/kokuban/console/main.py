"""The command `kokuban`. A command's module imports what is heavy when it runs, so that `--help` is there at once."""

from __future__ import annotations

import click

from kokuban.console import (
    _audit,
    _auth,
    _conformance,
    _dead,
    _doctor,
    _errors,
    _eval,
    _limits,
    _lineage,
    _memory,
    _people,
    _registry,
    _run,
    _task_commands,
    _tools,
    _up,
    _workers,
)

__all__ = ["main"]


@click.group(cls=_errors.Group, epilog=_errors.CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kokuban", prog_name="kokuban", message="%(prog)s %(version)s")
def main() -> None:
    """A durable blackboard for teams of agents on NATS JetStream."""


@main.command(epilog="Example: kokuban version")
def version() -> None:
    """Show the version."""
    from importlib import metadata

    click.echo(f"kokuban {metadata.version('kokuban')}")


for _command in (
    _run.demo, _run.run, _up.up, _task_commands.submit, _task_commands.watch, _task_commands.status,
    _task_commands.result, _workers.worker, _workers.supervisor, _auth.auth,
    _registry.kinds, _registry.roles, _conformance.conformance,
    _people.cancel, _people.inject, _people.approvals, _people.answer, _dead.dead, _lineage.lineage,
    _limits.limits, _audit.export, _audit.audit, _eval.evaluate, _doctor.doctor, _memory.memory, _tools.tools,
):  # fmt: skip
    main.add_command(_command)

if __name__ == "__main__":
    main()
