"""What can go wrong on the wire, and whether the write landed."""

from __future__ import annotations

from kokuban.blackboard.wire._refusals import who_may


class BusError(Exception):
    """Base of what can go wrong on the wire. `landed`: False, it did not; None, unknown; never True."""

    landed: bool | None = False


class CannotConnect(BusError):
    """No usable server at that URL: unreachable, too old, without JetStream, or refusing us. Nothing was written."""


class TooLarge(BusError):
    """Body and headers are above what the server takes; sending them would end the connection. Nothing was written."""


class NoAnswer(BusError):
    """The server did not answer in time, or the connection went. Whether a write landed is unknown: read back."""

    landed = None


class Unavailable(BusError):
    """Nobody serves this request right now (503): a restarting server, a missing stream or consumer. Not landed."""


class Refused(BusError):
    """The server answered no. `code` is its JetStream error code. Nothing was written."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} ({code})")
        self.code = code
        self.description = description


class Forbidden(BusError):
    """The server does not let this user publish or hear that subject. Nothing was written, and trying again is no use.
    `user` is the credential's, '' without one."""

    def __init__(self, subject: str, user: str, *, publish: bool = True) -> None:
        who = f"the user {user}" if user else "a user without a credential"
        super().__init__(
            f"NATS: {who} may not {'publish' if publish else 'subscribe to'} {subject}: that is for {who_may(subject)} "
            "(name another credential with --credentials / KOKUBAN_CREDENTIALS)"
        )
        self.subject = subject
        self.user = user
