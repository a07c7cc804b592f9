"""What a program asks in OpenAI's or Anthropic's words, as one of our requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from kokuban.agents.models import Call, Message, Reply, Request, ToolSpec
from kokuban.agents.models._surrogates import joined

MAX_OUTPUT_TOKENS = 16_384
DEFAULT_OUTPUT_TOKENS = 4_096


class Refusal(ValueError):
    """A request that cannot be served; the message names the field."""


def parsed(data: bytes, read: Callable[[Mapping[str, Any]], Request]) -> tuple[dict[str, Any], Request]:
    """A body as it came, and what it asks: text that is Unicode (half of a pair becomes U+FFFD), and a request that can
    stand in the journal. Raises `Refusal`."""
    try:
        said = _unicode(json.loads(data))
        if not isinstance(said, dict):
            raise Refusal("the body: a JSON object is expected")
        wanted = read(said)
        msgspec.json.encode(wanted)
    except Refusal:
        raise
    except (ValueError, RecursionError, OverflowError) as error:
        raise Refusal("the body is not JSON that can be passed on") from error
    return said, wanted


def _unicode(value: Any) -> Any:
    if isinstance(value, str):
        return joined(value)
    if isinstance(value, list):
        return [_unicode(item) for item in value]
    if isinstance(value, dict):
        return {_unicode(key): _unicode(item) for key, item in value.items()}
    return value


def of_openai(body: Mapping[str, Any]) -> Request:
    """Raises `Refusal`."""
    if body.get("n", 1) != 1:
        raise Refusal("n: only one choice is given")
    for field in ("functions", "logprobs", "audio"):
        if body.get(field):
            raise Refusal(f"{field}: this is not served here" + (", use tools" if field == "functions" else ""))
    messages = tuple(_openai_message(m) for m in _list(body, "messages"))
    tools = tuple(_tool(t.get("function", {}), "parameters") for t in _list(body, "tools", ()))
    wanted = _object(body, "response_format")
    schema = _object(_object(wanted, "json_schema"), "schema")
    limit = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    return _request(messages, tools, limit, body, schema or None)


def of_anthropic(body: Mapping[str, Any]) -> Request:
    """Raises `Refusal`."""
    system = _text(body.get("system") or "", "system")
    messages = [Message("system", system)] if system else []
    for one in _list(body, "messages"):
        messages += _anthropic_messages(one)
    tools = tuple(_tool(t, "input_schema") for t in _list(body, "tools", ()))
    return _request(tuple(messages), tools, "max_tokens", body, None)


def _request(
    messages: tuple[Message, ...], tools: tuple[ToolSpec, ...], limit: str, body: Mapping[str, Any],
    schema: dict[str, Any] | None,
) -> Request:  # fmt: skip
    if not messages:
        raise Refusal("messages: there are none")
    most, seed, heat = body.get(limit), body.get("seed"), body.get("temperature")
    if most is not None and not (_whole(most) and most > 0):
        raise Refusal(f"{limit}: a whole number above 0 is expected")
    if heat is not None and not (isinstance(heat, int | float) and not isinstance(heat, bool) and 0 <= heat <= 2):
        raise Refusal("temperature: a number from 0 to 2 is expected")
    if seed is not None and not (_whole(seed) and abs(seed) < 2**63):
        raise Refusal("seed: a whole number of 64 bits is expected")
    return Request(
        messages=messages, tools=_chosen(tools, body.get("tool_choice")), schema=schema,
        max_output_tokens=min(DEFAULT_OUTPUT_TOKENS if most is None else most, MAX_OUTPUT_TOKENS),
        temperature=float(heat or 0), seed=seed,
    )  # fmt: skip


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _object(body: Mapping[str, Any], field: str) -> dict[str, Any]:
    found = body.get(field)
    if found is not None and not isinstance(found, dict):
        raise Refusal(f"{field}: an object is expected")
    return found or {}


def until_stop(reply: Reply, body: Mapping[str, Any]) -> Reply:
    """The reply up to the first of the words that the body names as its end. Our requests carry none: what comes after
    is paid and thrown away."""
    said = body.get("stop") or body.get("stop_sequences") or ()
    words = [said] if isinstance(said, str) else said if isinstance(said, list | tuple) else []
    ends = (reply.content.find(word) for word in words if word and isinstance(word, str))
    at = min((end for end in ends if end >= 0), default=None)
    return reply if at is None else replace(reply, content=reply.content[:at], calls=(), truncated=False)


def _chosen(tools: tuple[ToolSpec, ...], choice: Any) -> tuple[ToolSpec, ...]:
    """The tools that a choice leaves. That one must be called cannot be passed on."""
    if not isinstance(choice, dict):
        return () if choice == "none" else tools
    if choice.get("type") == "none":
        return ()
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else choice.get("name")
    return tuple(t for t in tools if t.name == name) if isinstance(name, str) else tools


def _list(body: Mapping[str, Any], field: str, default: Any = None) -> list[dict[str, Any]]:
    found = body.get(field, default) or ()
    if not isinstance(found, list | tuple) or not all(isinstance(one, dict) for one in found):
        raise Refusal(f"{field}: a list of objects is expected")
    return list(found)


def _tool(said: Any, field: str) -> ToolSpec:
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        raise Refusal("tools: each needs a name")
    parameters = _object(said, field) or {"type": "object", "properties": {}}
    return ToolSpec(said["name"], str(said.get("description") or ""), parameters)


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refusal(f"{where}: text is expected")
    return "".join(_part(part, where) for part in content)


def _part(part: Any, where: str) -> str:
    if isinstance(part, dict) and part.get("type") in ("text", "input_text", "output_text"):
        text = part.get("text", "")
        if not isinstance(text, str):
            raise Refusal(f"{where}: text is expected")
        return text
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise Refusal(f"{where}: {str(kind)[:40]} cannot be sent here, only text")


def _openai_message(said: dict[str, Any]) -> Message:
    role = said.get("role")
    text = _text(said.get("content"), f"a message of {role!r}")
    if role in ("system", "developer"):
        return Message("system", text)
    if role == "user":
        return Message("user", text)
    if role == "tool":
        return Message("tool", text, call_id=str(said.get("tool_call_id") or ""))
    if role == "assistant":
        calls = tuple(
            Call(str(c.get("id") or ""), str(f.get("name") or ""), _arguments(f.get("arguments")))
            for c in _list(said, "tool_calls", ())
            if isinstance(f := c.get("function"), dict)
        )
        return Message("assistant", text, calls)
    raise Refusal(f"messages: the role {str(role)[:40]!r} is not known")


def _arguments(said: Any) -> str:
    return said if isinstance(said, str) else json.dumps(said or {}, ensure_ascii=False)


def _anthropic_messages(said: dict[str, Any]) -> Iterator[Message]:
    role, content = said.get("role"), said.get("content")
    if role not in ("user", "assistant"):
        raise Refusal(f"messages: the role {str(role)[:40]!r} is not known")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": "" if content is None else content}]
    text, calls = [], []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_result":
            yield Message("tool", _text(block.get("content"), "tool_result"), call_id=str(block.get("tool_use_id")))
        elif kind == "tool_use":
            calls.append(Call(str(block.get("id")), str(block.get("name")), _arguments(block.get("input"))))
        elif kind not in ("thinking", "redacted_thinking"):
            text.append(_part(block, f"a message of {role!r}"))
    if text or calls:
        yield Message(role, "".join(text), tuple(calls))
