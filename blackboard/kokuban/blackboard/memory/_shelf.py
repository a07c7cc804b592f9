"""A tenant's records as one process has read them so far, and what was made from them. The log is the truth: each look
reads on from where the last one stopped, and asks the stream's leader whether that was all."""

from __future__ import annotations

from array import array

from kokuban.blackboard.core import Stored
from kokuban.blackboard.memory._fold import Memory, folded, said
from kokuban.blackboard.wire import Bus
from kokuban.blackboard.wire._find import seconds_of
from kokuban.schemas import subjects


class Shelf:
    """For one tenant. `vectors` holds what an endpoint made of approved texts, by the digest of their record."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.vectors: dict[str, array[float]] = {}
        self._board = ""
        self._after = 0
        self._records: list[Stored] = []

    async def memories(self, bus: Bus) -> list[Memory]:
        """What stands now, by the server's time. Raises `BusError`."""
        info = await bus.patiently(lambda: bus.api(f"STREAM.INFO.{subjects.BOARD}"))
        if info["created"] != self._board or info["state"]["last_seq"] < self._after:  # another board, or one restored
            self._board, self._after, self._records = info["created"], 0, []
        after = self._after
        more = await bus.patiently(lambda: bus.history(subjects.memories(self.tenant), after=after))
        if more:
            known = [
                *self._records,
                *(one for one in more if one.seq > self._after),
            ]  # another look may have been faster
            gone = {parts.name for one in known if (parts := said(one.subject)).word == "forgotten"}
            self._after = max(self._after, more[-1].seq)
            self._records = [
                one for one in known if (parts := said(one.subject)).word == "forgotten" or parts.name not in gone
            ]
        found = folded(self._records, self.tenant, seconds_of(info["ts"]))
        kept = {memory.bound for memory in found if memory.state == "approved"}
        self.vectors = {bound: vector for bound, vector in self.vectors.items() if bound in kept}
        return found

    async def of(self, bus: Bus, name: str) -> tuple[list[Stored], float]:
        """Every record about one memory, and the server's time. Raises `BusError`."""
        info = await bus.patiently(lambda: bus.api(f"STREAM.INFO.{subjects.BOARD}"))
        records = await bus.patiently(lambda: bus.history(subjects.memories(self.tenant, name)))
        return records, seconds_of(info["ts"])
