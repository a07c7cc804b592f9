"""What a server says that it will not let us do: in an error of the connection, not in an answer."""

from __future__ import annotations

import re
from typing import NamedTuple

_REFUSAL = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"', re.IGNORECASE)


class Refusal(NamedTuple):
    """`subject` is in lower case, as nats-py gives it on."""

    is_publish: bool
    subject: str


def refusal_in(error: Exception) -> Refusal | None:
    """Read an error of the connection. None when it is about something else."""
    found = _REFUSAL.search(str(error))
    return Refusal(found[1].lower() == "publish", found[2].lower()) if found else None


def who_may(subject: str) -> str:
    """In words, whose credential it takes to publish `subject`."""
    parts = subject.split(".")
    match parts:
        case ["kb", "task", _, "spec"]:
            return "client"
        case ["kb", "task", _, "step" | "journal", role, _]:
            return f"role-{role}"
        case ["kb", "task", _, "artifact", role, *_]:
            return f"role-{role}, and for the kinds that its contract produces"
        case ["kb", "task", _, "gate", _, _, "vote", person]:
            return f"approver-{person}"
        case ["kb", "task", _, "control", person, _]:
            return f"approver-{person}, or client where that is its person"
        case ["kb", "mem", _, _, "judged", *_]:
            return "an approver, in their own name, or a role that judges"
        case ["kb", "mem", *_]:
            return "whoever it is written in the name of"
        case ["kb", "ctl", "limits"] | ["kb", "ctl", "kind" | "role", *_] | ["kc", "limits", _]:
            return "admin"
        case ["kb", *_]:
            return "supervisor"
        case ["kc", "endpoint", _]:
            return "the roles"
        case ["$O", *_]:
            return "client, admin, the roles or supervisor"
        case ["$JS", *rest] if "CONSUMER" in rest and "NEXT" in rest:
            return f"role-{rest[-1]}, if that is a role's consumer"
        case ["$JS", *rest] if "STREAM" in rest or "CONSUMER" in rest:
            return "supervisor"
    return "nobody, or another user"
