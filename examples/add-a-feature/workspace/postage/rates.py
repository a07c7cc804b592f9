"""The price list. Prices in cents, weights in grams."""

BASE_CENTS = {"domestic": 450, "europe": 990, "world": 1900}
CENTS_PER_KILOGRAM = {"domestic": 60, "europe": 150, "world": 480}
MAX_GRAMS = 30000
