"""Anthropic's Messages wire: how a request is written, and how a reply is put together from events or one body."""

import hashlib
import json
import re
from typing import Any

from ._arguments import parse_arguments
from ._arriving import Arriving
from ._errors import ModelCutOff, ModelError, ModelProtocolError
from ._faults import excerpt, find_fault, model_error
from ._model import Progress
from ._sse import SseEvent
from ._surrogates import joined
from ._types import Call, Message, Reply, Request

NO_OUTPUT = "(no output)"
NO_RESULT = "This call was not made."
EXTRA = "anthropic"
_CUT = frozenset({"max_tokens", "model_context_window_exceeded", "refusal", "pause_turn"})
_CACHED = {"type": "ephemeral"}
_NAME = re.compile(r"[^A-Za-z0-9_-]")
_NO_STREAM = re.compile(r"\bstream(?:ing)?\b", re.IGNORECASE)
_HOTTEST = 1.0


class MessagesDialect:
    """Writes request bodies. `refusals` are the server's own words for optional parts that it refused."""

    def __init__(self, model: str) -> None:
        self.refusals: tuple[str, ...] = ()
        self._model = model
        self._left_out: set[str] = set()

    def body(self, request: Request) -> dict[str, Any]:
        """The JSON body that asks for `request`, streamed. A wanted schema becomes the one tool that must be called."""
        system = [m.content for m in request.messages if m.role == "system" and m.content.strip()]
        tools = [{"name": t.name, "description": t.description, "input_schema": t.parameters} for t in request.tools]
        body: dict[str, Any] = {
            "model": self._model, "max_tokens": request.max_output_tokens, "stream": True,
            "temperature": min(request.temperature, _HOTTEST), "messages": _turns(request.messages, self._model),
        }  # fmt: skip
        if request.schema is not None:
            if tools or request.schema.get("type") != "object":  # a tool's input is an object
                system.append(f"Reply with one JSON object, valid against this schema: {json.dumps(request.schema)}")
            else:
                tools = [{"name": request.schema_name, "description": "Reply.", "input_schema": request.schema}]
                body["tool_choice"] = {"type": "tool", "name": request.schema_name}
        if system:
            body["system"] = [{"type": "text", "text": joined(text)} for text in system]
            body["system"][-1]["cache_control"] = _CACHED
        if tools:
            body["tools"] = [*tools[:-1], {**tools[-1], "cache_control": _CACHED}]
        return {key: value for key, value in body.items() if key not in self._left_out}

    def learn(self, body: dict[str, Any], words: str) -> bool:
        """Take in why the server refused `body`; returns whether asking again, in a new body, makes sense."""
        field = "temperature" if "temperature" in words else "stream" if _NO_STREAM.search(words) else None
        if field is None or field not in body:
            return False
        self._left_out.add(field)
        self.refusals += (words,)
        return True


def _turns(messages: tuple[Message, ...], model: str) -> list[dict[str, Any]]:
    """User and assistant turns in alternation. The results of a turn's calls stand first in the one user turn after it,
    each exactly once: a call without a result gets one that says so."""
    turns: list[dict[str, Any]] = []
    waiting: list[str] = []

    def add(role: str, blocks: list[dict[str, Any]]) -> None:
        if not blocks:
            return
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})

    def settle() -> None:
        add("user", [_result(name, NO_RESULT, error=True) for name in waiting])
        waiting.clear()

    for message in messages:
        if message.role == "assistant":
            settle()
            blocks = _blocks(message, model)
            waiting += [call.id for call in message.calls]
            add("assistant", blocks)
        elif message.role == "tool":
            if message.call_id in waiting:
                waiting.remove(message.call_id)
                add("user", [_result(message.call_id, message.content)])
        elif message.role == "user":
            settle()
            add("user", [{"type": "text", "text": joined(message.content)}] if message.content.strip() else [])
    settle()
    return turns


def _result(call: str, text: str, *, error: bool = False) -> dict[str, Any]:
    block: dict[str, Any] = {
        "type": "tool_result", "tool_use_id": _id(call), "content": joined(text).strip() or NO_OUTPUT,
    }  # fmt: skip
    return block | ({"is_error": True} if error else {})


