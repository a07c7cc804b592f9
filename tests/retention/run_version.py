"""A member of a team that speaks another version of the schemas: `run_version.py VERSION ROLE URL HOME [MODEL [BASE]]`."""

from __future__ import annotations

import asyncio
import logging
import sys

import structlog

from kokuban.schemas import envelope
from support.run_member import main

if __name__ == "__main__":
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    envelope.VERSION = int(sys.argv[1])
    asyncio.run(main(*sys.argv[2:]))
