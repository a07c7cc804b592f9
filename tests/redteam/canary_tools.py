"""Tools that say the credential that they were given, in every way in which a tool can say something."""

from __future__ import annotations

import base64
import json
from typing import Any

import structlog

from kokuban.agents.tools import ToolContext, ToolError, tool


@tool(tier="read", effect="read", secrets=("TILL",), trust="principal")
async def say(context: ToolContext, how: str) -> Any:
    """Say it. Returns the credential."""
    secret = context.secrets["TILL"]
    structlog.get_logger("canary").warning("tool", secret=secret, how=how)
    if how == "error":
        raise ToolError(f"401 for {secret}")
    if how == "bug":
        raise RuntimeError(secret)
    written = {
        "plain": secret, "json": json.dumps({"token": secret}),
        "basic": base64.b64encode(f"ann:{secret}".encode()).decode(),
        "long": f"{secret} " * 2_000,
    }  # fmt: skip
    return written[how]
