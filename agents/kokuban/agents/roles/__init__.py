"""The built-in roles' programs, one file each. A role's contract says what it may do; its program says how."""

from __future__ import annotations

from kokuban.agents._work import Role

__all__ = ["BUILT_IN", "program_for"]

BUILT_IN = ("planner", "researcher", "coder", "verifier", "integrator")


def program_for(role: str) -> Role:
    """A new program for a built-in role. Raises `LookupError` naming the known ones."""
    from kokuban.agents.roles.coder import Coder
    from kokuban.agents.roles.integrator import Integrator
    from kokuban.agents.roles.planner import Planner
    from kokuban.agents.roles.researcher import Researcher
    from kokuban.agents.roles.verifier import Verifier

    programs: dict[str, type[Role]] = {
        "planner": Planner, "researcher": Researcher, "coder": Coder, "verifier": Verifier, "integrator": Integrator,
    }  # fmt: skip
    if role not in programs:
        raise LookupError(f"role: {role!r} has no program; the built-in roles are {', '.join(BUILT_IN)}")
    return programs[role]()
