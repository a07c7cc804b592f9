"""How much work a schema makes: how often one place in the arguments may be looked at, references followed.

References make a small schema a very large one: thirty definitions that each name the next one twice are a billion
looks. So looks are counted before a schema is used, and again, by how deep they are, for the arguments at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else")
_BY_NAME = ("dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_MOST = 10**12
_LONGEST_CHAIN = 500


class Refused(ValueError):
    """A schema that cannot be counted; says why."""


class _Node(NamedTuple):
    """Ids of the schemas that judge the same value (`here`), and of those that judge what is inside: of `one_of_*` one
    for each member, of `each_*` all of them."""

    here: tuple[int, ...]
    one_of_members: tuple[int, ...]
    each_member: tuple[int, ...]
    one_of_items: tuple[int, ...]
    each_item: tuple[int, ...]
    factor: int


class Expansion:
    """Counts for one schema. Raises `Refused` for one that refers to itself without going into a value (there is no end
    to that), that goes through very many references, or that holds another document with an address of its own."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._ids: dict[int, int] = {}
        self._schemas: list[Any] = []
        self._anchors = _anchors(schema)
        self._id(schema)
        self._nodes: list[_Node] = []
        while len(self._nodes) < len(self._schemas):
            self._nodes.append(self._read(self._schemas[len(self._nodes)]))
        self._order = self._sorted()
        self._looks: list[list[int]] = []

    def looks(self, depth: int) -> int:
        """How often one place of arguments that are `depth` levels deep is looked at, at most."""
        while len(self._looks) <= depth:
            below = self._looks[-1] if self._looks else [0] * len(self._nodes)
            now = [0] * len(self._nodes)
            for at in self._order:
                node = self._nodes[at]
                members = _most(below, node.one_of_members) + sum(below[n] for n in node.each_member)
                items = _most(below, node.one_of_items) + sum(below[n] for n in node.each_item)
                count = 1 + node.factor * sum(now[n] for n in node.here) + max(members, items)
                now[at] = min(_MOST, count)
            if now == below:
                return now[0]  # it does not grow any more
            self._looks.append(now)
        return self._looks[depth][0]

    def _id(self, schema: Any) -> int:
        if id(schema) not in self._ids:
            self._ids[id(schema)] = len(self._schemas)
            self._schemas.append(schema)
        return self._ids[id(schema)]

    def _read(self, schema: Any) -> _Node:
        if not isinstance(schema, Mapping):
            return _Node((), (), (), (), (), 1)
        if schema is not self._root and isinstance(schema.get("$id"), str):
            raise Refused("holds a part with an address ($id) of its own")
        here = [part for name in _LISTS for part in _many(schema.get(name))]
        here += [part for name in _SINGLE for part in _one(schema.get(name))]
        here += [part for name in _BY_NAME for part in _named(schema.get(name))]
        here += [part for name in _REFERENCES if name in schema for part in self._target(schema[name])]
        ids = self._ids_of
        return _Node(
            ids(here),
            ids(_named(schema.get("properties")) + _one(schema.get("additionalProperties"))),
            ids(_named(schema.get("patternProperties")) + _one(schema.get("unevaluatedProperties"))
                + _one(schema.get("propertyNames"))),
            ids(_many(schema.get("prefixItems")) + _many(schema.get("items")) + _one(schema.get("items"))
                + _one(schema.get("additionalItems"))),
            ids(_one(schema.get("contains")) + _one(schema.get("unevaluatedItems"))),
            2 if "unevaluatedProperties" in schema or "unevaluatedItems" in schema else 1,
        )  # fmt: skip

    def _ids_of(self, schemas: list[Any]) -> tuple[int, ...]:
        return tuple(self._id(schema) for schema in schemas)

    def _target(self, reference: Any) -> list[Any]:
        if not isinstance(reference, str) or not reference.startswith("#"):
            return []
        pointer = unquote(reference[1:])
        if pointer and not pointer.startswith("/"):
            return self._anchors.get(pointer, [])
        found: Any = self._root
        for part in pointer.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and part in found:
                found = found[part]
            elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
            else:
                return []  # the compiler says so
        return [found]

    def _sorted(self) -> list[int]:
        """The nodes, each after those that judge the same value."""
        order: list[int] = []
        state = [0] * len(self._nodes)
        for start in range(len(self._nodes)):
            waiting = [(start, iter(self._nodes[start].here))] if not state[start] else []
            while waiting:
                at, rest = waiting[-1]
                state[at] = 1
                following = next(rest, None)
                if following is None:
                    state[at] = 2
                    order.append(at)
                    waiting.pop()
                elif state[following] == 1:
                    raise Refused("refers to itself without going into a value")
                elif not state[following]:
                    waiting.append((following, iter(self._nodes[following].here)))
                    if len(waiting) > _LONGEST_CHAIN:
                        raise Refused(f"goes through more than {_LONGEST_CHAIN} references to judge one value")
        return order


def _anchors(schema: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for part in _walk(schema):
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(part.get(key), str):
                found.setdefault(part[key], []).append(part)
    return found


def _walk(schema: Any) -> Iterator[Mapping[str, Any]]:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _many(value: Any) -> list[Any]:
    return [part for part in value if isinstance(part, Mapping)] if isinstance(value, list) else []


def _named(value: Any) -> list[Any]:
    return [part for part in value.values() if isinstance(part, Mapping)] if isinstance(value, Mapping) else []


def _one(value: Any) -> list[Any]:
    return [value] if isinstance(value, Mapping) else []


def _most(looks: list[int], ids: tuple[int, ...]) -> int:
    return max((looks[at] for at in ids), default=0)
