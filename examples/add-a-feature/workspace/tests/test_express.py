import unittest

from postage import quote


class Express(unittest.TestCase):
    def test_domestic(self):
        self.assertEqual(quote(1800, "domestic", express=True), 940)

    def test_europe(self):
        self.assertEqual(quote(1800, "europe", express=True), 2240)

    def test_standard_is_unchanged(self):
        self.assertEqual(quote(1800, "europe", express=False), 990)
        self.assertEqual(quote(20000, "world"), 1900)

    def test_weight_limit(self):
        self.assertEqual(quote(10000, "domestic", express=True), 940)
        with self.assertRaises(ValueError):
            quote(10001, "domestic", express=True)

    def test_no_express_to_the_world(self):
        with self.assertRaises(ValueError):
            quote(500, "world", express=True)
