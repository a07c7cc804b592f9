"""Registered kinds and roles are part of the fold: who counts, who judges what, and what an order is judged by."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from core.history import History
from kokuban.blackboard.core import Board, fold
from kokuban.blackboard.core.registry import (
    MAX_KINDS,
    MAX_ROLES,
    MAX_VERSIONS,
    crew_of,
    problems_of_kind,
    problems_of_role,
    versions_of,
)
from kokuban.schemas import Allotment, KindRef, RegisteredKind, RegisteredRole, Result, WorkOrder, digest, subjects
from kokuban.schemas.contracts import builtin_crew

POEM = {
    "type": "object",
    "required": ["lines"],
    "properties": {"lines": {"type": "array"}},
    "additionalProperties": False,
}
TITLED = {**POEM, "properties": {**POEM["properties"], "title": {"type": "string"}}}  # type: ignore[dict-item]
POET = 'role = "poet"\nsummary = "Writes."\nwhen = "planned"\nproduces = ["poem"]\n'
CRITIC = 'role = "critic"\nsummary = "Judges."\nwhen = "triggered"\ntriggers = ["poem"]\nproduces = ["verdict"]\n'


def kind(history: History, version: int, schema: Any = POEM, *, name: str = "poem", subject: str = "") -> str:
    """Store a kind; why it was ignored, '' when it counts."""
    body = RegisteredKind(name, version, msgspec.Raw(json.dumps(schema).encode()))
    return history.write(subject or subjects.kind(name, version), body, "ctl.kind", task=None).ignored


def role(history: History, text: str, *, name: str = "poet", subject: str = "") -> str:
    return history.write(subject or subjects.contract(name), RegisteredRole(name, text), "ctl.role", task=None).ignored


def test_versions_follow_each_other_and_only_widen() -> None:
    history = History()
    assert kind(history, 1) == ""
    assert "required: title was not required before" in kind(history, 2, {**TITLED, "required": ["lines", "title"]})
    assert "version 2 refuses what version 1 accepted" in kind(history, 2, {"type": "string"})
    assert kind(history, 3, TITLED) == ""
    assert "version: 2 does not follow 3" in kind(history, 2, TITLED)
    assert "properties.title" in kind(history, 4, POEM)
    assert history.board.kinds == {"poem": {1: json.dumps(POEM).encode(), 3: json.dumps(TITLED).encode()}}
    assert versions_of(["patch", "poem", "song"], history.board.kinds) == (KindRef("poem", 3),)


@pytest.mark.parametrize(
    ("name", "schema", "subject", "why"),
    [
        ("patch", {}, "", "is built in"),
        ("poem", {"$ref": "#"}, "", "points elsewhere"),
        ("poem", {}, subjects.kind("song", 1), "subject and kind disagree"),
        ("poem", {}, subjects.kind("poem", 2), "subject and kind disagree"),
        ("poem", {}, subjects.contract("poem"), "subject and kind disagree"),
        ("poem", {}, subjects.LIMITS, "subject and kind disagree"),
    ],
)
def test_a_kind_that_cannot_be_registered_counts_for_nothing(name: str, schema: Any, subject: str, why: str) -> None:
    history = History()
    assert why in kind(history, 1, schema, name=name, subject=subject)
    assert history.board.kinds == {}


def test_a_role_counts_once_its_kinds_are_there_and_is_replaced_by_the_next() -> None:
    history = History()
    assert "unknown kinds poem" in role(history, POET)
    kind(history, 1)
    assert role(history, POET) == ""
    assert role(history, POET.replace("Writes.", "Sings.")) == ""
    crew = crew_of(builtin_crew(), history.board.roles, history.board.kinds)
    assert [*crew] == [*builtin_crew(), "poet"]
    assert crew["poet"].summary == "Sings."
    assert crew is crew_of(builtin_crew(), dict(history.board.roles), history.board.kinds)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("coder", POET.replace("poet", "coder"), "is built in"),
        ("bard", POET, "the contract says 'poet'"),
        ("poet", "role = ", "not TOML"),
        ("poet", POET.replace('["poem"]', '["verdict"]'), "'verdict' is given by 'triggered' roles alone"),
        ("poet", POET.replace('["poem"]', '["poem", "plan"]'), "'plan' is given by 'start' roles alone"),
        ("poet", POET.replace('["poem"]', '["deliverable"]'), "'deliverable' is given by 'end' roles alone"),
        ("poet", POET.replace('["poem"]', '["task"]'), "'task' is given by 'nobody' roles alone"),
        ("poet", POET.replace("planned", "start"), "exactly one role must have when = 'start', 2 have"),
        ("critic", CRITIC.replace('["poem"]', '["deliverable"]'), "'deliverable' is judged by 'verifier' and 'critic'"),
        ("critic", CRITIC.replace('["poem"]', '["poem", "patch"]'), "'patch' is judged by 'verifier' and 'critic'"),
        ("critic", CRITIC.replace('["verdict"]', '["patch"]'), "'patch' is given by 'planned' roles alone"),
        ("critic", CRITIC.replace('["verdict"]', '["poem"]'), "would set each other off for ever: critic"),
        ("critic", CRITIC.replace('["poem"]', '["deliverable"]').replace('["verdict"]', '["poem"]'), "it is the end"),
    ],
)
def test_a_role_that_would_break_the_crew_counts_for_nothing(name: str, text: str, why: str) -> None:
    history = History()
    kind(history, 1)
    assert why in role(history, text, name=name)
    assert history.board.roles == {}


def test_two_judges_of_a_users_kind_or_a_circle_of_two_are_refused() -> None:
    history = History()
    kind(history, 1)
    kind(history, 1, {"type": "object"}, name="song")
    assert role(history, CRITIC, name="critic") == ""
    assert "'poem' is judged by 'critic' and 'second'" in role(
        history, CRITIC.replace("critic", "second"), name="second"
    )
    singer = CRITIC.replace("critic", "singer").replace('["verdict"]', '["song"]')
    assert role(history, singer, name="singer") == ""
    back = (
        singer.replace("singer", "back").replace('["poem"]', '["song"]').replace('s = ["song"]\n', 's = ["song"]\n', 1)
    )
    assert "for ever: " in role(history, back.replace('produces = ["song"]', 'produces = ["poem"]'), name="back")


def test_a_registered_role_gives_way_to_a_crew_of_the_supervisors_own() -> None:
    history = History()
    kind(history, 1)
    role(history, POET)
    own = {**builtin_crew(), "poet": builtin_crew()["coder"].model_copy(update={"role": "poet"})}
    assert crew_of(own, history.board.roles, history.board.kinds)["poet"].produces == ("patch",)


def test_so_many_kinds_and_versions_of_one_are_taken_and_no_more() -> None:
    def wanted(name: str, version: int) -> tuple[str, ...]:
        return problems_of_kind(kinds, RegisteredKind(name, version, msgspec.Raw(schema)))

    schema = b'{"type":"object"}'
    kinds = {f"k-{n}": {1: schema} for n in range(1, MAX_KINDS)}
    assert wanted("poem", 1) == ()
    kinds["poem"] = dict.fromkeys(range(1, MAX_VERSIONS), schema)
    assert wanted("song", 1) == ("kind: there are 500 kinds, or 1000 versions of this one; no more are taken",)
    assert wanted("k-1", 2) == wanted("poem", MAX_VERSIONS) == ()
    kinds["poem"][MAX_VERSIONS] = schema
    assert "no more are taken" in wanted("poem", MAX_VERSIONS + 1)[0]


def test_so_many_roles_are_taken_and_no_more() -> None:
    kinds, poet = {"poem": {1: json.dumps(POEM).encode()}}, RegisteredRole("poet", POET)
    roles = {f"r-{n}": "" for n in range(1, MAX_ROLES)}
    assert problems_of_role(roles, kinds, poet) == ()
    assert problems_of_role({**roles, "poet": POET}, kinds, poet) == (), "it is replaced"
    assert problems_of_role({**roles, "last": ""}, kinds, poet) == ("role: there are 500 roles; no more are taken",)


def commit(history: History, data: bytes, *, named: tuple[KindRef, ...] = (KindRef("poem", 1),)) -> tuple[str, ...]:
    """Order a poem, give these bytes; why they are refused."""
    spec = history.spec_seq
    order = WorkOrder(0, spec, "write", ("poem",), kinds=named, allotment=Allotment())
    history.order("write", "poet", order=order, produces=("poem",))
    history.claim("write")
    return history.done("write", results=(Result("poem", "p", digest(data), msgspec.Raw(data)),)).refused


def begun() -> History:
    history = History()
    kind(history, 1)
    kind(history, 2, TITLED)
    history.lead()
    history.spec()
    return history


def test_an_artifact_of_a_registered_kind_is_admitted_by_the_version_that_was_ordered() -> None:
    assert commit(begun(), b'{"lines":[]}') == ()
    history = begun()
    assert "title" in commit(history, b'{"lines":[],"title":"Ode"}')[0]
    assert commit(begun(), b'{"lines":[],"title":"Ode"}', named=(KindRef("poem", 2),)) == ()
    assert "'poem' is unknown" in commit(begun(), b'{"lines":[]}', named=(KindRef("poem", 9),))[0]
    assert "'poem' is unknown" in commit(begun(), b'{"lines":[]}', named=())[0]


def test_a_board_that_reads_one_task_judges_alike_once_it_knows_the_kinds() -> None:
    whole = begun()
    commit(whole, b'{"lines":[]}')
    one = Board(filtered=True, kinds=whole.board.kinds)
    for message in whole.messages:
        if message.subject.startswith(subjects.task_records(whole.task)[:-1]):
            fold(one, message)
    assert one.tasks[whole.task].steps["write"].status == whole.board.tasks[whole.task].steps["write"].status == "done"
