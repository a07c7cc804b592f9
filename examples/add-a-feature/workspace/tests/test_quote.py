import unittest

from postage import quote, receipt


class Standard(unittest.TestCase):
    def test_the_zone_sets_the_price(self):
        self.assertEqual(quote(1000, "domestic"), 450)
        self.assertEqual(quote(30000, "world"), 1900)

    def test_refusals(self):
        for grams, zone in ((0, "domestic"), (30001, "domestic"), (500, "moon")):
            with self.assertRaises(ValueError):
                quote(grams, zone)

    def test_receipt_total(self):
        self.assertEqual(receipt([(800, "domestic"), (800, "europe")]).splitlines()[-1].split(), ["total", "14.40"])
