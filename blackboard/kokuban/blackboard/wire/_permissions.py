"""Which user may publish and hear what. The server enforces it; this module only says it, for one tenant.

What a user may publish is exact. What is stored may be read by everybody of the same tenant. Streams and durable
consumers are made and changed by the supervisor alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from kokuban.blackboard.wire._names import PAYLOAD_SUBJECTS, PAYLOADS_STREAM, PERSON
from kokuban.schemas import subjects

if TYPE_CHECKING:
    from kokuban.schemas.contracts import Contract, Crew

Kind = Literal["client", "admin", "supervisor", "role", "approver", "watcher"]
KINDS: tuple[Kind, ...] = ("client", "admin", "supervisor", "role", "approver", "watcher")
NAMED: tuple[Kind, ...] = ("role", "approver")
_BOARD = subjects.BOARD
_STREAMS = (_BOARD, PAYLOADS_STREAM)
READ_CALLS = ("DIRECT.GET", "STREAM.MSG.GET", "STREAM.INFO")
"""A record by sequence or subject, of any replica and of the leader; the state of a stream."""


class User(NamedTuple):
    """Somebody whom the server knows. `name` is the role's or the approver's, else ''."""

    kind: Kind
    name: str = ""

    @property
    def id(self) -> str:
        """`client`, `role-coder`, `approver-ann`: also the name of the credential's file."""
        return f"{self.kind}-{self.name}" if self.name else self.kind

    @property
    def inbox(self) -> str:
        """Answers to this user come below this prefix, and only this user may hear them."""
        return f"_INBOX_{self.id}"


PLAIN = (User("client"), User("admin"), User("supervisor"), User("watcher"))
"""The users that every tenant has."""


class Permissions(NamedTuple):
    """Subjects with wildcards. `refuse` takes away from `publish`."""

    publish: tuple[str, ...]
    refuse: tuple[str, ...]
    subscribe: tuple[str, ...]


def user_of(identity: str) -> User:
    """Read `User.id` back. Raises `ValueError` for what is none."""
    for kind in KINDS:
        if identity == kind and kind not in NAMED:
            return User(kind)
        if kind in NAMED and identity.startswith(f"{kind}-"):
            return User(kind, subjects.token(identity[len(kind) + 1 :], kind))
    raise ValueError(f"{identity[:80]!r} is no user of Kokuban")


def permissions(user: User, crew: Crew) -> Permissions:
    """What `user` may do beside the roles of `crew`. Raises `KeyError` for a role that is not in it."""
    if user.kind == "supervisor":
        return Permissions(_supervisor(), (), (f"{user.inbox}.>", "kl.>"))
    if user.kind == "role":
        hints = tuple(f"{subjects.HINTS}.{space}" for space in (subjects.BOARD_SUBJECTS, subjects.CONTROL_SUBJECTS))
        return Permissions(_role(crew[user.name]), (), (f"{user.inbox}.>", *hints))
    writes = {"client": _client(), "admin": _admin(), "approver": _person(user.name), "watcher": ()}[user.kind]
    # A reader's consumer has a name that nobody can guess; only those of the roles are known, and they are not theirs.
    own = tuple(
        f"{subjects.MEMBERS_API}.CONSUMER.{call}.{_BOARD}.{subjects.consumer(role)}{more}"
        for role in crew
        for call, more in (("CREATE", ""), ("CREATE", ".>"), ("DELETE", ""), ("MSG.NEXT", ""))
    )
    return Permissions((*writes, *_READS, *_reader()), own, (f"{user.inbox}.>", "kl.>"))


def _reads(api: str, streams: tuple[str, ...]) -> tuple[str, ...]:
    """Records by sequence or subject, and the state of a stream."""
    return tuple(f"{api}.{call}.{stream}" for call in READ_CALLS for stream in streams)


