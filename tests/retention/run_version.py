"""A member of a team with another version of the schemas: `run_version.py VERSION ROLE URL HOME [MODEL [BASE]]`.
What it leaves to others comes back after a second."""

from __future__ import annotations

import asyncio
import logging
import sys

import structlog

from kokuban.agents import worker
from kokuban.schemas import envelope
from support.run_member import main

if __name__ == "__main__":
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    envelope.VERSION = int(sys.argv[1])
    worker.LEAVE = b'-NAK {"delay": 1000000000}'
    asyncio.run(main(*sys.argv[2:]))
