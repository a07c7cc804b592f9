"""Reading check commands: which files they name, which programs they run, where those look for modules."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise

from kokuban.blackboard.workspace import Tree

_SEPARATORS = frozenset({"{", "}", "!", "then", "do", "else", "elif", "if", "while", "until", "fi", "done"})
_PUNCTUATION = "();|&\n"
_WRAPPERS = frozenset(
    {"env", "exec", "time", "nice", "nohup", "command", "timeout", "uv", "poetry", "pipenv", "run", "sudo"}
)
_WRAPPED = re.compile(
    r"[A-Za-z_]\w*=.*|-.*|[\d.]+[smhd]?", re.DOTALL
)  # assignments, options and times before a command
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_RUNS_MODULES = re.compile(r"python[\d.]*|pypy[\d.]*|coverage")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_TAKE_MODULES = frozenset({"unittest", "nose2"})
# Programs whose arguments are what they look at, not what they run.
_LOOKERS = frozenset({
    "mypy", "pyright", "ruff", "flake8", "pylint", "black", "isort", "compileall", "py_compile", "pyflakes", "bandit",
    "tsc", "eslint", "prettier", "shellcheck",
    "grep", "test", "[", "cat", "diff", "cmp", "head", "tail", "wc", "ls", "jq", "echo", "cd", "true", "false",
})  # fmt: skip


class Commands:
    """What the check commands say about the files of a tree.

    files: files of the tree that are run or given to what is run, except to programs that only look at them.
    folders: folders named, and those of the scripts run, in lower case: modules are looked for there. "" is the root.
    programs: the programs and modules run, in lower case and without their folder.
    bare: those of them that are named without a folder, so that they are looked for.
    words: every word of the commands.
    """

    def __init__(self, checks: Sequence[str], tree: Tree) -> None:
        self._tree = tree
        self._known_folders = {parent for path in tree for parent in _parents(path)}
        self.files: set[str] = set()
        self.folders: set[str] = {""}
        self.programs: set[str] = set()
        self.bare: set[str] = set()
        self.words: set[str] = set()
        for check in checks:
            self._read_line(check)

    def _read_line(self, line: str) -> None:
        self._at = ""
        for words in _simple_commands(line):
            self._read(words)

    def _read(self, words: list[str]) -> None:
        self.words.update(words)
        while words and (words[0] in _WRAPPERS or _WRAPPED.fullmatch(words[0])):
            words = words[1:]
        if not words:
            return
        program, arguments = posixpath.basename(words[0]), words[1:]
        self._add_path(words[0])
        if program == words[0] and program not in _LOOKERS:
            self.bare.add(program.lower())
        self.programs.add(program.lower())
        if program == "cd" and arguments:
            self._at = self._path(arguments[0])
            self._add_folder(".")
            return
        if program in _SHELLS and "-c" in arguments[:-1]:
            self._read_line(arguments[arguments.index("-c") + 1])
            return
        while _RUNS_MODULES.fullmatch(program) and "-m" in arguments[:-1]:
            at = arguments.index("-m") + 1
            program, arguments = arguments[at], arguments[at + 1 :]
            self.programs.add(program.lower())
            self._add_module(program)
        for option, argument in pairwise(["", *arguments]):
            for part in {argument, argument.partition("=")[2]} - {""}:
                self._add_folder(part)
                if program not in _LOOKERS:
                    self._add_path(part)
                if program in _TAKE_MODULES or option == "-p":
                    self._add_module(part)

    def _add_path(self, word: str) -> None:
        path = self._path(word.partition("::")[0])
        if path in self._tree:
            self.files.add(path)
            self.folders.add(posixpath.dirname(path).lower())

    def _add_folder(self, word: str) -> None:
        path = self._path(word)
        if path in self._known_folders:
            self.folders.add(path.lower())

    def _path(self, word: str) -> str:
        return posixpath.normpath(posixpath.join(self._at, word))

    def _add_module(self, name: str) -> None:
        """`a.b.c` may be the file a/b/c.py, a package to run, or a class or function in a/b.py."""
        parts = name.split(".") if _DOTTED.fullmatch(name) else []
        while parts:
            path = self._path("/".join(parts))
            found = [candidate for candidate in (f"{path}.py", f"{path}/__main__.py") if candidate in self._tree]
            self.files.update(found)
            if found:
                return
            parts.pop()


def _parents(path: str) -> Iterator[str]:
    while path := posixpath.dirname(path):
        yield path


def _simple_commands(check: str) -> Iterator[list[str]]:
    """The commands of one shell line, as words. What a shell alone can know (variables, here-documents) stays as it is
    written; a line that cannot be read is split at blanks."""
    lexer = shlex.shlex(check, posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace_split = True
    lexer.whitespace = " \t\r"
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        words = check.split()
    command: list[str] = []
    for word in [*words, ";"]:
        if word in _SEPARATORS or (word and set(word) <= set(_PUNCTUATION)):
            if command:
                yield command
            command = []
        else:
            command.append(word)
