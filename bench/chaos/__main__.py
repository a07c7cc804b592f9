"""python bench/chaos --tasks 200 --faults 50 --seed 7 --nodes 1|3: see README.md."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import logging  # noqa: E402

import structlog  # noqa: E402
from breaks import BREAKS  # noqa: E402
from driver import Options, Outcome, drive  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description="Attack a real board and check its history.")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, help="default: a new one, printed")
    parser.add_argument("--seeds", type=int, default=1, help="that many runs, with consecutive seeds")
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    parser.add_argument("--seconds", type=float, help="over which the faults are spread (default: one a second)")
    parser.add_argument("--settle-seconds", type=float, default=120, help="at most, after the last fault")
    parser.add_argument("--kinds", help="faults of these kinds only, such as 'kill worker,cut'")
    parser.add_argument(
        "--break", dest="breaks", default="", metavar="NAME", help="break a rule on purpose (see --list)"
    )
    parser.add_argument("--list", action="store_true", help="what can be broken on purpose")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the history, the log and the processes' words")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line a run")
    given = parser.parse_args()
    if given.list:
        for name, broken in BREAKS.items():
            print(f"{name}: {' or '.join(broken.rules)}")
        return 0
    if given.breaks == "all":
        return _each(given)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    if given.breaks:
        given.kinds = given.kinds or ",".join(BREAKS[given.breaks].kinds) or None
    first = given.seed if given.seed is not None else random.SystemRandom().randrange(10**6)
    worst = 0
    for seed in range(first, first + given.seeds):
        print(f"seed {seed}: {given.tasks} tasks, {given.faults} faults, {given.nodes} node(s)", flush=True)
        with tempfile.TemporaryDirectory(prefix="kokuban-chaos-") as name:
            options = Options(
                Path(name), seed, given.tasks, given.faults, given.nodes, given.seconds or float(given.faults),
                given.settle_seconds, tuple(given.kinds.split(",")) if given.kinds else (), given.breaks,
            )  # fmt: skip
            started = time.monotonic()
            outcome = asyncio.run(drive(options))
            _tell(outcome, time.monotonic() - started)
            if given.keep:
                shutil.copytree(name, given.keep / f"seed-{seed}", ignore=shutil.ignore_patterns("store*"))
            if given.json:
                with given.json.open("a") as file:
                    file.write(json.dumps({"seed": seed, "nodes": given.nodes, **outcome.line()}) + "\n")
        worst = max(worst, 1 if outcome.broken else 0)
    return worst


def _each(given: argparse.Namespace) -> int:
    """Break one rule after the other, each in a run of its own, and say which of them were caught."""
    missed = []
    for name, broken in BREAKS.items():
        faults = given.faults if broken.kinds else 0
        command = [sys.executable, str(HERE), "--break", name, "--tasks", str(given.tasks), "--faults", str(faults)]
        command += ["--seed", str(given.seed or 1), "--seconds", str(given.seconds or 8), "--settle-seconds", "8"]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        found = {line.split()[1] for line in said.splitlines() if line.startswith("  BROKEN ")}
        caught = sorted(found & set(broken.rules))
        if not caught:
            missed.append(name)
        print(
            f"{name}: {'caught by ' + ', '.join(caught) if caught else 'NOT CAUGHT'} (of {len(found)} rules)",
            flush=True,
        )
    print(f"{len(BREAKS) - len(missed)} of {len(BREAKS)} caught; missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


def _tell(outcome: Outcome, seconds: float) -> None:
    faults = ", ".join(f"{kind} {count}" for kind, count in sorted(outcome.faults.items()))
    print(f"  {seconds:.0f} s; faults: {faults}")
    print(f"  {', '.join(f'{count} {what}' for what, count in outcome.counts.items())}")
    for note, count in outcome.notes.items():
        print(f"  note: {note} ({count})")
    for line in outcome.broken:
        print(f"  BROKEN {line}")
    print(f"  violations: {len(outcome.broken)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
