"""`plan`: a DAG of steps."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from kokuban.schemas._base import ShortText, Token, Wire

MAX_STEPS = 64


class PlanStep(Wire, frozen=True):
    """One step: who does it, what is wanted, which steps it follows. An `optional` one may fail: the others go on
    without what it would have given."""

    id: Token
    role: Token
    goal: ShortText
    needs: Annotated[tuple[Token, ...], Meta(max_length=MAX_STEPS)] = ()
    optional: bool = False


class Plan(Wire, frozen=True):
    """The steps that lead to the goal. The integrating step and the verifying steps are not planned: they are added."""

    steps: Annotated[tuple[PlanStep, ...], Meta(min_length=1, max_length=MAX_STEPS)]
