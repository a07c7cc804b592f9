"""Writing code by its definitions: a small model gets a function or a file in plain text right, not an exact edit.

For Python, each top-level definition of the given code replaces the one of its name in the file, or is added; the rest
of the file stays. Any other file is written whole.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from kokuban.agents.tools._contained import Contained
from kokuban.agents.tools._context import ToolContext
from kokuban.agents.tools._errors import ToolError
from kokuban.agents.tools._registry import Tool
from kokuban.agents.tools.files import put, text_of
from kokuban.blackboard.workspace import File


def _write_code(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    path, code = arguments["path"], arguments["code"].replace("\r\n", "\n").strip("\n") + "\n"
    with Contained(context.checkout) as files:
        old = files.find(path)
        text = text_of(path, old) if old is not None else ""
        fresh = merged(path, text.replace("\r\n", "\n"), code) if path.endswith(".py") else code
        if "\r\n" in text:
            fresh = fresh.replace("\n", "\r\n")
        if old is not None and fresh == text:
            raise ToolError(f"{path} says that already; nothing was changed")
        put(context, files, path, File(fresh.encode(), old is not None and old.executable))
    return f"{'Changed' if old else 'Wrote'} {path}."


def merged(path: str, text: str, code: str) -> str:
    """`text` with the top-level definitions of `code` in it. Raises `ToolError` when one of the two is no Python."""
    new = _parsed(f"what was written for {path}", code)
    if not text.strip():
        return code
    old = _parsed(path, text)
    lines, source = _lines(text), _lines(code)
    places = {name: node for node in old.body for name in _names(node)}
    imported = {ast.unparse(node) for node in old.body if isinstance(node, ast.Import | ast.ImportFrom)}
    edits: list[tuple[int, int, list[str]]] = []
    above: list[str] = []
    below: list[str] = []
    for node in new.body:
        written = source[_first(node) - 1 : node.end_lineno]
        known = next((places[name] for name in _names(node) if name in places), None)
        if isinstance(node, ast.Import | ast.ImportFrom):
            above += written if ast.unparse(node) not in imported else []
        elif known is not None:
            edits.append((_first(known) - 1, known.end_lineno or 0, written))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            below += ["\n", "\n", *written]
        elif _names(node):
            above += written
    edits.append((_after_constants(old), _after_constants(old), above))
    for start, end, written in sorted(edits, key=lambda edit: edit[0], reverse=True):
        lines[start:end] = written
    return "".join(lines + below)


def _lines(text: str) -> list[str]:
    return [line + "\n" for line in text.split("\n")[: -1 if text.endswith("\n") else None]]


def _parsed(what: str, text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" at line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ToolError(f"{what} is not valid Python{line}; nothing was changed") from error


def _names(node: ast.stmt) -> list[str]:
    """The names that a top-level statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _first(node: ast.stmt) -> int:
    """The statement's first line, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _after_constants(module: ast.Module) -> int:
    """The line after which new constants and imports belong: the last import or assignment before the first definition,
    else the module's docstring; 0 for the very top."""
    last = 0
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            break
        last = node.end_lineno or last
    return last


WRITE_CODE = Tool(
    "write_code",
    "Write a file's code: the given definitions replace those of the same name or are added, the rest stays. "
    "Returns the path. Not for removing a definition.",
    {
        "type": "object",
        "additionalProperties": False,
        "required": ["path", "code"],
        "properties": {
            "path": {"type": "string", "minLength": 1, "description": "Path in the workspace"},
            "code": {"type": "string", "minLength": 1, "description": "The definitions, or the whole file"},
        },
    },
    _write_code,
    tier="write",
    effect="keyed",
    on_files=True,
)
