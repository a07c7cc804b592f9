"""Cues: the numbered blocks of an SRT file."""

from dataclasses import dataclass

from subshift.timestamps import format_timestamp, parse_timestamp


@dataclass(frozen=True)
class Cue:
    """One subtitle; `start` and `end` in milliseconds."""

    start: int
    end: int
    text: str


def parse(srt: str) -> list[Cue]:
    """The cues of an SRT file, in the order they stand there."""
    cues = []
    for block in srt.strip().split("\n\n"):
        _number, times, *lines = block.splitlines()
        start, end = times.split(" --> ")
        cues.append(Cue(parse_timestamp(start), parse_timestamp(end), "\n".join(lines)))
    return cues


def render(cues: list[Cue]) -> str:
    """The SRT file for these cues, numbered from 1."""
    blocks = [
        f"{number}\n{format_timestamp(cue.start)} --> {format_timestamp(cue.end)}\n{cue.text}\n"
        for number, cue in enumerate(cues, start=1)
    ]
    return "\n".join(blocks)
