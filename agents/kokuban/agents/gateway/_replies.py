"""Our reply in OpenAI's or Anthropic's words, whole or as a stream of events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from kokuban.agents.models import Reply, parse_arguments


def openai_body(reply: Reply, n: int) -> dict[str, Any]:
    """A chat completion. `n` is the number of the call in the step."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content or None}
    if reply.calls:
        message["tool_calls"] = _openai_calls(reply)
    return {
        "id": f"chatcmpl-{n}", "object": "chat.completion", "created": 0, "model": reply.model,
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(reply)}], "usage": _usage(reply),
    }  # fmt: skip


def openai_events(reply: Reply, n: int) -> Iterator[bytes]:
    """The same as server-sent events."""
    head = {"id": f"chatcmpl-{n}", "object": "chat.completion.chunk", "created": 0, "model": reply.model}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return _data({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield chunk({"role": "assistant", "content": ""})
    if reply.content:
        yield chunk({"content": reply.content})
    for index, call in enumerate(_openai_calls(reply)):
        yield chunk({"tool_calls": [{"index": index, **call}]})
    yield chunk({}, _finish(reply))
    yield _data({**head, "choices": [], "usage": _usage(reply)})
    yield b"data: [DONE]\n\n"


def anthropic_body(reply: Reply, n: int) -> dict[str, Any]:
    """A message."""
    return {
        "id": f"msg_{n}", "type": "message", "role": "assistant", "model": reply.model, "content": _blocks(reply),
        "stop_reason": _stop(reply), "stop_sequence": None,
        "usage": {"input_tokens": reply.usage.input_tokens, "output_tokens": reply.usage.output_tokens},
    }  # fmt: skip


def anthropic_events(reply: Reply, n: int) -> Iterator[bytes]:
    """The same as server-sent events."""
    whole = anthropic_body(reply, n)
    start = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    yield _event("message_start", message=start)
    for index, block in enumerate(whole["content"]):
        empty = {**block, "input": {}} if block["type"] == "tool_use" else {**block, "text": ""}
        yield _event("content_block_start", index=index, content_block=empty)
        if block["type"] == "tool_use":
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}
        else:
            delta = {"type": "text_delta", "text": block["text"]}
        yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    usage = {"output_tokens": reply.usage.output_tokens}
    yield _event("message_delta", delta={"stop_reason": whole["stop_reason"], "stop_sequence": None}, usage=usage)
    yield _event("message_stop")


def _data(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\n".encode() + _data({"type": kind, **fields})


def _openai_calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}
        for call in reply.calls
        if call.problem is None
    ]


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": reply.content}] if reply.content else []
    for call in reply.calls:
        values = parse_arguments(call.arguments)
        if call.problem is None and isinstance(values, dict):
            blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": values})
    return blocks


def _finish(reply: Reply) -> str:
    return "length" if reply.truncated else "tool_calls" if _openai_calls(reply) else "stop"


def _stop(reply: Reply) -> str:
    return "max_tokens" if reply.truncated else "tool_use" if reply.calls else "end_turn"


def _usage(reply: Reply) -> dict[str, int]:
    used = reply.usage
    return {
        "prompt_tokens": used.input_tokens, "completion_tokens": used.output_tokens,
        "total_tokens": used.input_tokens + used.output_tokens,
    }  # fmt: skip
