"""Our own token estimate, for servers that report none and for reserving a budget before a call."""

from ._canonical import canonical_bytes
from ._types import Request

BYTES_PER_TOKEN = 4


def estimate_tokens(size_bytes: int) -> int:
    """About how many tokens `size_bytes` of UTF-8 text are: a quarter of the bytes, rounded up, at least 1."""
    return max(1, -(-size_bytes // BYTES_PER_TOKEN))


def estimate_request_tokens(request: Request) -> int:
    """About how many input tokens a request costs: messages, tools and schema together."""
    return estimate_tokens(canonical_bytes(request))


WORST_BYTES_PER_TOKEN = 3
TOKENS_PER_MESSAGE = 8


def worst_request_tokens(request: Request) -> int:
    """More input tokens than a request costs: what is reserved for it. Tokenizers in use make a token of three bytes
    and more of code, prose and Chinese or Japanese text, and add a few for each message."""
    return -(-canonical_bytes(request) // WORST_BYTES_PER_TOKEN) + TOKENS_PER_MESSAGE * (len(request.messages) + 1)
