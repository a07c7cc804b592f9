"""What the register is told when a role's program ends with an error."""

from __future__ import annotations

from kokuban.agents._owner import ResultTooLarge
from kokuban.agents._tape import InDoubt
from kokuban.agents._work import StepFailed
from kokuban.blackboard.wire import BusError, PayloadMissing, TooLarge
from kokuban.blackboard.workspace import WorkspaceError
from kokuban.schemas import Failed, Settles

REASON_CHARS = 8_000


def failure_of(error: Exception, seconds: int, last: Settles | None) -> Failed | None:
    """The record's body for this error. None: the wire broke under it, and the supervisor takes the step back. The
    reason is always one that a record takes."""
    reason = (str(error) or type(error).__name__)[:REASON_CHARS]
    if isinstance(error, StepFailed):
        return Failed(error.why, reason, error.retryable, last, conflict=error.conflict, paths=error.paths)
    if isinstance(error, TimeoutError):
        return Failed("deadline", f"not done within the step's {seconds} s", True, last)
    if isinstance(error, InDoubt):
        return Failed("tool", reason, False, last)
    if isinstance(error, ResultTooLarge | WorkspaceError | PayloadMissing) or type(error) is LookupError:
        return Failed("input", reason, False, last)
    if isinstance(error, TooLarge):  # said in a record that the server does take, without what made it large
        settles = Settles(last.call, last.usage) if last else None
        return Failed("input", f"a record of this step is too large: {reason}", False, settles)
    if isinstance(error, BusError):
        return None
    return Failed("bug", f"the role's program broke: {error!r}"[:REASON_CHARS], True, last)
