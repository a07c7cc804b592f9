"""Moves the cues of an SRT subtitle file forward or back in time."""

from subshift.cues import Cue, parse, render
from subshift.shift import shift, shift_file
from subshift.timestamps import format_timestamp, parse_timestamp

__all__ = ["Cue", "format_timestamp", "parse", "parse_timestamp", "render", "shift", "shift_file"]
