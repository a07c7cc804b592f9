"""An MCP server of a stranger: `notes_server.py FILE`. Its description and its result are what the file says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mcp.server.fastmcp import FastMCP

said = json.loads(Path(sys.argv[1]).read_text("utf-8"))
server = FastMCP("notes", log_level="CRITICAL")


@server.tool(description=said["description"])
def find() -> str:
    return str(said["result"])


server.run()
