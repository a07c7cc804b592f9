"""Texts as vectors, from an endpoint that speaks OpenAI's `/embeddings`. Optional: without it recall goes by words."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from operator import itemgetter
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

TIMEOUT_SECONDS = 10.0
MOST_BYTES = 32 * 1024 * 1024
BATCH = 64
"""Texts in one request."""
MOST_CHARS = 8_000
"""How much of a text is sent: what such models read at most, roughly."""


class NoEmbeddings(Exception):
    """The endpoint gave no vectors. Nothing was written; recall by words instead."""


class _Row(msgspec.Struct):
    embedding: Annotated[tuple[float, ...], Meta(min_length=1, max_length=16_384)]
    index: int


class _Answer(msgspec.Struct):
    data: list[_Row]


_answer = msgspec.json.Decoder(_Answer)


class Embeddings:
    """`url` is the server's address up to `/embeddings`, with the model's name after `#` where it wants one:
    `http://127.0.0.1:8080/v1#nomic-embed-text`. `key` is sent to it as a bearer token."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        """Raises `ValueError` for what is no such address."""
        try:
            parts = urlsplit(url)
            sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            sound = False
        if not sound or parts.username or parts.password or parts.query:
            raise ValueError(
                "embeddings: give an address such as http://127.0.0.1:8080/v1#model, and no password in it"
            )
        self._url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/embeddings"
        self._model = parts.fragment
        self._key = key

    @property
    def address(self) -> str:
        """Where the server is."""
        return self._url

    async def of(self, texts: Sequence[str]) -> list[array[float]]:
        """A vector for each text, in their order and all of one length. Raises `NoEmbeddings`; nothing is tried
        twice, because there is another way to recall."""
        found: list[array[float]] = []
        for start in range(0, len(texts), BATCH):
            found += await self._some([text[:MOST_CHARS] for text in texts[start : start + BATCH]])
        if len({len(vector) for vector in found}) > 1:
            raise NoEmbeddings("embeddings: vectors of different lengths")
        return found

    async def _some(self, texts: list[str]) -> list[array[float]]:
        import asyncio

        import httpx

        body = {"input": texts, "encoding_format": "float"} | ({"model": self._model} if self._model else {})
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            async with (
                asyncio.timeout(TIMEOUT_SECONDS),
                httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=TIMEOUT_SECONDS) as client,
                client.stream("POST", self._url, json=body, headers=headers) as response,
            ):
                if response.status_code != 200:
                    raise NoEmbeddings(f"embeddings: the endpoint answered {response.status_code}")
                data = bytearray()
                async for part in response.aiter_bytes():
                    data += part
                    if len(data) > MOST_BYTES:
                        raise NoEmbeddings(f"embeddings: an answer of more than {MOST_BYTES} bytes")
            rows = await asyncio.to_thread(_rows, bytes(data))
        except (httpx.HTTPError, TimeoutError, msgspec.DecodeError, UnicodeError) as error:
            raise NoEmbeddings(f"embeddings: {type(error).__name__}") from error
        if [index for index, _ in rows] != list(range(len(texts))):
            raise NoEmbeddings("embeddings: not one vector for each text")
        return [vector for _, vector in rows]


def _rows(data: bytes) -> list[tuple[int, array[float]]]:
    """In their order, at four bytes a number. Raises `msgspec.DecodeError`, `NoEmbeddings`."""
    rows = sorted(((row.index, array("f", row.embedding)) for row in _answer.decode(data).data), key=itemgetter(0))
    if not all(math.isfinite(number) for _, vector in rows for number in vector):
        raise NoEmbeddings("embeddings: a vector that is none")
    return rows
