"""Whether something is on the board at all. A direct read may be answered by a replica that is behind: what it has is
there, but what it lacks may be there too. So absence is asked of the stream's leader before anybody acts on it."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kokuban.blackboard.core.fold import Stored
from kokuban.blackboard.wire._errors import Refused

NO_MESSAGE = 10037
"""The server's code for a subject or sequence without a message."""
Api = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


async def of_leader(api: Api, stream: str, wanted: Mapping[str, Any]) -> Stored | None:
    """The message as the stream's leader has it, None when it has none. Raises what `api` raises."""
    try:
        answer = await api(f"STREAM.MSG.GET.{stream}", wanted)
    except Refused as error:
        if error.code == NO_MESSAGE:
            return None
        raise
    message = answer["message"]
    data = base64.b64decode(message.get("data", ""))
    return Stored(int(message["seq"]), message["subject"], seconds_of(message["time"]), data)


def seconds_of(stamp: str) -> float:
    """RFC 3339 with up to nanoseconds to seconds since 1970 (microseconds kept)."""
    head, _, fraction = stamp.rstrip("Z").partition(".")
    whole = datetime.datetime.fromisoformat(head).replace(tzinfo=datetime.UTC).timestamp()
    return whole + (float(f"0.{fraction}") if fraction else 0.0)
