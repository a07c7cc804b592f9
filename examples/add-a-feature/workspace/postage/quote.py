"""Quotes for single parcels."""

from postage import rates


def quote(grams: int, zone: str) -> int:
    """The price in cents of a parcel."""
    if zone not in rates.CENTS:
        raise ValueError(f"unknown zone {zone!r}")
    if not 0 < grams <= rates.MAX_GRAMS:
        raise ValueError(f"a parcel weighs 1 to {rates.MAX_GRAMS} grams, not {grams}")
    return rates.CENTS[zone]
