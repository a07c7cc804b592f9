"""Where a worker's tools come from: Python modules and MCP servers, named in one file with what they may do."""

from kokuban.agents.toolbox._file import InvalidToolbox, McpServer, ToolboxFile, parse_toolbox
from kokuban.agents.toolbox._lint import lacking
from kokuban.agents.toolbox._toolbox import Toolbox

__all__ = ["InvalidToolbox", "McpServer", "Toolbox", "ToolboxFile", "lacking", "parse_toolbox"]
