"""Running a command that may hang, flood, fork and lie, without being harmed by it.

Invariant: when `run` returns or raises, no process that the command started in its group or session is alive.
"""

from kokuban.agents.sandbox._isolation import Isolation, Kind, isolation, probed, programs
from kokuban.agents.sandbox._output import HeadTail, clip
from kokuban.agents.sandbox._processes import SandboxError
from kokuban.agents.sandbox._remove import remove
from kokuban.agents.sandbox._run import DEFAULT_OUTPUT_CAP_BYTES, Finished, run
from kokuban.agents.sandbox._stabilise import stabilise

__all__ = [
    "DEFAULT_OUTPUT_CAP_BYTES", "Finished", "HeadTail", "Isolation", "Kind", "SandboxError", "clip", "isolation",
    "probed", "programs", "remove", "run", "stabilise",
]  # fmt: skip
