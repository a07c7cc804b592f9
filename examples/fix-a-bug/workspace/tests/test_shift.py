import unittest

from subshift import Cue, parse, render, shift

FILM = "1\n00:59:58,000 --> 00:59:59,500\nWait.\n\n2\n01:00:01,000 --> 01:00:02,250\nWhat was\nthat?\n"


class Shift(unittest.TestCase):
    def test_parse_and_render_round_trip(self):
        self.assertEqual(render(parse(FILM)), FILM)

    def test_empty_file(self):
        self.assertEqual(parse(""), [])
        self.assertEqual(parse("\n\n"), [])

    def test_later(self):
        self.assertEqual(shift([Cue(0, 900, "a")], 1500), [Cue(1500, 2400, "a")])

    def test_earlier_keeps_what_is_left(self):
        cues = [Cue(0, 900, "gone"), Cue(500, 2000, "cut"), Cue(3000, 4000, "whole")]
        self.assertEqual(shift(cues, -1000), [Cue(0, 1000, "cut"), Cue(2000, 3000, "whole")])
