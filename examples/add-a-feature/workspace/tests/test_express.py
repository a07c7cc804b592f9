import unittest

from postage import quote


class Express(unittest.TestCase):
    def test_surcharge(self):
        self.assertEqual(quote(1800, "domestic", express=True), 940)
        self.assertEqual(quote(1800, "europe", express=True), 1480)

    def test_standard_is_unchanged(self):
        self.assertEqual(quote(1800, "europe", express=False), 990)
        self.assertEqual(quote(20000, "world"), 1900)

    def test_weight_limit(self):
        self.assertEqual(quote(10000, "domestic", express=True), 940)
        with self.assertRaises(ValueError):
            quote(10001, "domestic", express=True)
