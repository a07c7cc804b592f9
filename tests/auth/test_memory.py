"""What is remembered, with credentials: the server lets a role propose and nothing more, and knows who speaks."""

from __future__ import annotations

import asyncio

import pytest

from kokuban.blackboard.memory import ANYBODY, EVERYTHING, Access, Memories, NoMemory
from kokuban.blackboard.wire import Bus, Forbidden, ensure_board
from kokuban.schemas import digest, seal, subjects
from kokuban.schemas.memory import Judgement
from kokuban.supervisor import Supervisor
from support.auth_users import Enter
from support.waiting import eventually, running

pytestmark = pytest.mark.anyio


def of(bus: Bus, who: str, *, unapproved: bool = True) -> Memories:
    return Memories(
        bus, tenant="red", access=Access(kinds=EVERYTHING, principals=ANYBODY, unapproved=unapproved), who=who
    )


async def test_a_role_proposes_and_recalls_and_only_others_approve(owner: Bus, enter: Enter) -> None:
    coder, ann = await enter("role-coder"), await enter("approver-ann")
    name, new = await of(coder, "role-coder").propose(kind="fact", key="port", text="8900")
    assert new
    for user, who in (
        ("role-coder", "role-coder"), ("role-coder", "person-ann"), ("client", "person-local"),
        ("watcher", "person-ann"), ("supervisor", "person-ann"), ("approver-bob", "person-ann"),
        ("role-planner", "role-verifier"),
    ):  # fmt: skip
        with pytest.raises(Forbidden, match="judged"):
            await asyncio.wait_for(of(await enter(user), who).judge(name, "approved"), 10)
    assert await of(coder, "role-coder").recall("port") == []
    assert (await of(ann, "person-ann").judge(name, "approved")).by == "person-ann"
    (found,) = await of(coder, "role-coder", unapproved=False).recall("port")
    assert (found.proposal.text, found.author, found.by) == ("8900", "role-coder", "person-ann")


async def test_who_judges_the_others_work_may_judge_what_they_remember(owner: Bus, enter: Enter) -> None:
    coder, verifier = await enter("role-coder"), await enter("role-verifier")
    name, _ = await of(coder, "role-coder").propose(kind="fact", key="port", text="8900")
    assert (await of(verifier, "role-verifier").judge(name, "approved")).by == "role-verifier"
    assert len(await of(coder, "role-coder").recall("port")) == 1


async def test_nobody_speaks_in_anothers_name(owner: Bus, enter: Enter) -> None:
    for user, who in (("role-coder", "role-planner"), ("role-coder", "person-ann"), ("client", "person-ann")):
        with pytest.raises(Forbidden, match="proposed"):
            await asyncio.wait_for(of(await enter(user), who).propose(kind="fact", key="k", text=who), 10)


async def test_a_forged_approval_on_a_subject_that_a_role_may_write_counts_for_nothing(
    owner: Bus, enter: Enter
) -> None:
    coder = await enter("role-coder")
    name, _ = await of(coder, "role-coder").propose(kind="fact", key="k", text="t")
    stored = await owner.find(subjects.memory("red", name, "proposed", "role-coder"))
    assert stored is not None
    word = seal(Judgement("approved", digest(stored.data)), id="op", type="memory.judged")
    await coder.publish(subjects.memory("red", name, "proposed", "role-coder"), word)
    assert [m.state for m in await of(owner, "person-x").listed()] == ["proposed"]


async def test_forgetting_deletes_at_once_for_who_may_and_soon_for_the_others(owner: Bus, enter: Enter) -> None:
    coder, client = await enter("role-coder"), await enter("client")
    ids = [(await of(coder, "role-coder").propose(kind="fact", key="k", text=f"{n}"))[0] for n in range(3)]
    with pytest.raises(Forbidden, match="forgotten"):
        await asyncio.wait_for(of(coder, "role-coder").forget(name=ids[0]), 10)

    async def left() -> set[str]:
        return {one.subject.split(".")[3] for one in await owner.history("kb.mem.red.*.proposed.*")}

    assert await of(owner, "person-x").forget(name=ids[0]) == 1
    assert await left() == set(ids[1:])
    assert await of(client, "person-local").forget(name=ids[1]) == 1
    assert [m.id for m in await of(coder, "role-coder").listed()] == [ids[2]]
    assert await left() == set(ids[1:]), "it may not delete what it hides"
    async with running(Supervisor(owner).run()):
        await eventually(lambda: _is(left(), {ids[2]}))


async def _is(found: object, wanted: set[str]) -> bool:
    return await found == wanted  # type: ignore[misc, no-any-return]


async def test_another_tenants_memory_is_on_another_board(owner: Bus, enter: Enter) -> None:
    coder = await enter("role-coder")
    name, _ = await of(coder, "role-coder").propose(kind="fact", key="k", text="t")
    await ensure_board(await enter("supervisor", "blue"))
    for user, who in (("role-coder", "role-coder"), ("approver-ann", "person-ann"), ("supervisor", "person-x")):
        theirs = of(await enter(user, "blue"), who)
        assert await theirs.listed() == await theirs.recall("k") == []
        with pytest.raises(NoMemory):
            await theirs.get(name)
    assert len(await of(owner, "person-x").listed()) == 1
