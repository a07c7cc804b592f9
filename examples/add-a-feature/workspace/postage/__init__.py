"""What sending a parcel costs."""

from postage.quote import quote
from postage.receipt import receipt

__all__ = ["quote", "receipt"]
