"""The researcher: facts from the task's documents, each with a quote that really stands there."""

from __future__ import annotations

import re
from typing import Any

from kokuban.agents._answer import OBJECTIONS_ALLOWED, Answer
from kokuban.agents._output import Output
from kokuban.agents._prompts import prompt
from kokuban.agents._work import StepFailed, Work
from kokuban.agents.loop import Loop
from kokuban.agents.models import Message
from kokuban.agents.roles._shared import feedback_of, scope_of
from kokuban.agents.tools import rank
from kokuban.blackboard.workspace import Tree, content_digest, is_text
from kokuban.schemas import Citation, Finding

PASSAGES = 6
MAX_QUOTE_CHARS = 300
MAX_FINDINGS = 6


class Researcher:
    """The runtime searches the documents, the model answers with quotes, the runtime finds each quote verbatim. A quote
    that is not there goes back as data; after that, only findings whose quotes are there are kept."""

    prompt_version = prompt("researcher").version

    async def perform(self, work: Work) -> list[Output]:
        order, sources = work.assignment.order, await work.sources()
        found = rank(sources, f"{order.goal} {work.spec.goal}", PASSAGES)
        if not found:
            raise StepFailed("no_progress", "no passage of the documents has a word of the question", retryable=False)
        work.saw_files("search_sources")
        text = "\n\n".join(f"[{i}] {p.source}:\n{p.text}" for i, p in enumerate(found, 1))
        messages = prompt("researcher").fill(passages=text, step_goal=order.goal, goal=work.spec.goal)
        feedback = feedback_of(work)
        if feedback:
            messages[-1] = Message("user", f"{messages[-1].content}\n\n{feedback}")
        refusals = 0

        async def judge(value: dict[str, Any]) -> str | None:
            nonlocal refusals
            wrong = [
                f'quote {i} is not in {f["source"]}; copy it exactly: "{f["quote"]}"'
                for i, f in enumerate(value["findings"], 1)
                if cite(sources, f["source"], f["quote"]) is None
            ]
            usable = len(wrong) < len(value["findings"])
            if (not wrong and usable) or (usable and refusals >= OBJECTIONS_ALLOWED - 1):
                return None
            refusals += 1
            listed = "\n".join(f"- {w}" for w in wrong) or "- there is no finding"
            return f"Refused:\n{listed}\nAnswer with all findings, mended."

        dialog = Answer("findings", messages, _schema(sorted({p.source for p in found})), judge)
        value = await Loop(work, dialog, scope=await scope_of(work), prompt=self.prompt_version).run()
        cited = [(f["statement"], cite(sources, f["source"], f["quote"])) for f in value["findings"]]
        findings = [Finding(statement, (citation,)) for statement, citation in cited if citation is not None]
        return [Output(f"finding-{i}", finding) for i, finding in enumerate(dict.fromkeys(findings), 1)]


def cite(sources: Tree, source: str, quote: str) -> Citation | None:
    """Where `quote` stands in `source`: white space may differ in what a model copies. The citation has it
    verbatim, with the rest of its lines when they are short: small models cut too close. None when it is not there."""
    words = quote.split()
    file = sources.get(source)
    if file is None or not words or not is_text(file.content):
        return None
    text = file.content.decode()
    match = re.search(r"\s+".join(re.escape(word) for word in words), text)
    if match is None:
        return None
    first = text.count("\n", 0, match.start()) + 1
    last = first + match[0].count("\n")
    lines = "\n".join(text.split("\n")[first - 1 : last]).strip()
    return Citation(
        source, first, last, lines if len(lines) <= MAX_QUOTE_CHARS else match[0], content_digest(file.content)
    )


def stands(sources: Tree, citation: Citation) -> bool:
    """Whether the quote is verbatim in those lines of that very source."""
    file = sources.get(citation.source)
    if file is None or not is_text(file.content) or content_digest(file.content) != citation.sha256:
        return False
    lines = file.content.decode().split("\n")[citation.first - 1 : citation.last]
    return citation.quote in "\n".join(lines)


def _schema(sources: list[str]) -> dict[str, Any]:
    text = {"type": "string", "minLength": 5, "maxLength": MAX_QUOTE_CHARS}
    finding = {
        "type": "object",
        "additionalProperties": False,
        "required": ["source", "quote", "statement"],
        "properties": {"source": {"enum": sources}, "quote": text, "statement": text | {"maxLength": 160}},
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["findings"],
        "properties": {"findings": {"type": "array", "maxItems": MAX_FINDINGS, "items": finding}},
    }
