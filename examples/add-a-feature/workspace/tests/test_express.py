import unittest

from postage import quote


class Express(unittest.TestCase):
    def test_domestic(self):
        self.assertEqual(quote(1800, "domestic", express=True), 1060)

    def test_europe(self):
        self.assertEqual(quote(1800, "europe", express=True), 2540)

    def test_standard_is_unchanged(self):
        self.assertEqual(quote(1800, "europe", express=False), 1290)
        self.assertEqual(quote(20000, "world"), 11500)

    def test_weight_limit(self):
        self.assertEqual(quote(10000, "domestic", express=True), 1540)
        with self.assertRaises(ValueError):
            quote(10001, "domestic", express=True)

    def test_no_express_to_the_world(self):
        with self.assertRaises(ValueError):
            quote(500, "world", express=True)
