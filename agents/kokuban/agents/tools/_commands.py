"""Reading check commands: which files are the checks, which programs they run, where those look for modules."""

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
    "tsc", "eslint", "prettier", "shellcheck", "json.tool",
    "grep", "test", "[", "cat", "diff", "cmp", "head", "tail", "wc", "ls", "jq", "echo", "cd", "true", "false",
})  # fmt: skip
_INTERPRETERS = re.compile(
    r"python[\d.]*|pypy[\d.]*|coverage|node|nodejs|deno|bun|ruby|perl|php|java|lua|rscript|go|dotnet|tsx|ts-node",
    re.IGNORECASE,
)
_AS_RUNNERS = frozenset({"test", "--test", "vet"})  # `node --test`, `go test`: what they are given are the checks
_CHECKING = re.compile(
    r"(?:run|all|self|unit|doc|pre)?(?:test|check)(?:s|er|ers|ing|all|suite)?|verif(?:y|ies|ier|ication)"
    r"|validat(?:e|es|or|ors|ion)|lint(?:s|er|ers|ing)?|specs?|asserts?|assertions?|ci|qa|e2e"
)
"""A word (lower case) that says of the file it names that it checks."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z\d]+")


class Commands:
    """What the check commands say about the files of a tree.

    files: files of the tree that are the check itself: run by the shell, or given to what is run under a name that says
        that they check. A program run by an interpreter (`python app.py`) is what is being tested, and not among them.
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
        by_runner = False
        while words and (words[0] in _WRAPPERS or _WRAPPED.fullmatch(words[0])):
            by_runner = by_runner or words[0] == "run"
            words = words[1:]
        if not words:
            return
        program, arguments = posixpath.basename(words[0]), words[1:]
        tested = by_runner and program.endswith(".py")  # `uv run app.py`
        self._add_path(words[0], tested)
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
        if _INTERPRETERS.fullmatch(program):
            tested = _AS_RUNNERS.isdisjoint(arguments)
        while _RUNS_MODULES.fullmatch(program) and "-m" in arguments[:-1]:
            at = arguments.index("-m") + 1
            program, arguments = arguments[at], arguments[at + 1 :]
            self.programs.add(program.lower())
            tested = self._add_module(program, True) or program == "coverage"
        for option, argument in pairwise(["", *arguments]):
            for part in {argument, argument.partition("=")[2]} - {""}:
                self._add_folder(part)
                if program not in _LOOKERS:
                    self._add_path(part, tested)
                if program in _TAKE_MODULES or option == "-p":
                    self._add_module(part, tested)

    def _add_path(self, word: str, tested: bool) -> None:
        path = self._path(word.partition("::")[0])
        if path in self._tree:
            self._add_file(path, tested)
            self.folders.add(posixpath.dirname(path).lower())

    def _add_file(self, path: str, tested: bool) -> None:
        """`tested`: an interpreter runs it or what it is given to; it counts only if its name says that it checks."""
        if not tested or _says_that_it_checks(path):
            self.files.add(path)

    def _add_folder(self, word: str) -> None:
        path = self._path(word)
        if path in self._known_folders:
            self.folders.add(path.lower())

    def _path(self, word: str) -> str:
        return posixpath.normpath(posixpath.join(self._at, word))

    def _add_module(self, name: str, tested: bool) -> bool:
        """`a.b.c` may be the file a/b/c.py, a package to run, or a class or function in a/b.py. False if it is none."""
        parts = name.split(".") if _DOTTED.fullmatch(name) else []
        while parts:
            path = self._path("/".join(parts))
            found = [candidate for candidate in (f"{path}.py", f"{path}/__main__.py") if candidate in self._tree]
            for file in found:
                self._add_file(file, tested)
            if found:
                return True
            parts.pop()
        return False


def _says_that_it_checks(path: str) -> bool:
    """By a word of its own name, or by the whole name of a folder that it is in."""
    *folders, name = path.split("/")
    words = (*_WORD.findall(name), *folders)
    return any(_CHECKING.fullmatch(word.lower()) for word in words)


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