MEMBER_PUBLISHES = (
    subjects.BOARD_SUBJECTS, *PAYLOAD_SUBJECTS, subjects.heartbeat("*", "*"), subjects.stopped("*", "*", "*"),
    f"{subjects.ACKS}.{_BOARD}.>",
)  # fmt: skip
"""What passes from a tenant's team to its board, each user's permissions allowing."""
MEMBER_CALLS = (
    *(f"{call}.{stream}" for call in READ_CALLS for stream in _STREAMS),
    *(f"CONSUMER.{call}.{_BOARD}.*" for call in ("CREATE", "DELETE", "MSG.NEXT")), f"CONSUMER.CREATE.{_BOARD}.*.>",
)  # fmt: skip
"""What a team asks the server about its board."""
MEMBER_HINTS = (f"{subjects.HINTS}.{subjects.BOARD_SUBJECTS}", f"{subjects.ANNOUNCEMENTS}.>")
"""What passes from the board to the team."""

_CONTROL_READS = _reads(subjects.CONTROL_API, (subjects.CONTROL,))
_READS = (*_reads(subjects.MEMBERS_API, _STREAMS), *_CONTROL_READS)


def _reader() -> tuple[str, ...]:
    """What a `Reader` needs: an ephemeral consumer of its own."""
    calls = ("CREATE.{}.*", "CREATE.{}.*.>", "DELETE.{}.*", "MSG.NEXT.{}.*")
    return tuple(f"{subjects.MEMBERS_API}.CONSUMER.{call.format(_BOARD)}" for call in calls)


def _person(name: str) -> tuple[str, ...]:
    return (
        subjects.gate_vote("*", "*", "*", name),
        subjects.control("*", name, "*"),
        *(subjects.memory("*", "*", word, f"person-{name}") for word in ("proposed", "judged")),
        subjects.memory("*", "*", "forgotten"),
    )


def _client() -> tuple[str, ...]:
    own = (subjects.memory("*", "*", "proposed", f"person-{PERSON}"), subjects.memory("*", "*", "forgotten"))
    return (subjects.spec("*"), subjects.control("*", PERSON, "*"), *own, *PAYLOAD_SUBJECTS)


def _admin() -> tuple[str, ...]:
    ctl = (subjects.LIMITS, "kb.ctl.kind.*.*", subjects.contract("*"), subjects.endpoint_limits("*"))
    return (*_client(), *ctl)


def _role(contract: Contract) -> tuple[str, ...]:
    role = contract.role
    own = subjects.consumer(role)
    return (
        subjects.register("*", role, "*"),
        subjects.journal("*", role, "*"),
        # Who judges the others' work may judge what they propose to remember.
        *(
            subjects.memory("*", "*", word, f"role-{role}")
            for word in ("proposed", *(("judged",) if "verdict" in contract.produces else ()))
        ),
        *(_artifact(role, kind) for kind in contract.produces),
        *((_artifact(role, "critique"),) if contract.reflects and "critique" not in contract.produces else ()),
        *PAYLOAD_SUBJECTS,
        subjects.endpoint("*"),
        subjects.heartbeat(role, "*"),
        subjects.delta("*", role, "*"),
        subjects.stopped("*", role, "*"),
        *_READS,
        f"{subjects.MEMBERS_API}.CONSUMER.MSG.NEXT.{_BOARD}.{own}",
        f"{subjects.ACKS}.{_BOARD}.{own}.>",
    )


def _artifact(role: str, kind: str) -> str:
    return f"kb.task.*.artifact.{role}.{kind}.*.*"


def _supervisor() -> tuple[str, ...]:
    return (
        subjects.spec("*"),  # what keeps the key of an archived task
        subjects.work("*", "*", "*"),
        subjects.register("*", "*", "*"),
        subjects.grant("*", "*", "*"),
        subjects.gate_request("*", "*", "*"),
        subjects.gate_decision("*", "*", "*"),
        subjects.ending("*"),
        subjects.final("*"),
        subjects.buried("*"),
        subjects.memory("*", "*", "forgotten"),
        "kb.ctl.>",
        f"{subjects.ANNOUNCEMENTS}.>",
        "$O.>",
        f"{subjects.SERVER_API}.>",
        f"{subjects.CONTROL_API}.STREAM.CREATE.{subjects.CONTROL}",
        *_CONTROL_READS,
    )
