"""Output fit to show to a model and to record: the same for the same program state, on every machine and run."""

from __future__ import annotations

import os
import re
from pathlib import Path

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ADDRESS = re.compile(r"(?<= at )0x[0-9a-fA-F]+|\b0x[0-9a-fA-F]{9,16}\b")
_LIBRARY = re.compile(r'(?<=File ")/[^"\n]*?/lib(?:64)?/python3[^/"\n]*/([^"\n]*", line )\d+')

_UNIT = r"\s?(?:ns|µs|us|ms|s|secs?|seconds?|m|min|minutes?)\b"
_DURATIONS = (
    (re.compile(rf"\b([Ii]n|[Tt]ook|[Aa]fter|[Ee]lapsed:?|[Dd]uration:?|[Tt]ime:?) \d+(?:\.\d+)?{_UNIT}"), r"\1 N s"),
    (re.compile(rf"\(\d+(?:\.\d+)?{_UNIT}\)"), "(N s)"),
    (re.compile(r"""(?<![\w.'"])\d+\.\d+ seconds?\b(?!['"])"""), "N s"),
    (re.compile(r"^\d+\.\d+s(?= +(?:call|setup|teardown)\b)", re.MULTILINE), "N s"),
)
# Lines that say what was expected and what came: a duration there can be the very fact that matters.
_EVIDENCE = re.compile(r"^\s*(?:[-+?>E]\s|.*\b\w*(?:Error|Exception|Failure)\b|.*\bassert)")


def stabilise(text: str, checkout: Path) -> str:
    """The text with everything removed that differs from run to run or machine to machine but not in meaning.

    - terminal escapes and control characters are removed; carriage returns become line ends;
    - the checkout's path becomes `.`;
    - run times become `N s` (`in 0.12s`, `took 3 ms`, `(0.01s)`, `0.12 seconds`), except on lines that show an error
      or compare values;
    - memory addresses (` at 0x7f…`, nine digits and more elsewhere) become `0x…`;
    - places in Python's own library, `File "/…/lib/python3.11/x.py", line 7`, become `File "<python>/x.py", line N`.

    Applying it twice changes nothing more.
    """
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    text = _CONTROLS.sub("", text)
    for path in sorted({str(checkout), os.path.realpath(checkout)}, key=len, reverse=True):
        if path not in ("/", "."):
            text = re.sub(r"(?<![\w.-])" + re.escape(path) + r"(?![\w-]|\.\w)", ".", text)
    text = _LIBRARY.sub(r"<python>/\1N", text)
    text = _ADDRESS.sub("0x…", text)
    return "\n".join(line if _EVIDENCE.match(line) else _without_durations(line) for line in text.split("\n"))


def _without_durations(line: str) -> str:
    for pattern, plain in _DURATIONS:
        line = pattern.sub(plain, line)
    return line
