"""What a command can reach: with bubblewrap its own folders, a read-only system and no network; else what the worker's
user can.

Bubblewrap (Linux namespaces, no privileges needed) is probed by running it, once a process. Whether it must be there is
the setting KOKUBAN_ISOLATION: `required`, `preferred` (the default) or `none`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kokuban.agents.sandbox._processes import SandboxError

Kind = Literal["bubblewrap", "group"]
Wish = Literal["required", "preferred", "none"]
SETTING = "KOKUBAN_ISOLATION"
LEFT = ".left-running"
"""A file in the command's temporary folder that says that processes were still there when it had ended."""
DATA_BYTES = 4 * 2**30
FILE_BYTES = 2**30
PROCESSES = 4_096
FILES = 4_096
MEMORY_FILES_BYTES = 2**29
"""What can be written to /tmp, and to /dev/shm, which are in memory (512 MiB each)."""
_PROBE_SECONDS = 10
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")
_BESIDE_PROGRAMS = (
    "bin", "sbin", "shims", "lib", "lib64", "libexec", "include", "versions", "pyvenv.cfg", "share/pipx",
    "share/uv/python", "share/uv/tools",
)  # fmt: skip
_SETTINGS = (
    "alternatives", "group", "java-17-openjdk", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime",
    "nsswitch.conf", "passwd", "pki", "ssl",
)  # fmt: skip
# The command, and then, while the namespace still holds others, a short wait: they end with the first process.
_INSIDE = """"$@"
code=$?
n=0
while [ $n -lt 10 ]; do
    others=
    for process in /proc/[0-9]*; do
        case ${process#/proc/} in 1|$$) ;; *) [ -e "$process/exe" ] && others=1 ;; esac
    done
    [ -z "$others" ] && exit $code
    n=$((n + 1))
    sleep 0.05
done
: >"$LEFT_RUNNING"
exit $code
"""


@dataclass(frozen=True, slots=True)
class Isolation:
    """`kind` is bubblewrap, or group: a process group of its own with limits on memory, files and time, and nothing
    else. `why` says why it is no more than that, '' otherwise."""

    kind: Kind
    why: str = ""

    def __str__(self) -> str:
        return f"{self.kind} ({self.why})" if self.why else self.kind


def wish(environment: Mapping[str, str] = os.environ) -> Wish:
    """What the setting asks for. Raises `SandboxError` for a word that is none."""
    word = environment.get(SETTING, "preferred")
    if word not in ("required", "preferred", "none"):
        raise SandboxError(f"{SETTING}: {word[:40]!r} is none of required, preferred, none")
    return word  # type: ignore[return-value]


def isolation(asked: Wish | None = None) -> Isolation:
    """How commands run here. Raises `SandboxError` when it is required and cannot be."""
    asked = asked or wish()
    if asked == "none":
        return Isolation("group", f"{SETTING}=none")
    found = probed()
    if asked == "required" and found.kind != "bubblewrap":
        raise SandboxError(
            f"isolation is required and not there: {found.why}. Install bubblewrap where user namespaces are allowed, "
            f"or set {SETTING}=preferred to run commands without it"
        )
    return found


