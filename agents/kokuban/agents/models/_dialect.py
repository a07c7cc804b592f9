"""How one server wants chat-completion requests written, learned from what it refuses."""

import hashlib
import json
import re
from typing import Any

from ._arguments import parse_arguments
from ._extra import CALLS, own
from ._surrogates import joined
from ._types import Call, Message, Request

_STRUCTURED = ("json_schema", "json_object", "none")  # best first
_NO_STRUCTURE = re.compile(r"response_format|json_schema|json_object|structured.?output|guided", re.IGNORECASE)
_BAD_SCHEMA = re.compile(r"invalid[ _](?:json[ _])?schema", re.IGNORECASE)
_UNKNOWN_FIELD = re.compile(
    r"unsupported|(?:not|n't) (?:support|permit|allow)|unknown|unrecogni[sz]ed|unexpected|extra (?:field|input)",
    re.IGNORECASE,
)
_OPTIONAL_FIELDS = ("stream_options", "seed", "temperature")
_NO_STREAM = re.compile(r"\bstream(?:ing)?\b", re.IGNORECASE)
_REASONING = ("reasoning_content", "reasoning_details", "reasoning")
_CALL_FIELDS = ("extra_content",)
"""What servers want back beside a call that came with it, without saying so first."""
_MAX_ID_CHARS = 40
_TOOL_NAME = re.compile(r"[^A-Za-z0-9_-]")


class Dialect:
    """Writes request bodies for one server.

    `structured_output` is the best way to ask for JSON the server has not refused ("json_schema", "json_object" or
    "none"), `refusals` are the server's own words for what it did refuse.
    """

    def __init__(self, model: str, *, limit_field: str = "max_tokens") -> None:
        self.structured_output = _STRUCTURED[0]
        self.refusals: tuple[str, ...] = ()
        self._model = model
        self._limit_field = limit_field
        self._left_out: set[str] = set()
        self._returned: set[str] = set()

    def body(self, request: Request) -> dict[str, Any]:
        """The JSON body that asks this server for `request`, streamed."""
        schema = request.schema
        told = schema is not None and self.structured_output != "json_schema"
        messages = _with_schema(request.messages, schema or {}) if told else request.messages
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [self._message(message) for message in messages if not _is_empty_turn(message)],
            self._limit_field: request.max_output_tokens,
            "temperature": request.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.seed is not None:
            body["seed"] = request.seed
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
                }
                for tool in request.tools
            ]
        if schema is not None and self.structured_output == "json_schema":
            # Without "strict": where it means anything its default is false, and some servers refuse the key.
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": request.schema_name, "schema": schema},
            }
        elif schema is not None and self.structured_output == "json_object":
            body["response_format"] = {"type": "json_object"}
        return {key: value for key, value in body.items() if key not in self._left_out}

    def _message(self, message: Message) -> dict[str, Any]:
        data = _message(message)
        if message.role != "assistant" or not message.calls:
            return data
        kept = own(message, self._model)
        for name in self._returned:
            if kept.get(name) or name == _REASONING[0]:  # which is wanted of every turn, empty too
                data[name] = kept.get(name) or ""
        beside = kept.get(CALLS)
        for call, entry in zip(message.calls, data["tool_calls"], strict=True):
            fields = beside.get(call.id) if isinstance(beside, dict) else None
            if isinstance(fields, dict):
                entry |= {name: fields[name] for name in _CALL_FIELDS if name in fields}
        return data

    def learn(self, body: dict[str, Any], words: str) -> bool:
        """Take in why the server refused `body`; returns whether asking again, in a new body, makes sense.

        A refused schema (as against refused schemas) is the caller's mistake and makes no sense to ask again.
        """
        if "response_format" in body and _NO_STRUCTURE.search(words) and not _BAD_SCHEMA.search(words):
            # Two calls may be refused at once; only the first of them steps down.
            if body["response_format"]["type"] == self.structured_output:
                self.structured_output = _STRUCTURED[_STRUCTURED.index(self.structured_output) + 1]
                self.refusals += (words,)
            return True
        wanted = next((name for name in _REASONING if re.search(rf"\b{name}\b", words)), None)
        if wanted is not None and wanted not in self._returned:  # wants a turn's reasoning back beside its calls
            self._returned.add(wanted)
            return True
        if "max_tokens" in body and "max_completion_tokens" in words:
            self._limit_field = "max_completion_tokens"
            return True
        if not _UNKNOWN_FIELD.search(words):
            return False
        field = next((key for key in _OPTIONAL_FIELDS if key in body and re.search(rf"\b{key}\b", words)), None)
        if field is not None:
            self._left_out.add(field)
        elif "stream" in body and _NO_STREAM.search(words):
            self._left_out |= {"stream", "stream_options"}
        else:
            return False
        self.refusals += (words,)
        return True


def _is_empty_turn(message: Message) -> bool:
    return message.role == "assistant" and not message.calls and not message.content.strip()


def _message(message: Message) -> dict[str, Any]:
    # Content is always a string: servers are known to refuse null beside calls, and lists in tool turns.
    data: dict[str, Any] = {"role": message.role, "content": joined(message.content)}
    if message.calls:
        data["tool_calls"] = [
            {
                "id": _call_id(call.id),
                "type": "function",
                "function": {"name": _TOOL_NAME.sub("_", call.name)[:64] or "unnamed", "arguments": _arguments(call)},
            }
            for call in message.calls
        ]
    if message.role == "tool":
        data["tool_call_id"] = _call_id(message.call_id or "")
    return data


def _call_id(call: str) -> str:
    """Servers bound the length of an id; one that another provider gave may be longer."""
    call = joined(call)
    return call if len(call) <= _MAX_ID_CHARS else f"call_{hashlib.sha256(call.encode()).hexdigest()[:24]}"


def _arguments(call: Call) -> str:
    # One call with broken arguments in the history makes servers refuse every later turn.
    parsed = parse_arguments(call.arguments)
    return json.dumps(parsed, ensure_ascii=False) if isinstance(parsed, dict) else "{}"


def _with_schema(messages: tuple[Message, ...], schema: dict[str, Any]) -> tuple[Message, ...]:
    text = "Reply with one JSON object only, valid against this JSON Schema: " + json.dumps(schema, ensure_ascii=False)
    if messages and messages[0].role == "system":
        return (Message("system", f"{messages[0].content}\n\n{text}"), *messages[1:])
    return (Message("system", text), *messages)
