"""`critique`: what went wrong, for the next attempt (Reflexion: Shinn et al., 2023)."""

from __future__ import annotations

from kokuban.schemas._base import Text, Wire
from kokuban.schemas.records import Ref


class Critique(Wire, frozen=True):
    """`subject` is the artifact that failed; `text` says why and what to look at, bounded."""

    subject: Ref
    text: Text
