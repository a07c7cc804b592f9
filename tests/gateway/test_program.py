"""Foreign programs as workers, with real processes: their work is checked like anybody's, and paid once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from kokuban.agents import Output, StepFailed
from kokuban.agents.roles.program import _declared, _named_by
from kokuban.agents.sandbox import probed
from kokuban.blackboard import Client
from kokuban.schemas import digest
from kokuban.schemas.subjects import InvalidName
from support.nats_server import NatsServer
from support.processes import Process, child
from support.team import CHECK, plan, records, script, team, workspace
from support.waiting import eventually

AGENT = Path(__file__).with_name("agent.py").absolute()
FIXED = "def add(a, b):\n    return a + b\n\n\ndef double(a):\n    return a + a\n"
pytestmark = pytest.mark.anyio


def replies(path: Path, code: str = FIXED) -> str:
    return script(
        path, plan(("fix", "coder", ())),
        {"when": {"role": "coder", "contains": "What is to be changed?"}, "reply": {"content": "the signs"}},
        {"when": {"role": "coder", "contains": "Write calc.py. the signs"}, "reply": {"content": code}},
    )  # fmt: skip


def coder(
    url: str, model: str, command: str, log: Path, role: str = "coder", **environment: str
) -> AbstractAsyncContextManager[Process]:
    """A worker process whose work a program does."""
    words = ["-m", "kokuban.console.main", "worker", role, "--exec", command, "--model", model]
    return child(*words, env={"KOKUBAN_NATS_URL": url} | environment, log=log)


OTHERS = ("planner", "verifier", "integrator", "researcher")


async def test_a_program_that_knows_nothing_of_kokuban_does_a_task(nats_server: NatsServer, tmp_path: Path) -> None:
    model = replies(tmp_path / "s.json")
    async with (
        team(nats_server.url, model, tmp_path / "team", roles=OTHERS),
        coder(nats_server.url, model, f"{sys.executable} {AGENT}", tmp_path / "log"),
        await Client.connect(nats_server.url) as board,
    ):  # fmt: skip
        task = await board.submit("Fix both", workspace=workspace(tmp_path / "ws"), checks=[CHECK])
        outcome = await board.result(task, timeout=60)
    assert (outcome.state, outcome.checked) == ("done", True), outcome.reason
    assert outcome.files["calc.py"].content.decode() == FIXED
    assert outcome.usage.model_calls == 3, "the plan, and two calls through the gateway"
    assert outcome.usage.tokens > 0


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("echo oh no; exit 3", "the program ended with exit code 3: oh no"),
        ("true", "Nothing is changed yet"),
        ("echo 'exit 0' > check.sh", "check.sh"),
        ("echo '{}' > $KOKUBAN_OUTPUT/x.nonsense.json; echo x >> calc.py", "x.nonsense.json"),
        ("echo '{}' > $KOKUBAN_OUTPUT/x.patch.json", "'x.patch.json': Object missing required field"),
        ("kill -9 $$", "killed by signal 9"),
        ("rmdir $KOKUBAN_OUTPUT", "Nothing is changed yet"),
        ("rmdir $KOKUBAN_OUTPUT; ln -s /usr/share $KOKUBAN_OUTPUT", "was replaced by something else"),
        ("echo '{}' > \"$KOKUBAN_OUTPUT/My x.patch.json\"", "'My x.patch.json': the name of an output"),
        ("echo $OPENAI_API_KEY in $HOME; exit 1", "exit code 1: … in ~"),
    ],
)
async def test_what_a_program_leaves_is_judged(
    nats_server: NatsServer, tmp_path: Path, command: str, reason: str
) -> None:
    model = replies(tmp_path / "s.json")
    async with (
        team(nats_server.url, model, tmp_path / "team", roles=OTHERS),
        coder(nats_server.url, model, command, tmp_path / "log"),
        await Client.connect(nats_server.url) as board,
    ):  # fmt: skip
        task = await board.submit(
            "Fix both", workspace=workspace(tmp_path / "ws"), checks=[CHECK], attempts=1, replans=0
        )
        outcome = await board.result(task, timeout=60)
    assert outcome.state == "failed"
    assert reason in outcome.reason


@pytest.mark.parametrize(
    ("isolation", "reason"), [("preferred", "Device or resource busy"), ("none", "checkout' is not a folder")]
)
async def test_what_is_put_in_the_place_of_its_files_is_not_read(
    nats_server: NatsServer, tmp_path: Path, isolation: str, reason: str
) -> None:
    if isolation == "preferred" and probed().kind != "bubblewrap":
        pytest.skip("without bubblewrap it is as with none")
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "calc.py").write_text(f"{FIXED}SECRET = 'of somebody else'\n")
    (tmp_path / "others" / "check.sh").write_text(workspace(tmp_path / "ws").joinpath("check.sh").read_text())
    command = f"cd .. && mv checkout away && ln -sfn {tmp_path / 'others'} checkout; true"
    model = replies(tmp_path / "s.json")
    async with (
        team(nats_server.url, model, tmp_path / "team", roles=OTHERS),
        coder(nats_server.url, model, command, tmp_path / "log", KOKUBAN_ISOLATION=isolation),
        await Client.connect(nats_server.url) as board,
    ):  # fmt: skip
        task = await board.submit("Fix both", workspace=tmp_path / "ws", checks=[CHECK], attempts=1, replans=0)
        outcome = await board.result(task, timeout=60)
    assert outcome.state == "failed"
    assert reason in outcome.reason
    assert not any(b"of somebody else" in one.data for one in await records(nats_server.url))


async def test_results_of_other_kinds_stand_in_files(nats_server: NatsServer, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "harbour.md").write_text("# Harbour\n\nThe harbour is 12 m deep.\n")
    text = (tmp_path / "docs" / "harbour.md").read_bytes()
    cited = {
        "source": "harbour.md",
        "quote": "The harbour is 12 m deep.",
        "first": 3,
        "last": 3,
        "sha256": digest(text),
    }
    finding = {"statement": "12 m", "citations": [cited]}
    program = (
        f'grep -q deep $KOKUBAN_SOURCES/harbour.md && test -n "$KOKUBAN_PROMPT" && '
        f"echo '{json.dumps(finding)}' > $KOKUBAN_OUTPUT/depth.finding.json"
    )
    model = script(tmp_path / "s.json", plan(("depth", "researcher", ())))
    others = tuple(role for role in (*OTHERS, "coder") if role != "researcher")
    async with (
        team(nats_server.url, model, tmp_path / "team", roles=others),
        coder(nats_server.url, model, program, tmp_path / "log", role="researcher"),
        await Client.connect(nats_server.url) as board,
    ):  # fmt: skip
        task = await board.submit("How deep is it?", sources=[tmp_path / "docs"], attempts=1, replans=0)
        outcome = await board.result(task, timeout=60)
    assert outcome.state == "done", outcome.reason
    assert outcome.deliverable is not None
    assert "The harbour is 12 m deep." in outcome.deliverable.report


def test_no_output_and_output_that_cannot_be_taken_are_never_our_fault(tmp_path: Path) -> None:
    assert _declared(tmp_path / "gone", ("note",), ()) == []
    (tmp_path / "file").touch()
    with pytest.raises(StepFailed, match="replaced by something else"):
        _declared(tmp_path / "file", ("note",), ())
    for name, content in [
        (b"\xff.note.json", b"{}"), (b"A.note.json", b"{}"), (b"a.b.note.json", b"{}"),
        (b"x" * 65 + b".note.json", b"{}"), (b"a.note.json", b"["), (b"b.note.json", b"[" * 100_000),
        (b"c.note.json", b"1e999"), (b"d.note.json", b'"\\ud800"'), (b"e.note.json", b"\xff"),
        (b"f.finding.json", b"{}"),
    ]:  # fmt: skip
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        Path(os.fsdecode(os.path.join(os.fsencode(folder), name))).write_bytes(content)
        with pytest.raises(StepFailed, match="output '"):
            _declared(folder, ("note", "finding"), ())
    folder, link, pipe = (tmp_path / kind / "a.note.json" for kind in ("folder", "link", "pipe"))
    for path in folder, link.parent, pipe.parent:
        path.mkdir(parents=True)
    link.symlink_to(tmp_path / "file")
    os.mkfifo(pipe)
    for path, said in (folder, "Is a directory"), (link, "symbolic link"), (pipe, "no file of at most"):
        with pytest.raises(StepFailed, match=said):
            _declared(path.parent, ("note",), ())


def test_a_name_that_no_record_takes_is_the_role_makers_fault() -> None:
    with pytest.raises(InvalidName, match="'a b' is not a name"):
        Output("a b", {}, of="note")


async def test_killed_it_goes_on_from_the_journal_and_buys_nothing_twice(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    model = replies(tmp_path / "s.json")
    async with (
        team(nats_server.url, model, tmp_path / "team", roles=OTHERS, silence_seconds=1.5),
        await Client.connect(nats_server.url) as board,
    ):  # fmt: skip
        async with coder(
            nats_server.url,
            model,
            f"{sys.executable} {AGENT} wait",
            tmp_path / "log",
            KOKUBAN_CRASH_AT="journal:after#3",
        ) as first:
            task = await board.submit("Fix both", workspace=workspace(tmp_path / "ws"), checks=[CHECK])
            await asyncio.wait_for(first.wait(), 60)
            assert first.returncode == -signal.SIGKILL
        async with coder(nats_server.url, model, f"{sys.executable} {AGENT}", tmp_path / "log"):
            outcome = await board.result(task, timeout=60)
    assert outcome.state == "done", outcome.reason
    settled = [
        json.loads(one.data)["body"] for one in await records(nats_server.url) if b'"type":"step.journal"' in one.data
    ]
    changed = [b for b in settled if "the signs" in json.dumps(b.get("settles") or {})]
    assert len(changed) == 1, "the first call was paid once and played back"


def test_a_command_opens_the_folders_of_its_programs_and_nobodys_home(tmp_path: Path) -> None:
    own, home = tmp_path / "own" / "bin", Path.home()
    own.mkdir(parents=True)
    for path in (own / "agent", tmp_path / "agent.sh"):
        path.touch()
    (own.parent / "pyvenv.cfg").write_text(f"home = {own}\nversion = 3\n")
    assert _named_by(f"{own / 'agent'} --x '/not/there'") == (own.parent,)
    assert _named_by(f"sh {tmp_path / 'agent.sh'}") == (tmp_path,)
    assert _named_by(f"ls / /tmp /home {home}") == ()


def test_of_dot_folders_a_command_opens_the_programs_and_libraries_alone(tmp_path: Path) -> None:
    for name in (".cargo/bin", ".local/bin", ".local/share", ".venv/bin", ".venv/lib"):
        (tmp_path / name).mkdir(parents=True)
    for name in (".cargo/bin/agent", ".cargo/credentials", ".local/share/notes", ".venv/bin/agent"):
        (tmp_path / name).touch()
    config = tmp_path / ".venv" / "pyvenv.cfg"
    config.write_text(f"home = {tmp_path / '.local' / 'bin'}\n")
    assert _named_by(f"{tmp_path}/.cargo/bin/agent") == (tmp_path / ".cargo" / "bin",)
    assert _named_by(f"cat {tmp_path}/.cargo/credentials") == (tmp_path / ".cargo" / "credentials",)
    inside = (tmp_path / ".venv" / "bin", tmp_path / ".venv" / "lib", config, tmp_path / ".local" / "bin")
    assert _named_by(f"{tmp_path}/.venv/bin/agent") == inside


async def test_cancel_ends_the_program(nats_server: NatsServer, tmp_path: Path) -> None:
    model = replies(tmp_path / "s.json")
    mark = f"sleep 61{os.getpid()}"
    async with (
        team(nats_server.url, model, tmp_path / "team", roles=OTHERS),
        coder(nats_server.url, model, mark, tmp_path / "log", KOKUBAN_ISOLATION="none"),
        await Client.connect(nats_server.url) as board,
    ):  # fmt: skip
        task = await board.submit("Fix both", workspace=workspace(tmp_path / "ws"), checks=[CHECK])
        await eventually(lambda: runs(mark))
        await board.cancel(task)
        assert (await board.result(task, timeout=20)).state == "cancelled"
        await eventually(lambda: not runs(mark), seconds=10)


def runs(command: str) -> bool:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes().replace(b"\0", b" ").strip() == command.encode():
                    return True
            except OSError:
                continue
    return False
