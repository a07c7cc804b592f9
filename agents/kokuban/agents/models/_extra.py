"""A provider's own fields: kept as they came, whole, for the model that gave them and for no other."""

import json
from typing import Any

import msgspec

from ._surrogates import joined
from ._types import Message

MODEL = "by"
"""In an `extra`: which model its fields are of."""
CALLS = "calls"
"""In an `extra`: fields that stood beside single calls, by the call's id."""


def keepable(value: Any) -> Any:
    """The value as it can be stored and sent again; None for what no JSON can say or no store can hold (NaN, numbers
    of more than 64 bits, endless nesting). Halves of characters become U+FFFD."""
    try:
        if isinstance(value, str):
            return joined(value)
        text = joined(json.dumps(value, ensure_ascii=False, allow_nan=False))
        return msgspec.json.decode(msgspec.json.encode(json.loads(text)))
    except (ValueError, TypeError, OverflowError, RecursionError, UnicodeError, msgspec.MsgspecError):
        return None


def signed(extra: dict[str, Any], model: str) -> dict[str, Any]:
    """What can be kept of these fields, with the name of the model that gave them; nothing when there is nothing."""
    kept = {joined(key): value for key, given in extra.items() if (value := keepable(given)) is not None}
    return {**kept, MODEL: model} if kept else {}


def own(message: Message, model: str) -> dict[str, Any]:
    """The fields that this model gave with this turn; none of another model's."""
    return message.extra if message.extra.get(MODEL) == model else {}