@functools.cache
def probed() -> Isolation:
    """What this machine allows, found out by doing it."""
    program = _bubblewrap()
    if program is None:
        return Isolation("group", "bubblewrap (bwrap) is not installed")
    command = [program, *_namespaces(network=False), *_readable("/usr/bin:/bin"), "--", "/bin/sh", "-c", "exit 0"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROBE_SECONDS, env={}, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Isolation("group", f"bubblewrap does not run here ({type(error).__name__})")
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return Isolation("group", f"bubblewrap does not work here: {said[-1] if said else done.returncode}"[:200])
    return Isolation("bubblewrap")


def _bubblewrap() -> str | None:
    return shutil.which("bwrap") or shutil.which("bwrap", path=os.defpath)


def wrapped(
    argv: Sequence[str], *, cwd: Path, home: Path, environment: dict[str, str], network: bool,
    more: Sequence[Path] = (),
) -> list[str]:  # fmt: skip
    """The command inside its namespaces: only `cwd` and `home` can be written, `more` read beside the system. Sets a
    variable in `environment`."""
    environment["LEFT_RUNNING"] = os.path.join(environment["TMPDIR"], LEFT)
    read = [part for folder in more for part in ("--ro-bind", str(folder), str(folder))]
    # Inner folders last: what is bound by itself can be neither moved nor replaced by a link.
    writable = [part for folder in sorted((cwd, home)) for part in ("--bind", str(folder), str(folder))]
    program = _bubblewrap()
    assert program is not None
    return [
        program, *_namespaces(network), *_readable(environment["PATH"]), *read, *writable, "--remount-ro", "/",
        "--chdir", str(cwd), "--",
        "/bin/sh", "-c", _INSIDE, "sh", *argv,
    ]  # fmt: skip


def _namespaces(network: bool) -> list[str]:
    shared = ["--share-net"] if network else []
    return [
        "--unshare-all", *shared, "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox",
        "--tmpfs", "/", "--proc", "/proc", "--dev", "/dev", "--dir", "/var", "--dir", "/run",
        *_bounded("/dev/shm"), "--remount-ro", "/dev", *_bounded("/tmp"),
    ]  # fmt: skip


def _bounded(folder: str) -> list[str]:
    """A private folder in memory. Its size can be given from bubblewrap 0.6.3 on; before, it is half of the memory."""
    return [*(["--size", str(MEMORY_FILES_BYTES)] if _sizes_known() else []), "--tmpfs", folder]


@functools.cache
def _sizes_known() -> bool:
    said = subprocess.run(
        [_bubblewrap() or "bwrap", "--help"], capture_output=True, timeout=_PROBE_SECONDS, env={}, check=False
    )
    return b"--size " in said.stdout + said.stderr


def _readable(path: str) -> list[str]:
    """The system, the programs on the PATH and the running Python, read only; nobody's home."""
    folders = [*_SYSTEM, *(f"/etc/{name}" for name in _SETTINGS)]
    for entry in [*path.split(os.pathsep), os.path.dirname(sys.executable)]:
        folders += programs(entry)
    folders += [sys.prefix, sys.base_prefix]
    folders += [os.environ[name] for name in ("VIRTUAL_ENV", "JAVA_HOME", "GOROOT") if os.environ.get(name)]
    found: list[str] = []
    bound: list[str] = []
    for folder in dict.fromkeys(folders):
        if not os.path.isabs(folder) or _home(os.path.normpath(folder)) or _within(folder, bound):
            continue
        if os.path.islink(folder):
            found += ["--symlink", os.readlink(folder), folder]
        elif os.path.exists(folder):
            found += ["--ro-bind", folder, folder]
            bound.append(folder)
    return found


def programs(entry: str) -> list[str]:
    """A folder of programs and what is needed to run them: the folder above with its libraries, unless that is
    somebody's home or the root. Of a folder like ~/.local, ~/.cargo, ~/.pyenv or .venv, which may keep credentials too,
    the programs and libraries alone, and of a home that is itself on the PATH nothing."""
    if not os.path.isabs(entry):  # an empty one is the folder that the worker was started in
        return []
    entry = os.path.normpath(entry)
    above = os.path.dirname(entry)
    if _home(entry):
        return []
    if os.path.basename(entry).startswith("."):
        return [*_executables(entry), *_beside(entry)]
    if os.path.basename(entry) not in ("bin", "sbin", "shims") or _home(above) or above in ("/usr", "/usr/local"):
        return [entry]
    if os.path.basename(above).startswith("."):
        return [entry, *(path for path in _beside(above) if path != entry)]
    return [above]


def _home(folder: str) -> bool:
    return folder in (os.path.expanduser("~"), "/root", "/home", "/", "//") or os.path.dirname(folder) == "/home"


def _executables(folder: str) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as inside:
        return sorted(one.path for one in inside if one.is_file() and os.access(one.path, os.X_OK))
    return []


def _beside(folder: str) -> list[str]:
    return [path for name in _BESIDE_PROGRAMS if os.path.exists(path := os.path.join(folder, name))]


def _within(folder: str, bound: Sequence[str]) -> bool:
    return any(folder == one or folder.startswith(f"{one}/") for one in bound)


def limiter(timeout_seconds: float) -> Callable[[], None]:
    """To be called in the child: memory, size of files, processes, open files and processor time are bounded."""
    cpu = math.ceil(timeout_seconds) * 4 + 10

    def limit() -> None:
        for kind, most in (
            (resource.RLIMIT_DATA, DATA_BYTES), (resource.RLIMIT_FSIZE, FILE_BYTES), (resource.RLIMIT_NPROC, PROCESSES),
            (resource.RLIMIT_NOFILE, FILES), (resource.RLIMIT_CPU, cpu), (resource.RLIMIT_CORE, 0),
        ):  # fmt: skip
            _, hard = resource.getrlimit(kind)
            value = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (value, value))

    return limit
