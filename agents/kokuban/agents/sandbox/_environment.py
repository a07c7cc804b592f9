"""The environment of a command: an explicit list, so that no key and no address of the board can slip through."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_PASSED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "VIRTUAL_ENV", "JAVA_HOME", "GOROOT")
_FIXED = {
    # What makes output the same on every run and machine, and fit to read for a model.
    "COLUMNS": "100",
    "NO_COLOR": "1",
    "TERM": "dumb",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONNODEBUGRANGES": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONUTF8": "1",
}


def scrubbed(home: Path, extra: Mapping[str, str], source: Mapping[str, str]) -> dict[str, str]:
    """The environment for a command: from `source` only what is listed here, the step's own home and temporary folder
    (made when missing), and `extra`, which wins. The folder of the running Python ends the PATH, so that `python` is
    found where the system has none."""
    temporary = home / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    environment = {name: source[name] for name in _PASSED if name in source}
    environment.setdefault("LANG", "C.UTF-8")
    path = environment.get("PATH", os.defpath)
    environment["PATH"] = os.pathsep.join([path, os.path.dirname(sys.executable)])
    return environment | _FIXED | {"HOME": str(home), "TMPDIR": str(temporary)} | dict(extra)
