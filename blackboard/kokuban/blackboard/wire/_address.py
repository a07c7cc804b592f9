"""A server's address and why it cannot be reached, in words that hold no password."""

from __future__ import annotations

from urllib.parse import urlsplit

_SCHEMES = ("nats", "tls", "ws", "wss")


def is_address(url: str) -> bool:
    """Whether `url` looks like a NATS server's."""
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        return parts.scheme in _SCHEMES and bool(parts.hostname) and " " not in url and (parts.port or 1) > 0
    except ValueError:  # a port that is no number
        return False


def without_password(url: str) -> str:
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def is_unwelcome(error: BaseException | None) -> bool:
    """Whether the server refuses who we are, or that we say nothing about it."""
    return error is not None and "authorization violation" in str(error).lower()


def reason(error: BaseException, cause: Exception | None) -> str:
    """Why there is no connection: `cause`, if the client told one, else `error`."""
    told = cause or error
    text = str(told).strip()
    if "Connect call failed" in text or isinstance(told, ConnectionRefusedError):
        return "connection refused"
    return text or type(told).__name__.replace("Error", " error").lower()
