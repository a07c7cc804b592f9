"""The price list. Prices in cents, weights in grams."""

CENTS = {"domestic": 450, "europe": 990, "world": 1900}
MAX_GRAMS = 30000
