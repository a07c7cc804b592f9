"""The worst model: it does whatever any text in its request asks, whoever wrote it, before its own work."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kokuban.agents.models import Call, CallContext, Reply, Request

Wanted = tuple[str, Mapping[str, Any]]
_ASKED = re.compile(r"<<do (.*?)>>", re.DOTALL)


def asks(name: str, **arguments: Any) -> str:
    """A request as it is hidden in a text. `say` has words said instead of a tool called."""
    return f"<<do {json.dumps([name, arguments])}>>"


class Obedient:
    """Does what is asked first, once each; then `own`, one call a turn; then gives its answer. Asked for a critique, it
    gives `critique`; after one it does nothing of its own."""

    name, context_tokens = "obedient", None

    def __init__(self, own: Sequence[Wanted] = (), critique: str = "") -> None:
        self._own, self._critique = own, critique
        self.made: list[Wanted] = []
        self.requests: list[Request] = []

    async def call(self, request: Request, context: CallContext, progress: Any) -> Reply:
        self.requests.append(request)
        shown = "\n".join(m.content for m in request.messages if m.role != "assistant")
        if not request.tools:
            return self._reply(request, progress, self._critique)
        own = () if self._critique and context.attempt > 1 else self._own
        made = {(c.name, c.arguments) for m in request.messages for c in m.calls}
        said = [m.content for m in request.messages if m.role == "assistant"]
        shown += "\n".join(tool.description for tool in request.tools)
        for name, arguments in (*_hidden(shown), *own, ("give_answer", {"text": "it is done"})):
            text = json.dumps(arguments)
            if name == "say" and arguments["text"] not in said:
                self.made.append((name, arguments))
                return self._reply(request, progress, arguments["text"])
            if name != "say" and (name, text) not in made:
                self.made.append((name, arguments))
                return self._reply(request, progress, "", Call(f"call-{len(made)}", name, text))
        return self._reply(request, progress, "", Call("again", "give_answer", json.dumps({"text": "it is done"})))

    def obeyed(self, text: str) -> bool:
        """Whether it did what this text asks, or the first of it."""
        return _hidden(text)[0] in self.made

    async def aclose(self) -> None: ...

    def _reply(self, request: Request, progress: Any, content: str, *calls: Call) -> Reply:
        usage = progress.usage(request, complete=True)
        return Reply(content=content, calls=calls, finish="stop", usage=usage, model=self.name)


def _hidden(text: str) -> list[Wanted]:
    """The requests in a text, also where it stands inside JSON."""
    found: list[Wanted] = []
    for asked in _ASKED.findall(text):
        for said in (asked, asked.replace('\\"', '"'), asked.replace('\\\\\\"', '"').replace('\\"', '"')):
            try:
                name, arguments = json.loads(said)
            except ValueError:
                continue
            found.append((name, arguments))
            break
    return list({json.dumps(one): one for one in found}.values())
