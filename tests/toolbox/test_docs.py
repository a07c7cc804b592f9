"""The examples of docs/tools.md do what they say."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kokuban.agents.toolbox import Toolbox, lacking
from kokuban.agents.tools import Arguments, Invalid, Observation, Registry, ToolContext, execute

pytestmark = pytest.mark.anyio
PAGE = Path(__file__).parents[2] / "docs" / "tools.md"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The page's files. Modules are imported from here and forgotten again."""
    for name, text in re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        (tmp_path / name).write_text(text.replace('["python",', f'["{sys.executable}",'), "utf-8")
    yield tmp_path
    sys.modules.pop("bank", None)
    sys.path[:] = [place for place in sys.path if place != str(tmp_path)]


async def call(box: Toolbox, name: str, context: ToolContext, **values: object) -> Observation | Invalid:
    judged = Registry(box.tools).validate(name, values)
    return await execute(judged, context) if isinstance(judged, Arguments) else judged


async def test_the_file_of_the_page_and_all_its_tools(folder: Path) -> None:
    async with Toolbox.open(folder / "tools.toml", patience_seconds=60) as box:
        assert box.disabled == {}
        assert {tool.name: (tool.tier, tool.effect) for tool in box.tools} == {
            "balance": ("read", "read"), "transfer": ("consequential", "keyed"), "notes_find": ("read", "read"),
        }  # fmt: skip
        assert next(tool.tier for tool in box.built_in if tool.name == "write_file") == "consequential"
        assert [lacking(tool) for tool in box.tools] == [(), (), ()]
        here = ToolContext(folder, folder, key="k", secrets={"BANK_TOKEN": "canary-5"})
        found = await call(box, "balance", here, account="DE12")
        assert found.text == '{"account": "DE12", "cents": 1200}'
        assert (await call(box, "balance", here, account="DE0")).text.startswith("there is no account DE0")
        assert isinstance(await call(box, "transfer", here, account="DE12", cents=0), Invalid)
        sent = await call(box, "transfer", here, account="DE12", cents=5)
        assert isinstance(sent, Observation)
        assert (sent.ok, sent.known, sent.transient) == (False, True, True)
        assert (await call(box, "notes_find", here, word="x")).text == "no note says x"
