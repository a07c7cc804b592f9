"""Logs: structlog on standard error, one line an entry, as key=value or JSON."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, TextIO

import click

from kokuban.blackboard.redaction import conceal_environment, redacted
from kokuban.console._terminal import clean

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
_ORDER = ("time", "level", "logger", "event", "task", "step", "role", "attempt", "worker", "fence")


class _Unbreakable:
    """Standard error whose loss (a closed terminal, a full disk) never fails the work that is logged."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(redacted(text))
        except (OSError, ValueError):
            return 0

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            return


def log_options(command: Any) -> Any:
    """Adds --log-level and --log-format to a command."""
    for name, variable, values, default, what in (
        ("--log-format", "KOKUBAN_LOG", FORMATS, "text", "How log lines on standard error look"),
        ("--log-level", "KOKUBAN_LOG_LEVEL", LEVELS, "info", "The least important entries to log"),
    ):
        choice = click.Choice(values, case_sensitive=False)
        option = click.option(
            name, type=choice, envvar=variable, default=default, show_default=True, help=f"{what} (or {variable})."
        )
        command = option(command)
    return command


def configure_logging(level: str | None = None, form: str | None = None) -> None:
    """Send our logs and those of the libraries to standard error. None: as KOKUBAN_LOG_LEVEL (default `warning`) and
    KOKUBAN_LOG say, for commands that have no options for it."""
    import structlog

    conceal_environment(os.environ)
    named = (level or os.environ.get("KOKUBAN_LOG_LEVEL", "")).lower()
    number = getattr(logging, named.upper()) if named in LEVELS else logging.WARNING
    as_json = (form or os.environ.get("KOKUBAN_LOG")) == "json"
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", key="time"),
        structlog.processors.format_exc_info,  # without local variables: they could hold a key
    ]
    render: list[Any] = (
        [structlog.processors.JSONRenderer()]
        if as_json
        else [_harmless, structlog.processors.LogfmtRenderer(key_order=_ORDER, drop_missing=True)]
    )
    stderr = _Unbreakable(sys.stderr)
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=stderr),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.INFO), force=True)
    for chatty in ("httpx", "httpcore", "nats"):
        logging.getLogger(chatty).setLevel(max(number, logging.WARNING))


def _harmless(logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
    return {key: clean(str(value)) for key, value in event.items() if value is not None}
