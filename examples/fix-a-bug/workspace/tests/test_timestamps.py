import unittest

from subshift import format_timestamp, parse_timestamp


class Timestamps(unittest.TestCase):
    def test_parse(self):
        self.assertEqual(parse_timestamp("01:02:03,004"), 3723004)

    def test_parse_refuses_other_text(self):
        with self.assertRaises(ValueError):
            parse_timestamp("1:02")

    def test_format_below_an_hour(self):
        self.assertEqual(format_timestamp(754321), "00:12:34,321")

    def test_format_above_an_hour(self):
        self.assertEqual(format_timestamp(3723004), "01:02:03,004")

    def test_round_trip(self):
        for text in ("00:00:00,000", "00:59:59,999", "01:00:00,000", "25:30:01,050"):
            self.assertEqual(format_timestamp(parse_timestamp(text)), text)
