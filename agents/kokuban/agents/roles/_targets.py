"""Which files to show, and which to write next: by the names in the goal, what the checks say, who defines what."""

from __future__ import annotations

import re

from kokuban.agents.roles._coding import Coding
from kokuban.blackboard.workspace import Tree, is_text

SHOWN_CHARS = 16_000
FALLBACK = "main.py"
ROUNDS_A_FILE = 2
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*\.[A-Za-z][A-Za-z0-9]*")
_DEFINED = re.compile(r"^(?:async def|def|class|function|const|func)\s+(\w+)", re.MULTILINE)
_PROSE = (".md", ".rst", ".txt")


def target_files(coding: Coding, files: Tree, kept: frozenset[str], failed_rounds: int) -> list[str]:
    """The files of the next round: all that the step's goal names (else the task's), new ones too; or the likeliest
    one, and after every second failed round the next likely one."""
    editable = [path for path in files if path not in kept and is_text(files[path].content)]
    for goal in (coding.work.assignment.order.goal, coding.work.spec.goal):
        named = _named(goal, editable, kept)
        if named:
            return named
    code = [path for path in editable if not path.lower().endswith(_PROSE) and files[path].content.strip()]
    ranked = sorted(code, key=lambda path: (-_likelihood(coding, path, files), path))
    return [ranked[failed_rounds // ROUNDS_A_FILE % len(ranked)]] if ranked else [FALLBACK]


def _named(goal: str, editable: list[str], kept: frozenset[str]) -> list[str]:
    found: dict[str, None] = {}
    for token in _PATH.findall(goal):
        path = token.rstrip(".")
        matches = [known for known in editable if known == path or known.endswith(f"/{path}")]
        if len(matches) == 1:
            found[matches[0]] = None
        elif not matches and "/" in path and path not in kept and ".." not in path.split("/"):
            found[path] = None
    return list(found)


def _likelihood(coding: Coding, path: str, files: Tree) -> int:
    """How much points at this file: its place in a traceback, and names it defines that the goal or the checks use."""
    said = f"{coding.work.assignment.order.goal}\n{coding.now.report}"
    words = set(re.findall(r"\w+", said))
    defined = set(_DEFINED.findall(files[path].content.decode("utf-8", "replace")))
    return 3 * (path in said) + len(defined & words)


def shown_files(coding: Coding, files: Tree, kept: frozenset[str], target: str) -> tuple[dict[str, str], list[str]]:
    """Path to text of the files that fit, the checks first, and the paths of the others. Documents are shown when the
    goal or the checks name them."""
    hints = f"{coding.work.assignment.order.goal}\n{coding.work.spec.goal}\n{coding.now.report}"
    texts = {path: file.content.decode().strip() for path, file in files.items() if is_text(file.content)}
    texts = {path: text for path, text in texts.items() if text}

    def hinted(path: str) -> bool:
        return path.rsplit("/", 1)[-1] in hints

    wanted = [p for p in texts if p == target or p in kept or hinted(p) or not p.lower().endswith(_PROSE)]
    room, chosen = SHOWN_CHARS, set[str]()
    for path in sorted(wanted, key=lambda p: (p != target, not hinted(p), len(texts[p]))):
        if len(texts[path]) <= room or path == target:
            room -= len(texts[path])
            chosen.add(path)
    shown = {path: texts[path] for path in sorted(chosen, key=lambda p: (p not in kept, p))}
    return shown, [path for path in texts if path not in chosen]
