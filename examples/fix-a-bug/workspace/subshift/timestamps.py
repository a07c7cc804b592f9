"""SRT timestamps, `HH:MM:SS,mmm`, to and from milliseconds."""

import re

_TIMESTAMP = re.compile(r"(\d{2,}):([0-5]\d):([0-5]\d),(\d{3})")


def parse_timestamp(text: str) -> int:
    """The milliseconds that a timestamp stands for."""
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not an SRT timestamp: {text!r}")
    hours, minutes, seconds, milliseconds = (int(part) for part in match.groups())
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + milliseconds


def format_timestamp(total: int) -> str:
    """The timestamp for a number of milliseconds."""
    milliseconds = total % 1000
    seconds = total // 1000 % 60
    minutes = total // 60_000 % 60
    hours = total // 3_600_000
    return f"{hours:02}:{minutes:02}:{seconds:02},{milliseconds:03}"
