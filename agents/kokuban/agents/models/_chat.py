"""Puts a chat completion together, from a stream of events or from one body, or says why it is none.

Nothing is believed because of `finish_reason` alone: servers say "stop" with calls and "tool_calls" with half a call.
"""

import json
from typing import Any

from ._arriving import Arriving
from ._errors import ModelCutOff, ModelError, ModelProtocolError
from ._extra import CALLS
from ._faults import excerpt, find_fault, model_error
from ._model import Progress
from ._slots import CallSlots
from ._sse import SseEvent
from ._surrogates import PairJoiner, joined
from ._types import Reply, Request

_CUT_FINISHES = {"length", "max_tokens", "max_output_tokens", "model_length", "content_filter"}
_TEXT_PARTS = (None, "text", "output_text")  # others hold reasoning or media
_KNOWN_FIELDS = {"role", "content", "tool_calls", "function_call"}
_END_OF_THOUGHT = "</think>"


class ChatReply(Arriving):
    """One reply while it arrives: `feed` it bytes, `close` it at their end, then ask for the `reply`.

    `done` is set by `[DONE]`.
    """

    def __init__(self, request: Request, progress: Progress, *, thinks: bool = False) -> None:
        super().__init__()
        self._thinks = thinks
        self._tail: str | None = "" if thinks else None
        self._request = request
        self._progress = progress
        self._calls = CallSlots()
        self._pairs = PairJoiner()
        self._text: list[str] = []
        self._extra: dict[str, Any] = {}
        self._model: str | None = None
        self._finish: str | None = None
        self.done = False

    @property
    def complete(self) -> bool:
        """Whether the server said that the reply ended: by a finish reason, or by `[DONE]` after something."""
        return self._finish is not None or (self.done and self._progress.output_bytes > 0)

    def reply(self, fallback_model: str) -> Reply:
        """The complete reply. Raises `ModelCutOff` when the server never said that it ended."""
        if not self.complete:
            raise ModelCutOff("the model server's stream ended before the reply did", code="cut_off")
        if self._finish == "error":
            raise ModelCutOff("the model server stopped with an error in the middle of the reply", code="error")
        self._add_text(self._pairs.close())
        output_tokens = self._progress.output_tokens
        truncated = (self._finish or "").lower() in _CUT_FINISHES or (
            output_tokens is not None and output_tokens >= self._request.max_output_tokens
        )
        content, thought = _apart("".join(self._text)) if self._thinks else ("".join(self._text), "")
        if self._tail is not None:
            self._progress.show(content)
        extra = dict(self._extra)
        if thought:
            extra["reasoning"] = f"{extra.get('reasoning', '')}{thought}"
        # The number of turns before it keeps a made-up id apart from those of earlier turns.
        calls = self._calls.calls(id_prefix=f"call_{len(self._request.messages)}_", truncated=truncated)
        if self._calls.extra:
            extra[CALLS] = self._calls.extra
        return Reply(
            content=content,
            calls=calls,
            truncated=truncated,
            finish=self._finish,
            usage=self._progress.usage(self._request, complete=True),
            model=self._model or fallback_model,
            extra=extra,
        )

    def _add_event(self, event: SseEvent) -> None:
        data = event.data.strip()
        if data.startswith(":"):  # a keep-alive comment that a proxy wrapped into data
            return
        if data == "[DONE]":
            self.done = True
            return
        if event.name == "error":
            raise self._error(_fault_in(data))
        payload = _decoded(data)
        choice = self._choice(payload)
        if choice is not None:
            delta = choice.get("delta")
            self._add_message(delta if isinstance(delta, dict) else {}, whole=False)
            self._add_finish(choice)

    def _add_body(self, body: bytes) -> None:
        payload = _decoded(body.decode("utf-8-sig", "replace"))
        choice = self._choice(payload)
        message = choice.get("message") if choice is not None else None
        if choice is None or not isinstance(message, dict):
            raise ModelProtocolError(f"the model server's reply holds no message: {excerpt(payload)}")
        self._add_message(message, whole=True)
        self._add_finish(choice)
        self._finish = self._finish or "stop"
        self.done = True

    def _error(self, fault: Any) -> ModelError:
        return model_error(fault, spent=True)

    def _choice(self, payload: Any) -> dict[str, Any] | None:
        fault = find_fault(payload)
        if fault is not None:
            raise self._error(fault)
        if not isinstance(payload, dict):
            return None
        if isinstance(payload.get("model"), str):
            self._model = joined(payload["model"])
        choices = payload.get("choices")
        choices = choices if isinstance(choices, list) else []
        if isinstance(payload.get("usage"), dict):
            self._add_usage(payload["usage"])
        choice = next((item for item in choices if isinstance(item, dict) and item.get("index") in (0, None)), None)
        if choice is not None and choice.get("error"):
            raise self._error(choice["error"])
        return choice

    def _add_finish(self, choice: dict[str, Any]) -> None:
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            self._finish = joined(finish)

    def _add_message(self, message: dict[str, Any], *, whole: bool) -> None:
        content = message.get("content")
        for part in content if isinstance(content, list) else [content]:
            text = part
            if isinstance(part, dict):
                text = part.get("text") if part.get("type") in _TEXT_PARTS else None
            if isinstance(text, str):
                self._add_text(self._pairs.feed(text))
        entries = message.get("tool_calls")
        for entry in entries if isinstance(entries, list) else []:
            added = self._calls.add_whole(entry) if whole else self._calls.add_fragment(entry)
            self._progress.count(added)
        for key in message.keys() - _KNOWN_FIELDS:
            self._add_extra(key, message[key])

    def _add_text(self, text: str) -> None:
        if not text:
            return
        self._text.append(text)
        if self._tail is None:
            self._progress.text(text)
            return
        # Until the thought is known to be over, what comes may be thought, which nobody is shown.
        self._progress.count(text)
        _, tag, after = f"{self._tail}{text}".partition(_END_OF_THOUGHT)
        self._tail = None if tag else f"{self._tail}{text}"[-len(_END_OF_THOUGHT) :]
        if tag:
            self._progress.show(after.lstrip())

    def _add_extra(self, key: str, value: Any) -> None:
        if isinstance(value, str) and isinstance(self._extra.get(key, ""), str):
            self._progress.count(value)
            self._extra[key] = self._extra.get(key, "") + value
        elif value is not None:
            self._extra[key] = value

    def _add_usage(self, usage: dict[str, Any]) -> None:
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        self._progress.report(
            _tokens(usage.get("prompt_tokens")), _tokens(usage.get("completion_tokens")), _tokens(cached)
        )


def _apart(text: str) -> tuple[str, str]:
    """What a model that thinks aloud answered, and what it thought: all before the first closing tag, with or without
    an opening one; all of it when the block was never closed. A tag further on belongs to the answer."""
    before, tag, after = text.partition(_END_OF_THOUGHT)
    if tag:
        return after.lstrip(), before.lstrip().removeprefix("<think>")
    return ("", text.lstrip().removeprefix("<think>")) if text.lstrip().startswith("<think>") else (text, "")


def _tokens(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _fault_in(data: str) -> Any:
    try:
        payload = json.loads(data)
    except (ValueError, RecursionError):
        return data
    return find_fault(payload) or payload


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelCutOff("the model server sent an event or a body that is not JSON", code="not_json") from error
