"""One request, one text: the model-independent form a recording is keyed by."""

import json
from typing import Any

import msgspec

from ._surrogates import joined
from ._types import Request


def canonical_request(request: Request) -> dict[str, Any]:
    """The request as plain JSON data, without the fields that belong to one provider only (`extra`)."""
    data: dict[str, Any] = msgspec.to_builtins(request)
    for message in data["messages"]:
        del message["extra"]
    data["temperature"] = float(request.temperature)  # 0 and 0.0 are one request
    return data


def canonical_json(value: object) -> bytes:
    """Sorted, compact JSON in UTF-8; raises ValueError for NaN and infinities."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return joined(text).encode()
