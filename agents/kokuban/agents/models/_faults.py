"""What a server's error says, in whichever of the wire's many shapes, as one of our errors."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from ._errors import ModelAuthError, ModelError, ModelOverflow, ModelRefused, ModelUnavailable
from ._surrogates import joined

_RETRYABLE_STATUS = {408, 409, 429}
# A limit that waiting does not lift comes with status 429 too.
_PERMANENT = re.compile(r"insufficient|quota|billing|credit", re.IGNORECASE)
_PASSING = re.compile(
    r"overload|rate_?limit|server_?error|api_?error|internal|unavailable|time_?out|timed_out", re.IGNORECASE
)
_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|(?:maximum|model's) context length"
    r"|context (?:window|size|length) (?:of|is|exceed)|exceeds? the (?:available |maximum |model's )?context"
    r"|prompt is too long|(?:prompt|input|request) (?:is )?too long|too many (?:input )?tokens",
    re.IGNORECASE,
)
"""What servers say of a request that does not fit: OpenAI, llama.cpp, vLLM, Ollama, Anthropic."""
_FILTERED = re.compile(r"content_?filter|content_policy|ResponsibleAI|content management policy", re.IGNORECASE)
"""What a server says of a request that its filter does not let through."""
_GONE_STATUS = {402, 404}
"""Nothing is paid for, or no such model is there: no other request would fare better."""
_MAX_MESSAGE_CHARS = 600


def find_fault(payload: Any) -> Any:
    """The error inside a decoded body or event; None when there is none."""
    if not isinstance(payload, dict):
        return None
    if payload.get("error"):
        return payload["error"]
    if payload.get("object") == "error" or payload.get("type") == "error":
        return payload
    return None


def model_error(
    fault: Any, *, status: int | None = None, retry_after_seconds: float | None = None, spent: bool = False
) -> ModelError:
    """The error for a server's `fault` (an object, a string, anything), keeping its code and its words.

    `status` is the HTTP status of a refusal; None for an error inside a reply that began with 200. Then only a fault
    that says it is passing is retryable.
    """
    code, labels, words = _read(fault)
    if status is None:
        status = int(code) if code and re.fullmatch(r"[45]\d\d", code) else _status_field(fault)
    kind = _kind(status, labels)
    if issubclass(kind, ModelRefused) and kind is not ModelAuthError and _OVERFLOW.search(f"{labels} {words}"):
        kind = ModelOverflow
    where = "the model server answered" if status is None else f"the model server answered {status}"
    text = f"{where}: {words[:_MAX_MESSAGE_CHARS]}" if words else where
    gone = status in _GONE_STATUS or _PERMANENT.search(labels) or _FILTERED.search(f"{labels} {words}")
    elsewhere = True if kind is ModelRefused and gone else None
    return kind(
        joined(text), code=joined(code) if code else code, status=status, retry_after_seconds=retry_after_seconds,
        spent=spent, elsewhere=elsewhere,
    )  # fmt: skip


def excerpt(value: Any) -> str:
    """The beginning of a decoded value as JSON, for an error text."""
    try:
        return json.dumps(value, ensure_ascii=False)[:_MAX_MESSAGE_CHARS]
    except RecursionError:
        return "something too deeply nested to show"


def retry_after(value: str, date: str) -> float | None:
    """Seconds to wait from a Retry-After header (seconds or an HTTP date); None when it says nothing usable.

    `date` is the answer's Date header: where there is one, the server's own clock judges its date, not ours.
    """
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?", value.strip()):
        return float(value)
    moment = _moment(value)
    if moment is None:
        return None
    return max(0.0, (moment - (_moment(date) or datetime.now(UTC))).total_seconds())


def wait_of(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from whichever header says so: `retry-after` in both its forms, `retry-after-ms`, and where
    neither stands, when the limit that is used up is renewed: `x-ratelimit-reset-…` (`1s`, `6m0s`, `20ms`, plain
    seconds), `x-ratelimit-reset` (seconds to go, or since 1970), `anthropic-ratelimit-…-reset` (an instant)."""
    said = retry_after(headers.get("retry-after", ""), headers.get("date", ""))
    if said is not None:
        return said
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{0,9})?", milliseconds := headers.get("retry-after-ms", "").strip()):
        return float(milliseconds) / 1_000
    now = _moment(headers.get("date", "")) or datetime.now(UTC)
    resets = [
        seconds
        for left, reset in _LIMITS
        if headers.get(left, "").strip() == "0" and (seconds := _until(headers.get(reset, ""), now)) is not None
    ]
    return max(resets, default=None)


_LIMITS = (
    *((f"x-ratelimit-remaining-{kind}", f"x-ratelimit-reset-{kind}") for kind in ("requests", "tokens")),
    *(
        (f"anthropic-ratelimit-{kind}-remaining", f"anthropic-ratelimit-{kind}-reset")
        for kind in ("requests", "tokens", "input-tokens", "output-tokens")
    ),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
)
_EPOCH_SECONDS = 1_000_000_000
_EPOCH_MILLISECONDS = 1_000_000_000_000


def _until(text: str, now: datetime) -> float | None:
    """Seconds until a limit is renewed; None when `text` is no time."""
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,13}(\.[0-9]{1,9})?", text):
        number = float(text)
        if number < _EPOCH_SECONDS:
            return number
        return max(0.0, (number / 1_000 if number >= _EPOCH_MILLISECONDS else number) - now.timestamp())
    if re.match(r"[0-9]{4}-", text):
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        return max(0.0, ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now).total_seconds())
    return _duration(text)


def _duration(text: str) -> float | None:
    parts = re.findall(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|h|m|s)", text.strip())
    if not parts or "".join(n + unit for n, unit in parts) != text.strip():
        return None
    return sum(float(n) * {"ms": 0.001, "s": 1, "m": 60, "h": 3_600}[unit] for n, unit in parts)


def _moment(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _kind(status: int | None, labels: str) -> type[ModelError]:
    if status in (401, 403):
        return ModelAuthError
    if _PERMANENT.search(labels):
        return ModelRefused
    if status is None:
        passing = bool(_PASSING.search(labels))
    else:
        passing = status in _RETRYABLE_STATUS or status >= 500
    return ModelUnavailable if passing else ModelRefused


def _read(fault: Any) -> tuple[str | None, str, str]:
    """The fault's code, all its labels in one text, and its words."""
    if isinstance(fault, str):
        return None, "", fault
    if not isinstance(fault, dict):
        return None, "", excerpt(fault)
    inner = fault.get("error")
    if isinstance(inner, dict):
        return _read(inner)
    labels = [str(fault[key])[:100] for key in ("code", "type", "status") if fault.get(key) not in (None, "", "error")]
    words = next((fault[key] for key in ("message", "detail", "msg") if isinstance(fault.get(key), str)), None)
    if words is None:
        words = inner if isinstance(inner, str) else excerpt(fault)
    parameter = fault.get("param")
    if isinstance(parameter, str) and parameter not in words:
        words = f"{words} (param {parameter})"
    return (labels[0] if labels else None), " ".join(labels), words


def _status_field(fault: Any) -> int | None:
    for key in ("status", "status_code", "http_code"):
        value = fault.get(key) if isinstance(fault, dict) else None
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    return None
