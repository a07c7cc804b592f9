"""Names that several modules of the wire need: the payload store's are those that every object-store client uses."""

from __future__ import annotations

from kokuban.schemas import subjects

PAYLOADS_STREAM = f"OBJ_{subjects.PAYLOADS}"
PERSON = "local"
"""Whom a client's or an admin's credential speaks for."""
PAYLOAD_SUBJECTS = (f"$O.{subjects.PAYLOADS}.C.*", f"$O.{subjects.PAYLOADS}.M.*")
