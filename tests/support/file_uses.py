"""Every file tool, and how it is asked to use a path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SECRET = "the-secret-of-somebody-else"
USES: dict[str, Callable[[str], dict[str, Any]]] = {
    "read_file": lambda path: {"path": path},
    "list_files": lambda path: {"folder": path},
    "search_files": lambda path: {"text": SECRET[:10], "folder": path},
    "write_file": lambda path: {"path": path, "content": "written"},
    "edit_file": lambda path: {"path": path, "old": SECRET, "new": "edited"},
    "write_code": lambda path: {"path": path, "code": "def f():\n    return 1\n"},
    "delete_file": lambda path: {"path": path},
}
