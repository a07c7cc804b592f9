"""What the register is told when a role's program ends with an error."""

from __future__ import annotations

from msgspec.structs import replace

from kokuban.agents._owner import ResultHoldsSecret, ResultTooLarge
from kokuban.agents._tape import InDoubt, named
from kokuban.agents._work import StepFailed
from kokuban.blackboard.wire import BusError, PayloadMissing, TooLarge
from kokuban.blackboard.workspace import WorkspaceError
from kokuban.schemas import Failed, Opens, Settles

REASON_CHARS = 8_000


def failure_of(error: Exception, seconds: int, last: Settles | None, doubt: Opens | None = None) -> Failed | None:
    """The record's body for this error. None: the wire broke under it, and the supervisor takes the step back. The
    reason is always one that a record takes. `doubt` is a call whose effect may have happened: then that is what the
    attempt ends with, whatever the error, for another attempt would make the call again. The call stays unsettled."""
    body = _of_error(error, seconds, last)
    if body is None or doubt is None or body.why == "in_doubt":
        return body
    reason = f"{named(doubt)} was begun and its outcome is unknown; the attempt ended with: {body.reason}"
    return replace(body, why="in_doubt", reason=reason[:REASON_CHARS], retryable=False, conflict=(), paths=())


def _of_error(error: Exception, seconds: int, last: Settles | None) -> Failed | None:
    reason = (str(error) or type(error).__name__)[:REASON_CHARS]
    if isinstance(error, StepFailed):
        return Failed(error.why, reason, error.retryable, last, conflict=error.conflict, paths=error.paths)
    if isinstance(error, TimeoutError):
        return Failed("deadline", f"not done within the step's {seconds} s", True, last)
    if isinstance(error, InDoubt):
        return Failed("in_doubt", reason, False, last)
    if (
        isinstance(error, ResultTooLarge | ResultHoldsSecret | WorkspaceError | PayloadMissing)
        or type(error) is LookupError
    ):
        return Failed("input", reason, False, last)
    if isinstance(error, TooLarge):  # said in a record that the server does take, without what made it large
        settles = Settles(last.call, last.usage) if last else None
        return Failed("input", f"a record of this step is too large: {reason}", False, settles)
    if isinstance(error, BusError):
        return None
    return Failed("bug", f"the role's program broke: {error!r}"[:REASON_CHARS], True, last)
