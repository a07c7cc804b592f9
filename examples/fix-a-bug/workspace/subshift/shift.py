"""Moving cues in time."""

from pathlib import Path

from subshift.cues import Cue, parse, render


def shift(cues: list[Cue], milliseconds: int) -> list[Cue]:
    """The cues moved by `milliseconds`, without those that are over before the film begins."""
    moved = [Cue(cue.start + milliseconds, cue.end + milliseconds, cue.text) for cue in cues]
    return [Cue(max(cue.start, 0), cue.end, cue.text) for cue in moved if cue.end > 0]


def shift_file(path: str, milliseconds: int) -> None:
    """Rewrites an SRT file with all its cues moved."""
    file = Path(path)
    cues = parse(file.read_text(encoding="utf-8"))
    file.write_text(render(shift(cues, milliseconds)), encoding="utf-8")
