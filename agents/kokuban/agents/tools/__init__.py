"""The tools of a step: what a model may do, checked before it is done and bounded while it is.

Invariant: no file tool reads or writes outside the step's checkout, and none changes what the checks are made of.
"""

from kokuban.agents.tools._arguments import canonical
from kokuban.agents.tools._contained import Contained
from kokuban.agents.tools._context import ToolContext
from kokuban.agents.tools._decorator import tool
from kokuban.agents.tools._errors import ToolError
from kokuban.agents.tools._registry import Arguments, Invalid, Observation, Registry, Tool, execute
from kokuban.agents.tools.checks import RUN_CHECKS, CheckRun, run_checks_on
from kokuban.agents.tools.code import WRITE_CODE
from kokuban.agents.tools.command import RUN_COMMAND
from kokuban.agents.tools.documents import SEARCH_DOCUMENTS
from kokuban.agents.tools.fetch import FETCH_URL
from kokuban.agents.tools.files import DELETE_FILE, EDIT_FILE, LIST_FILES, READ_FILE, SEARCH_FILES, WRITE_FILE
from kokuban.agents.tools.guard import CheckRules, protected, weakened, with_checks_from
from kokuban.agents.tools.memory import JUDGE_MEMORY, PENDING_MEMORIES, RECALL, REMEMBER
from kokuban.agents.tools.output import READ_OUTPUT
from kokuban.agents.tools.person import ASK_PERSON
from kokuban.agents.tools.sources import SEARCH_SOURCES, Passage, passages, rank

BUILT_IN_TOOLS = (
    LIST_FILES,
    READ_FILE,
    SEARCH_FILES,
    WRITE_FILE,
    EDIT_FILE,
    WRITE_CODE,
    DELETE_FILE,
    RUN_CHECKS,
    RUN_COMMAND,
    SEARCH_SOURCES,
    SEARCH_DOCUMENTS,
    ASK_PERSON,
    READ_OUTPUT,
    FETCH_URL,
    REMEMBER,
    RECALL,
    PENDING_MEMORIES,
    JUDGE_MEMORY,
)
"""Every tool that comes with Kokuban; a role's contract picks from these by name."""

__all__ = [
    "ASK_PERSON",
    "BUILT_IN_TOOLS",
    "RUN_CHECKS",
    "SEARCH_SOURCES",
    "Arguments",
    "CheckRules",
    "CheckRun",
    "Contained",
    "Invalid",
    "Observation",
    "Passage",
    "Registry",
    "Tool",
    "ToolContext",
    "ToolError",
    "canonical",
    "execute",
    "passages",
    "protected",
    "rank",
    "run_checks_on",
    "tool",
    "weakened",
    "with_checks_from",
]
