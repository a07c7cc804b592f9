"""`verdict`: a judgement that names the digest it judged."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from kokuban.schemas._base import Digest, ShortText, Wire
from kokuban.schemas.records import Ref


class CheckResult(Wire, frozen=True):
    """One check, really run: `before` is its exit code on the unchanged tree where that was needed to judge.
    `isolation`: what kept it apart from the machine; '' in verdicts that do not say."""

    command: ShortText
    exit_code: Annotated[int, Meta(ge=-255, le=255)]
    timed_out: bool = False
    before: Annotated[int, Meta(ge=-255, le=255)] | None = None
    output: Annotated[str, Meta(max_length=16_384)] = ""
    isolation: Literal["", "bubblewrap", "group"] = ""


class Verdict(Wire, frozen=True):
    """`subject` is what was judged, `tree` the digest of the files the checks ran on.

    `scope`: `whole` means every check passed; `part` means that no check got worse (the rest of the task's work is not
    in the tree yet); `citations` means that every quote was found verbatim. Without checks `checked` is false.
    """

    subject: Ref
    passed: bool
    scope: Literal["whole", "part", "citations"]
    checked: bool
    tree: Digest | None = None
    checks: Annotated[tuple[CheckResult, ...], Meta(max_length=32)] = ()
    reasons: Annotated[tuple[ShortText, ...], Meta(max_length=50)] = ()
