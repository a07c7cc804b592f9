"""The coder: changes files in its own checkout until the checks are satisfied. The runtime makes the diff."""

from __future__ import annotations

from kokuban.agents._output import Output
from kokuban.agents._prompts import prompt
from kokuban.agents._work import Work
from kokuban.agents.loop import Loop
from kokuban.agents.roles._coding import Coding
from kokuban.agents.roles._native import NativeActions
from kokuban.agents.roles._shared import scope_of
from kokuban.agents.roles._writing import Writing


class Coder:
    """`work.native_tools` chooses how the model acts: its provider's tool calls, or one file a turn in plain text. The
    tools are those that the role's contract names."""

    prompt_version = prompt("coder").version
    native_prompt_version = prompt("coder-tools").version

    async def perform(self, work: Work) -> list[Output]:
        coding = await Coding.begin(work)
        tools = work.registry()
        dialog = (NativeActions if work.native_tools else Writing)(coding, tools)
        version = self.native_prompt_version if work.native_tools else self.prompt_version
        scope = await scope_of(work)
        summary = await Loop(work, dialog, tools, coding.context, scope, prompt=version).run()
        return [await coding.patch(str(summary))]
