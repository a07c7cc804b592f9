"""Quotes for single parcels."""

from postage import rates


def quote(grams: int, zone: str) -> int:
    """The price in cents of a parcel; every started kilogram counts."""
    if zone not in rates.BASE_CENTS:
        raise ValueError(f"unknown zone {zone!r}")
    if not 0 < grams <= rates.MAX_GRAMS:
        raise ValueError(f"a parcel weighs 1 to {rates.MAX_GRAMS} grams, not {grams}")
    kilograms = -(-grams // 1000)
    return rates.BASE_CENTS[zone] + kilograms * rates.CENTS_PER_KILOGRAM[zone]
