"""Receipts for several parcels."""

from postage.quote import quote


def receipt(parcels: list[tuple[int, str]]) -> str:
    """One line for each parcel (grams, zone) and the total."""
    prices = [quote(grams, zone) for grams, zone in parcels]
    lines = [f"{grams:>6} g {zone:<10}{price / 100:>8.2f}" for (grams, zone), price in zip(parcels, prices)]
    return "\n".join([*lines, f"{'total':<19}{sum(prices) / 100:>8.2f}"])
