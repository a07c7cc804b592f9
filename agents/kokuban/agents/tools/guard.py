"""Keeping a task's checks what they are: a patch that weakens or takes over its own checks is refused.

What is guarded is decided from the tree the step started from and the check commands. Code under test can always fool
a test that imports it; this keeps the checks themselves, and what they load before any code under test, as they were.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from kokuban.agents.tools._commands import Commands
from kokuban.blackboard.workspace import File, Tree

_CHECK_FOLDERS = frozenset({"test", "tests", "__tests__", "spec", "specs"})
_CHECK_FILE = re.compile(
    r"(?i:test_.*|.*_tests?\.[^.]+|.*\.(?:test|spec)\.[^.]+|.*_spec\.[^.]+|tests?\.py|conftest\.py)"
    r"|.*Tests?\.(?:java|kt|cs|scala)"
)
# Read by test runners before they look at any test.
_CONFIGURATION = re.compile(
    r"\.?pytest\.(?:ini|toml)|tox\.ini|setup\.cfg|noxfile\.py|\.coveragerc|\.mocharc.*|\.nycrc.*"
    r"|(?:jest|vitest|karma|ava|playwright|cypress)\.conf(?:ig)?\..+"
)
_SETUP_CFG_TABLES = re.compile(rb"^\s*\[(?:tool:pytest|coverage:)", re.MULTILINE)
# Loaded by the interpreter or the runner by their mere presence.
_TAKES_OVER = re.compile(r"conftest\.py|(?:site|user)customize(?:\.py)?|.*\.pth|__editable__.*")
_READ_BY = {
    "make": r"(?:gnu)?makefile",
    "gmake": r"(?:gnu)?makefile",
    "just": r"\.?justfile",
    "task": r"taskfile\.(?:dist\.)?ya?ml",
    "rake": r"rakefile(?:\.rb)?",
    "mypy": r"\.?mypy\.ini",
    "pyright": r"pyrightconfig\.json",
    "ruff": r"\.?ruff\.toml",
    "flake8": r"\.flake8",
    "pylint": r"\.?pylintrc(?:\.toml)?",
    "tsc": r"tsconfig.*\.json",
    "eslint": r"\.eslintrc.*|eslint\.config\..+",
} | dict.fromkeys(("npm", "npx", "yarn", "pnpm", "bun"), r"\.npmrc|\.yarnrc(?:\.yml)?|\.pnpmfile\.c?js|bunfig\.toml")
"""Files (lower case) that a program reads before it does what a check asks of it."""
_NODE_TABLES = ("jest", "mocha", "ava", "nyc", "vitest", "c8", "tap")
_PYTHON_TABLES = ("pytest", "coverage", "tox", "nox")
_RUNNER_MODULES = frozenset({
    "pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py", "xdist", "hypothesis", "coverage",
    "nose", "nose2", "ward", "behave", "robot", "green", "stestr", "twisted", "tox", "nox",
    "mypy", "ruff", "flake8", "pylint",
})  # fmt: skip
_MODULE_ENDINGS = frozenset({"py", "pyc", "so", "pyd"})


class CheckRules:
    """What a step may not do to the checks of the tree `base`, run by the commands `checks`."""

    def __init__(self, base: Tree, checks: Sequence[str]) -> None:
        self._base = base
        self._lower = {path.lower() for path in base}
        self._commands = Commands(checks, base)

    def refusal(self, path: str, after: File | None) -> str | None:
        """Why `path` may not become `after` (None: be deleted); None when it may, or when nothing changes."""
        before = self._base.get(path)
        if before == after:
            return None
        kind = self._kind(path) if before is not None else None
        if kind:
            return f"{path} may not be {'deleted' if after is None else 'changed'}: it is {kind}"
        if before is None and after is not None and self._takes_over(path, after):
            return f"{path} may not be added: by its name it would take over the run of the checks"
        return self._settings_refusal(path, before, after)

    def protected(self) -> frozenset[str]:
        """The base's files that may not be changed at all."""
        return frozenset(path for path in self._base if self._kind(path))

    def _kind(self, path: str) -> str | None:
        """What makes a file of the base one that may not be changed."""
        *folders, name = path.lower().split("/")
        if path in self._commands.files:
            return "named in a check"
        if not _CHECK_FOLDERS.isdisjoint(folders) or _CHECK_FILE.fullmatch(path.rpartition("/")[2]):
            return "part of the checks"
        if _CONFIGURATION.fullmatch(name) or _TAKES_OVER.fullmatch(name) or self._is_read_by_program(name):
            return "configuration of the checks"
        return None

    def _is_read_by_program(self, name: str) -> bool:
        return any(re.fullmatch(_READ_BY.get(program, "(?!)"), name) for program in self._commands.programs)

    def _takes_over(self, path: str, after: File) -> bool:
        """Whether a new file would be loaded in place of, or before, what the checks mean to load."""
        *folders, name = path.lower().split("/")
        if any(_TAKES_OVER.fullmatch(part) for part in (*folders, name)) or self._is_read_by_program(name):
            return True
        if name == "setup.cfg":  # mostly about packaging
            return bool(_SETUP_CFG_TABLES.search(after.content))
        if name == "__init__.py" and not _CHECK_FOLDERS.isdisjoint(folders):
            return bool(after.content.strip())  # runs before the tests beside it; an empty one is harmless
        return bool(_CONFIGURATION.fullmatch(name)) or self._shadows(folders, name)

    def _shadows(self, folders: list[str], name: str) -> bool:
        """Whether a new file stands where a program of the checks, or a module it imports, is looked for."""
        stem, _, ending = name.partition(".")
        if "/".join(folders) in self._commands.folders and {name, stem} & self._commands.bare:
            return True
        if ending.rpartition(".")[2] not in _MODULE_ENDINGS:
            return False
        *above, module = folders if stem == "__init__" and folders else (*folders, stem)
        root = "/".join(above)
        looked_in = root in ("src", "lib") or root in self._commands.folders or bool(_CHECK_FOLDERS & set(above[-1:]))
        known = module in sys.stdlib_module_names or module in _RUNNER_MODULES or module.startswith("pytest_")
        start = f"{root}/{module}" if root else module
        return looked_in and known and self._lower.isdisjoint({f"{start}.py", f"{start}/__init__.py"})

    def _settings_refusal(self, path: str, before: File | None, after: File | None) -> str | None:
        """Files that hold settings of the checks among others: only those settings are guarded."""
        name = path.lower().rpartition("/")[2]
        if name == "pyproject.toml":
            tables = (*_PYTHON_TABLES, *sorted(self._commands.programs & _READ_BY.keys()))
            old, new = _python_settings(before, tables), _python_settings(after, tables)
            if new is None or (old or {}) != new:
                return f"{path} may not change how the checks run: keep its tables of {', '.join(tables)} as they are"
        elif name == "package.json" and self._changes_scripts(_json(before), _json(after)):
            return (
                f"{path} may not change how the checks run: keep its scripts and settings of test runners as they are"
            )
        return None

    def _changes_scripts(self, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
        before = before or {}
        if after is None or any(before.get(table) != after.get(table) for table in _NODE_TABLES):
            return True
        old, new = _table(before.get("scripts")), _table(after.get("scripts"))
        if any(new.get(name) != command for name, command in old.items()):
            return True
        run = {"test"} | self._commands.words
        hooked = {hook + name for name in run for hook in ("", "pre", "post")}
        return not hooked.isdisjoint(new.keys() - old.keys())


def weakened(before: Tree, after: Tree, checks: Sequence[str]) -> tuple[str, ...]:
    """Why a patch from `before` to `after` may not be accepted: one reason for each file through which it deletes,
    changes or takes over the checks. `()` when it leaves them alone; new ordinary tests do."""
    rules = CheckRules(before, checks)
    reasons = (rules.refusal(path, after.get(path)) for path in sorted(before.keys() | after.keys()))
    return tuple(reason for reason in reasons if reason)


def protected(tree: Tree, checks: Sequence[str]) -> frozenset[str]:
    """The files of a tree that no patch may change or delete, because the checks are made of them."""
    return CheckRules(tree, checks).protected()


def with_checks_from(base: Tree, tree: Tree, checks: Sequence[str]) -> Tree:
    """`tree` with everything through which it could change the checks as it is in `base`: what a verifier runs. Equal
    to `tree` when `weakened` finds nothing."""
    rules = CheckRules(base, checks)
    result = dict(tree)
    for path in base.keys() | tree.keys():
        if rules.refusal(path, tree.get(path)):
            if path in base:
                result[path] = base[path]
            else:
                del result[path]
    restored = {path for path in result if path not in tree}
    for path in restored:
        parent = path.rpartition("/")[0]
        while parent:
            result.pop(parent, None)  # a file cannot stay where a check's folder is
            parent = parent.rpartition("/")[0]
    blocked = [path for path in result if path not in base and any(path.startswith(f"{kept}/") for kept in restored)]
    for path in blocked:
        del result[path]
    return dict(sorted(result.items()))


def _python_settings(file: File | None, tables: tuple[str, ...]) -> Mapping[str, Any] | None:
    """The tables of the checks' tools in a pyproject.toml; none for no file, None for one that cannot be read."""
    if file is None:
        return {}
    try:
        tool = _table(tomllib.loads(file.content.decode()).get("tool"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError):
        return None
    return {name: value for name, value in tool.items() if name.startswith(tables)}


def _json(file: File | None) -> Mapping[str, Any] | None:
    """The object in a file; an empty one for no file, None for anything else."""
    if file is None:
        return {}
    try:
        value = json.loads(file.content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
