"""Tools that read and change the files of a step's checkout."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from kokuban.agents.sandbox import clip
from kokuban.agents.tools._contained import Contained, parts_of
from kokuban.agents.tools._context import ToolContext
from kokuban.agents.tools._errors import ToolError
from kokuban.agents.tools._registry import Tool
from kokuban.blackboard.workspace import File, is_text, lines_of

_LISTED_FILES = 500
_FOUND_LINES = 50
_LINE_CHARACTERS = 300
_PAGE_LINES = 400
_PAGE_BYTES = 12_288  # a page, its header and its footer stay below the result cap
_COMPARED_LINES = 4_000

_PATH = {"type": "string", "minLength": 1, "description": "Path relative to the workspace, such as src/app.py"}
_FOLDER = {"type": "string", "description": "Only below this folder; everything by default"}


def _parameters(required: tuple[str, ...] = (), **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _list_files(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    folder = arguments.get("folder", "")
    with Contained(context.checkout) as files:
        found = list(files.walk(folder))
    if not found:
        return "There are no files here."
    lines = [f"{path} ({size:,} bytes)" for path, size in found[:_LISTED_FILES]]
    if len(found) > _LISTED_FILES:
        lines.append(f"… and {len(found) - _LISTED_FILES:,} more; list one folder to see fewer")
    return "\n".join(lines)


def _read_file(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    path = arguments["path"]
    start, most = arguments.get("start_line", 1), arguments.get("max_lines", _PAGE_LINES)
    with Contained(context.checkout) as files:
        lines = lines_of(text_of(path, files.read(path)).encode()) or [""]
    if start > len(lines):
        raise ToolError(f"{path} has only {len(lines):,} lines; ask for a start_line from 1 to {len(lines):,}")
    page: list[str] = []
    size = 0
    for line in lines[start - 1 : start - 1 + most]:
        size += len(line.encode())
        if page and size > _PAGE_BYTES:
            break
        page.append(line)
    last = start + len(page) - 1
    head = f"{path}, lines {start}-{last} of {len(lines)}:\n"
    more = f"\n(more: read_file with start_line {last + 1})" if last < len(lines) else ""
    return head + clip("".join(page), _PAGE_BYTES) + more


def _search_files(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    wanted, folder = arguments["text"], arguments.get("folder", "")
    with Contained(context.checkout) as files:
        found, total = _search(files, wanted, folder)
    if not found:
        return f"No line contains {wanted[:100]!r}. The search is for the exact text; try a shorter part of it."
    more = (
        [f"… and {total - len(found):,} more; search for a longer text or in one folder"] if total > len(found) else []
    )
    return "\n".join(found + more)


def _search(files: Contained, wanted: str, folder: str) -> tuple[list[str], int]:
    found: list[str] = []
    total = 0
    for path, _ in files.walk(folder):
        try:
            file = files.read(path)
        except ToolError:
            continue  # too large, or gone meanwhile
        if not is_text(file.content):
            continue
        for number, line in enumerate(file.content.decode().split("\n"), start=1):
            if wanted in line:
                total += 1
                if len(found) < _FOUND_LINES:
                    found.append(f"{path}:{number}: {line.strip()[:_LINE_CHARACTERS]}")
    return found, total


def _write_file(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    path, content = arguments["path"], arguments["content"].encode()
    with Contained(context.checkout) as files:
        old = files.find(path)
        put(context, files, path, File(content, old is not None and old.executable))
    lines = content.count(b"\n") + (not content.endswith(b"\n") and bool(content))
    return f"{'Replaced' if old else 'Wrote'} {path} ({lines:,} lines)."


def _edit_file(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    path, old, new = arguments["path"], arguments["old"], arguments["new"]
    if old == new:
        raise ToolError("old and new are the same text; nothing would change")
    with Contained(context.checkout) as files:
        file = files.read(path)
        text = text_of(path, file)
        if "\r\n" in text and "\r\n" not in old:  # models write LF; the file keeps its own line ends
            old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
        times = text.count(old)
        if times == 0:
            raise ToolError(_not_found(path, text, old))
        if times > 1:
            raise ToolError(_ambiguous(path, text, old, times))
        put(context, files, path, File(text.replace(old, new).encode(), file.executable))
    line = text[: text.index(old)].count("\n") + 1
    return f"Edited {path} at line {line}."


def _ambiguous(path: str, text: str, old: str, times: int) -> str:
    lines: list[str] = []
    at = text.find(old)
    while at >= 0 and len(lines) < 10:
        lines.append(str(text.count("\n", 0, at) + 1))
        at = text.find(old, at + len(old))
    return (
        f"old stands {times} times in {path} (at lines {', '.join(lines)}{', …' if times > len(lines) else ''}); "
        "nothing was changed. Give a longer old, with the lines around it, that stands there once."
    )


def _not_found(path: str, text: str, old: str) -> str:
    nothing = f"old is not in {path}; nothing was changed."
    lines, wanted = text.splitlines()[:_COMPARED_LINES], old.strip("\r\n").splitlines()
    if not lines or not wanted:
        return f"{nothing} Read the file and copy the text exactly."
    # The best place is where the most telling line of `old` has its closest match.
    key = max(range(len(wanted)), key=lambda at: len(wanted[at].strip()))
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted[key].strip()[:_LINE_CHARACTERS])
    best, ratio = 0, -1.0
    for at, line in enumerate(lines):
        matcher.set_seq1(line.strip()[:_LINE_CHARACTERS])
        if matcher.real_quick_ratio() > ratio and matcher.quick_ratio() > ratio and matcher.ratio() > ratio:
            best, ratio = at, matcher.ratio()
    first = max(best - key, 0)
    shown = lines[first : first + min(len(wanted), 20)]
    return (
        f"{nothing} The closest text, at lines {first + 1}-{first + len(shown)}, is:\n"
        + clip("\n".join(shown), 4_000)
        + "\nCopy old exactly from the file, with its spaces, or use write_file for the whole file."
    )


def _delete_file(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    path = arguments["path"]
    with Contained(context.checkout) as files:
        files.read(path)
        _refuse(context, path, None)
        files.delete(path)
    return f"Deleted {path}."


def put(context: ToolContext, files: Contained, path: str, file: File) -> None:
    """Write a file unless the checks are made of it. Raises `ToolError`; nothing is changed then."""
    _refuse(context, path, file)
    files.write(path, file)


def _refuse(context: ToolContext, path: str, file: File | None) -> None:
    reason = context.rules.refusal("/".join(parts_of(path)), file)
    if reason:
        raise ToolError(f"{reason}. Nothing was changed: change the code so that the checks pass as they are.")


def text_of(path: str, file: File) -> str:
    """A file's text. Raises `ToolError` for one that is not text."""
    if not is_text(file.content):
        raise ToolError(f"{path} is not text ({len(file.content):,} bytes); it can only be deleted or replaced")
    return file.content.decode()