def _blocks(message: Message, model: str) -> list[dict[str, Any]]:
    """The turn's own blocks as they came, if they came from this model; else its text and calls alone."""
    kept = message.extra.get(EXTRA)
    if isinstance(kept, dict) and kept.get("model") == model and isinstance(kept.get("blocks"), list):
        blocks = [block for block in kept["blocks"] if not _is_empty_text(block)]
        if [b.get("id") for b in blocks if b.get("type") == "tool_use"] == [_id(call.id) for call in message.calls]:
            return blocks
    blocks = []
    if message.content.strip():
        blocks.append({"type": "text", "text": joined(message.content)})
    for call in message.calls:
        values = parse_arguments(call.arguments)
        blocks.append(
            {
                "type": "tool_use",
                "id": _id(call.id),
                "name": _NAME.sub("_", call.name)[:64] or "unnamed",
                "input": values if isinstance(values, dict) else {},
            }
        )
    return blocks


def _id(call: str) -> str:
    """The id as this wire takes it: another provider's may hold what is refused here."""
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", call):
        return call
    return f"toolu_{hashlib.sha256(joined(call).encode()).hexdigest()[:24]}"


def _is_empty_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text" and not str(block.get("text", "")).strip()


class MessagesReply(Arriving):
    """One reply while it arrives: `feed` it bytes, `close` it at their end, then ask for the `reply`. `done`
    is set by `message_stop`."""

    def __init__(self, request: Request, progress: Progress, model: str) -> None:
        super().__init__()
        self._request, self._progress, self._asked = request, progress, model
        self._as_tool = request.schema_name if request.schema is not None and not request.tools else None
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, list[str]] = {}
        self._open: set[int] = set()
        self._usage: dict[str, Any] = {}
        self._model: str | None = None
        self._stop: str | None = None
        self.done = False

    @property
    def complete(self) -> bool:
        """Whether the server said that the reply ended."""
        return self._stop is not None or (self.done and bool(self._blocks))

    def reply(self, fallback_model: str) -> Reply:
        """The complete reply. Raises `ModelCutOff` when the server never said that it ended."""
        if not self.complete:
            raise ModelCutOff("the model server's stream ended before the reply did", code="cut_off")
        truncated = self._stop in _CUT or self._reached_limit()
        order = sorted(self._blocks)
        raw = [self._whole(n) for n in order]
        text = joined("".join(_string(b.get("text")) for b in raw if b.get("type") == "text"))
        calls = tuple(self._call(n, truncated) for n in order if self._blocks[n].get("type") == "tool_use")
        if self._as_tool is not None and calls and not text.strip():  # the answer came as the one tool's input
            text, calls, raw = calls[0].arguments, (), []
        has_reasoning = any(b.get("type") in ("thinking", "redacted_thinking") for b in raw)
        sound = all(_string(b.get("type")) for b in raw) and all(call.problem is None for call in calls)
        whole = has_reasoning and not truncated and sound
        extra = {EXTRA: {"model": self._asked, "blocks": raw}} if whole else {}
        return Reply(
            content=text, calls=calls, truncated=truncated, finish=self._stop, model=self._model or fallback_model,
            usage=self._progress.usage(self._request, complete=True), extra=extra,
        )  # fmt: skip

    def _reached_limit(self) -> bool:
        used = self._progress.output_tokens
        return used is not None and used >= self._request.max_output_tokens

    def _whole(self, n: int) -> dict[str, Any]:
        block = self._blocks[n]
        if block.get("type") != "tool_use":
            return block
        values = parse_arguments("".join(self._inputs[n]) if n in self._inputs else block.get("input"))
        return {**block, "input": values if isinstance(values, dict) else {}}

    def _call(self, n: int, truncated: bool) -> Call:
        block = self._blocks[n]
        given = block.get("input")
        text = joined("".join(self._inputs.get(n, ())) or (_json(given) if given else ""))
        problem = None
        if truncated or n in self._open:
            problem = "the reply was cut off before this call was whole"
        name, call = _string(block.get("name")), _string(block.get("id"))
        if problem is None and not (name and call):
            problem = "the call has no id or no name"
        if call and any(self._blocks[m].get("id") == call for m in self._blocks if m < n):
            call, problem = f"{call}_{n}", "two calls came with the same id"
        return Call(call or f"call_{n}", name, text, problem)

    def _add_event(self, event: SseEvent) -> None:
        data = event.data.strip()
        if data.startswith(":") or data == "[DONE]" or event.name == "ping":  # proxies add the other wire's words
            return
        payload = _decoded(data)
        fault = find_fault(payload)
        if fault is not None or event.name == "error":
            raise self._error(fault if fault is not None else payload)
        if not isinstance(payload, dict):
            return
        kind = payload.get("type")
        if kind == "message_start":
            self._add_head(payload.get("message"))
        elif kind == "content_block_start":
            self._start(payload)
        elif kind == "content_block_delta":
            self._add_delta(payload)
        elif kind == "content_block_stop":
            self._open.discard(_index(payload))
        elif kind == "message_delta":
            self._add_usage(payload.get("usage"))
            delta = payload.get("delta")
            self._stop = _string(delta.get("stop_reason") if isinstance(delta, dict) else None) or self._stop
        elif kind == "message_stop":
            self.done = True

    def _error(self, fault: Any) -> ModelError:
        return model_error(fault, spent=True)

    def _add_head(self, message: Any) -> None:
        if isinstance(message, dict):
            self._model = _string(message.get("model")) or self._model
            self._add_usage(message.get("usage"))

    def _start(self, payload: dict[str, Any]) -> None:
        block, n = payload.get("content_block"), _index(payload)
        if isinstance(block, dict):
            self._blocks[n] = dict(block)
            self._open.add(n)
            self._show(block)

    def _show(self, block: dict[str, Any]) -> None:
        if block.get("type") == "text" and isinstance(block.get("text"), str):
            self._progress.text(block["text"])

    def _add_delta(self, payload: dict[str, Any]) -> None:
        n, delta = _index(payload), payload.get("delta")
        block = self._blocks.get(n)
        if block is None or not isinstance(delta, dict):
            return
        for field in ("text", "thinking", "signature"):
            piece = delta.get(field)
            if isinstance(piece, str):
                block[field] = f"{block.get(field, '')}{piece}"
                (self._progress.text if field == "text" else self._progress.count)(piece)
        piece = delta.get("partial_json")
        if isinstance(piece, str):
            self._inputs.setdefault(n, []).append(piece)
            self._progress.count(piece)

    def _add_body(self, body: bytes) -> None:
        payload = _decoded(body.decode("utf-8-sig", "replace"))
        fault = find_fault(payload)
        if fault is not None:
            raise self._error(fault)
        content = payload.get("content") if isinstance(payload, dict) else None
        if not isinstance(content, list):
            raise ModelProtocolError(f"the model server's reply holds no content: {excerpt(payload)}")
        for n, block in enumerate(content):
            if isinstance(block, dict):
                self._blocks[n] = block
                self._show(block)
                self._progress.count("" if block.get("type") == "text" else _json(block))
        self._add_head(payload)
        self._stop = _string(payload.get("stop_reason")) or "end_turn"
        self.done = True

    def _add_usage(self, usage: Any) -> None:
        """Totals, which a later report replaces: they are never added up."""
        if not isinstance(usage, dict):
            return
        self._usage.update({key: value for key, value in usage.items() if _is_count(value)})
        fresh, read = self._usage.get("input_tokens"), self._usage.get("cache_read_input_tokens", 0)
        written = self._usage.get("cache_creation_input_tokens", 0)
        total = None if fresh is None else fresh + read + written
        self._progress.report(total, self._usage.get("output_tokens"), read or None, written)


def _index(payload: dict[str, Any]) -> int:
    return payload["index"] if _is_count(payload.get("index")) else 0


def _string(value: Any) -> str:
    return joined(value) if isinstance(value, str) else ""


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "[too deeply nested"  # never valid, so never run


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelCutOff("the model server sent an event or a body that is not JSON", code="not_json") from error
