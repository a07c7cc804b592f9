"""The label of a step's work: the least trusted text that it has seen, whoever carries the step on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kokuban.agents._output import Output
from kokuban.agents._trust import handed
from kokuban.agents._work import Work
from kokuban.agents.policy import Policy, Who
from kokuban.agents.tools import BUILT_IN_TOOLS, Tool
from kokuban.blackboard._content import Content
from kokuban.blackboard.wire import Bus, Payloads
from kokuban.schemas import TRUST, Critique, Feedback, Plan, PlanStep, Ref, Trust, digest, encode, least_trusted
from support.at_work import at_work, ended
from support.bench import DONE, Benches, call, decided, says, waits
from support.desk import Desk
from support.nats_server import NatsServer

pytestmark = pytest.mark.anyio
RULE = """
version = "1"
[[rules]]
name = "not after a stranger's word"
outcome = "deny"
tools = ["post"]
trust = "untrusted"
"""


def test_the_least_trusted_counts() -> None:
    assert TRUST == ("system", "principal", "model", "untrusted")
    assert least_trusted("system", "untrusted", "model") == "untrusted"
    assert least_trusted("principal") == "principal"


def test_what_nobody_declares_is_a_strangers() -> None:
    assert Tool("t", "", {"type": "object"}, lambda context, values: "").trust == "untrusted"
    assert Who("acme", "ann", "coder").trust == "untrusted"
    levels = {tool.name: tool.trust for tool in BUILT_IN_TOOLS}
    for name in ("read_file", "search_files", "search_sources", "run_checks", "fetch_url", "edit_file", "write_code"):
        assert levels[name] == "untrusted", name
    assert levels["ask_person"] == levels["recall"] == "principal"
    assert levels["write_file"] == levels["remember"] == "system"


@pytest.mark.parametrize("said", ['"untrusted"', '["model", "untrusted"]'])
def test_a_rule_may_ask_for_the_label_and_the_ruling_names_it(said: str) -> None:
    policy = Policy.parse(RULE.replace('"untrusted"', said))
    post = Tool("post", "", {"type": "object"}, lambda context, values: "", "write")
    ruling = policy.judge(Who("acme", "ann", "coder", "untrusted"), post, {})
    assert (ruling.outcome, ruling.trust) == ("deny", "untrusted")
    assert str(ruling).endswith(f"(policy {policy.version}, untrusted)")
    assert policy.judge(Who("acme", "ann", "coder", "principal"), post, {}).outcome == "allow"


def test_a_policy_that_never_asks_for_it_keeps_its_version() -> None:
    assert Policy.parse('version = "1"\n[[rules]]\nname = "r"\noutcome = "deny"').version == "1:0b5c18dad52a"


@pytest.fixture
async def bench(nats_server: NatsServer, tmp_path: Path) -> Any:
    async with await Bus.connect(nats_server.url) as bus:
        yield Benches(await Desk.open(bus), tmp_path / "work")


async def test_a_result_of_a_stranger_marks_all_that_follows(bench: Benches) -> None:
    b = await bench()
    b.work.policy = Policy.parse(RULE)
    await b.run(says(call("post", '{"limit":1}')), says(call("look", '{"path":"a"}')), says(call("post")), DONE)
    assert b.names == ["post", "look"]
    assert b.work.trust == "untrusted"
    assert "the policy denies it" in b.talk.seen[-1].text


async def test_who_takes_a_step_up_comes_to_the_same_label_without_running_anything(bench: Benches) -> None:
    first = await bench()
    gate = await waits(first, says(call("look", '{"path":"a"}')), says(call("wire_money")))
    assert "The step has read what strangers wrote." in gate.asks
    second = await bench(resumes=True, decided=(decided(gate, "denied"),))
    assert second.work.trust == "model"
    await second.run(DONE)
    assert second.names == []
    assert second.work.trust == "untrusted"


async def test_the_journal_counts_not_what_is_declared_by_now(bench: Benches) -> None:
    first = await bench()
    await waits(first, says(call("look", '{"path":"a"}')), says(call("wire_money")))
    second = await bench(resumes=True)
    for name, tool in second.tools._tools.items():
        object.__setattr__(tool, "trust", "system") if name == "look" else None
    await waits(second, DONE)
    assert second.work.trust == "untrusted"


@pytest.mark.parametrize("label", TRUST)
async def test_a_label_goes_with_the_artifact_to_whoever_works_from_it(
    nats_server: NatsServer, tmp_path: Path, label: Trust
) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        desk = await Desk.open(bus)
        made = Critique(Ref("a", "patch", "p", digest(b"p"), 1), "words")
        writer = await desk.claimed(await desk.order("verifier", "judge"))
        seq = await writer.done([Output("c", made)], None, label, None)
        ref = Ref("judge", "critique", "c", digest(encode(made)), seq)

        async def perform(work: Work) -> list[Output]:
            assert work.labels == {ref.digest: label}
            return [Output("plan", Plan((PlanStep("a", "coder", "do it"),)))]

        async with at_work(nats_server.url, tmp_path, perform):
            await desk.order(inputs=(ref,))
            record = await ended(desk)
        assert (record.type, record.trust) == ("step.done", least_trusted("model", label))


@pytest.mark.parametrize(
    ("feedback", "label"),
    [("failed", "untrusted"), ("verdict", "untrusted"), ("refused", "untrusted"), ("denied", "system")],
)
async def test_why_an_attempt_did_not_count_may_quote_anything(
    nats_server: NatsServer, feedback: Any, label: str
) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        desk = await Desk.open(bus)
        owner = await desk.claimed(await desk.order(feedback=(Feedback(1, feedback, "it said so"),)))
        assert (await handed(owner, Content(bus, Payloads(bus)), plans=True))[1] == label


async def test_the_plan_that_a_goal_stands_in_counts(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        desk = await Desk.open(bus)
        planner = await desk.claimed(await desk.order("planner", "plan"))
        await planner.done([Output("plan", Plan((PlanStep("fix", "coder", "do"),)))], None, "untrusted", None)
        owner, content = await desk.claimed(await desk.order()), Content(bus, Payloads(bus))
        assert (await handed(owner, content, plans=True))[1] == "untrusted"
        assert (await handed(owner, content, plans=False))[1] == "system"
        gone = Ref("x", "finding", "f", digest(b"gone"), 999_999)
        assert await content.trust(gone) == "untrusted"