LIST_FILES = Tool(
    "list_files",
    "List the files of the workspace. Returns a path and a size a line. Not for looking into files.",
    _parameters(folder=_FOLDER),
    _list_files,
    tier="read",
    effect="read",
    trust="principal",
)
READ_FILE = Tool(
    "read_file",
    "Read a text file, or a page of it. Returns its lines and which they are. Not for finding where a text stands.",
    _parameters(
        ("path",),
        path=_PATH,
        start_line={"type": "integer", "minimum": 1, "description": "First line, counted from 1"},
        max_lines={"type": "integer", "minimum": 1, "maximum": 2_000, "description": f"{_PAGE_LINES} by default"},
    ),
    _read_file,
    tier="read",
    effect="read",
)
SEARCH_FILES = Tool(
    "search_files",
    "Find the lines of the workspace's files that contain a text, exactly as written. Returns path, number and line of "
    "each. Not for patterns, and not for the task's sources.",
    _parameters(
        ("text",),
        text={"type": "string", "minLength": 1, "maxLength": 500, "description": "A piece of one line"},
        folder=_FOLDER,
    ),
    _search_files,
    tier="read",
    effect="read",
)
WRITE_FILE = Tool(
    "write_file",
    "Write a whole file: a new one, or in place of the old one. Returns how many lines it has now. "
    "Not for a small change of a long file: use edit_file.",
    _parameters(("path", "content"), path=_PATH, content={"type": "string", "description": "The file's whole text"}),
    _write_file,
    tier="write",
    effect="keyed",
    on_files=True,
    trust="system",
)
EDIT_FILE = Tool(
    "edit_file",
    "Replace one piece of text in a file. old must stand in the file exactly once. Returns the line of the change. "
    "Not for new files: use write_file.",
    _parameters(
        ("path", "old", "new"),
        path=_PATH,
        old={"type": "string", "minLength": 1, "description": "The text to replace, copied exactly from the file"},
        new={"type": "string", "description": "The text to put in its place"},
    ),
    _edit_file,
    tier="write",
    # A second run finds nothing to replace and says so; a checkout made again from its tree is what a resume starts on.
    effect="keyed",
    on_files=True,
)
DELETE_FILE = Tool(
    "delete_file",
    "Delete a file. Returns its path. Not for folders, and not for emptying a file.",
    _parameters(("path",), path=_PATH),
    _delete_file,
    tier="write",
    effect="keyed",
    on_files=True,
    trust="system",
)
