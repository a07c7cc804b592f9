"""A role in Python: a contract (glossarist.toml) and this class. The worker around it claims, journals and commits.

kokuban kinds add kinds/glossary.json
kokuban roles add glossarist.toml
kokuban worker glossarist --program glossarist:Glossarist
"""

from __future__ import annotations

import re

from kokuban.agents import Output, StepFailed, Work

TERM = re.compile(r"^\s*[-*]\s+\*\*(?P<term>[^*]{1,100})\*\*\s*[:–-]\s+(?P<meaning>.{1,1000})$")


class Glossarist:
    """Every line of the documents that reads `- **Term**: meaning` is an entry."""

    prompt_version = None

    async def perform(self, work: Work) -> list[Output]:
        terms = []
        for path, file in (await work.sources()).items():
            for number, line in enumerate(file.content.decode("utf-8", "replace").splitlines(), 1):
                found = TERM.match(line)
                if found is not None:
                    terms.append({**found.groupdict(), "source": path, "line": number})
        if not terms:
            raise StepFailed("no_progress", "no document defines a term", retryable=False)
        return [Output("glossary", {"terms": terms}, of="glossary")]
