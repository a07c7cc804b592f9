"""Whether a new version of a JSON Schema accepts everything that the old one accepted.

Decided conservatively: what cannot be shown from the two schemas side by side is refused. A yes is always right; a no
names the place, and can be wrong only where two schemas say the same in different words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kokuban.schemas._user_schema import ANNOTATIONS, NAMED, compiled, subschemas

MAX_COMPARISONS = 50_000
_ALL = frozenset({"null", "boolean", "object", "array", "number", "string"})
_LOWER = ("minLength", "minItems", "minProperties", "minContains")
_UPPER = ("maxLength", "maxItems", "maxProperties", "maxContains")
_OF_TYPE = {
    "string": ("minLength", "maxLength", "pattern"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("minItems", "maxItems", "uniqueItems", "items", "prefixItems", "contains", "unevaluatedItems"),
    "object": (
        "minProperties", "maxProperties", "required", "properties", "patternProperties", "additionalProperties",
        "propertyNames", "dependentRequired", "dependentSchemas", "unevaluatedProperties",
    ),
}  # fmt: skip
_TYPE_OF = {keyword: kind for kind, keywords in _OF_TYPE.items() for keyword in keywords}
_SAME_OR_NONE = ("not", "if", "oneOf", "contains", "unevaluatedItems", "unevaluatedProperties", "dependentSchemas")
"""Keywords whose tightening cannot be told from their parts: they may be dropped or kept, not changed."""
_WITH = {"if": ("if", "then", "else"), "contains": ("contains", "minContains", "maxContains")}


def incompatible(old: bytes, new: bytes) -> tuple[str, ...]:
    """Why not everything that the schema `old` accepts is accepted by `new`: empty when all is. Both are ones that
    `problems_of_schema` passed. At most 20 reasons, each with its place."""
    comparing = _Comparing()
    try:
        found = comparing.against(_written_out(msgspec.json.decode(old)), _written_out(msgspec.json.decode(new)), "")
    except _TooMuch:
        return (f"schema: too much to compare ({MAX_COMPARISONS} steps); give the kind another name instead",)
    return tuple(found[:20])


class _TooMuch(Exception):
    """Alternatives within alternatives."""


def _written_out(root: dict[str, Any]) -> Any:
    """The schema with its references replaced by what they stand for, and without notes."""
    definitions: Mapping[str, Any] = root.get("$defs", {})

    def write(schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        plain = {k: v for k, v in schema.items() if k not in ANNOTATIONS and not k.startswith("x-")}
        inside: dict[str, Any] = {}
        for place, one in subschemas(plain):
            keyword, _, name = place.partition(".")
            if keyword in NAMED:  # of any name, '' too
                inside.setdefault(keyword, {})[name] = write(one)
            elif not name:
                inside[keyword] = write(one)
            else:
                inside.setdefault(keyword, []).append(write(one))
        plain |= inside
        if "$ref" in plain:
            target = write(definitions[plain.pop("$ref").removeprefix("#/$defs/")])
            plain["allOf"] = [*plain.get("allOf", []), target]
        return _lifted(plain)

    return write(root)


def _lifted(schema: dict[str, Any]) -> Any:
    """`allOf` with one member and nothing beside it is that member; with none, it says nothing."""
    if schema.get("allOf") == []:
        schema = {k: v for k, v in schema.items() if k != "allOf"}
    return schema["allOf"][0] if schema.keys() == {"allOf"} and len(schema["allOf"]) == 1 else schema


class _Comparing:
    """One comparison. Every method returns what is against it, with places; nothing means that it is shown."""

    def __init__(self) -> None:
        self._left = MAX_COMPARISONS

    def against(self, old: Any, new: Any, place: str) -> list[str]:
        """What is against: whatever `old` accepts, `new` accepts."""
        self._left -= 1
        if self._left < 0:
            raise _TooMuch
        if old is False or new in (True, {}) or _same(old, new):
            return []
        if new is False:
            return [f"{place or 'schema'}: it was accepted before, and nothing is accepted there now"]
        old = {} if old is True else old
        found = self._whole(old, new, place)
        if found:  # the old one is a conjunction, and one part of it may be enough
            if any(not self.against(part, new, place) for part in old.get("allOf", ())):
                return []
            for keyword in ("anyOf", "oneOf"):
                if keyword in old and not any(self.against(_with(old, keyword, b), new, place) for b in old[keyword]):
                    return []
        return found

    def _whole(self, old: dict[str, Any], new: dict[str, Any], place: str) -> list[str]:
        values = old["enum"] if "enum" in old else [old["const"]] if "const" in old else None
        if values is not None:
            return _of_values(old, new, values, place)
        found = self._types(old, new, place)
        types = _types(old)
        for keyword in new:
            if keyword in _TYPE_OF and _TYPE_OF[keyword] not in types:
                continue  # says nothing about what the old one accepts
            found += [f"{_at(place, keyword)}: {why}" for why in _of_keyword(old, new, keyword)]
        for keyword in _SAME_OR_NONE:
            of_type = _TYPE_OF.get(keyword)
            if keyword in new and (of_type is None or of_type in types):
                found += self._same_or_none(old, new, keyword, place)
        for part in new.get("allOf", ()):
            found += self.against(old, part, place)
        if "anyOf" in new and all(self.against(old, branch, place) for branch in new["anyOf"]):
            found.append(f"{_at(place, 'anyOf')}: no alternative accepts all that was accepted before")
        if "object" in types:
            found += self._objects(old, new, place)
        if "array" in types:
            found += self._arrays(old, new, place)
        return found

    def _types(self, old: dict[str, Any], new: dict[str, Any], place: str) -> list[str]:
        if "type" not in new:
            return []
        given = _listed(old["type"]) if "type" in old else _ALL
        allowed = _listed(new["type"])
        missing = sorted(t for t in given if t not in allowed and not (t == "integer" and "number" in allowed))
        if not missing:
            return []
        what = ", ".join(missing) if "type" in old else "any type"
        return [f"{_at(place, 'type')}: {what} was accepted before, now only {', '.join(sorted(allowed))}"]

    def _same_or_none(self, old: dict[str, Any], new: dict[str, Any], keyword: str, place: str) -> list[str]:
        parts = _WITH.get(keyword, (keyword,))
        if keyword.startswith("unevaluated"):  # it depends on all that stands beside it
            same = _same(old, new)
        else:
            same = all(part in old and _same(old[part], new[part]) for part in parts if part in new)
            same = same and all(part in new for part in parts if part in old)
        if keyword == "dependentSchemas" and not same:
            before, now = old.get(keyword, {}), new[keyword]
            same = all(name in before and not self.against(before[name], one, place) for name, one in now.items())
        hint = "; 'anyOf' can be widened" if keyword == "oneOf" else ""
        return [] if same else [f"{_at(place, keyword)}: it is new or changed, and may refuse what was accepted{hint}"]

    def _objects(self, old: dict[str, Any], new: dict[str, Any], place: str) -> list[str]:
        before, now = old.get("properties", {}), new.get("properties", {})
        patterns, new_patterns = old.get("patternProperties", {}), new.get("patternProperties", {})
        rest, new_rest = old.get("additionalProperties", True), new.get("additionalProperties", True)
        found: list[str] = []
        for name, schema in now.items():
            # With patterns about, a name that had no schema of its own may have had any: that of a pattern.
            given = before.get(name, rest if not patterns else True)
            where = _at(place, f"properties.{name}")
            against = self.against(given, schema, where)
            if against and name not in before:
                against = [f"{where}: any value was accepted there before ('additionalProperties' was not false)"]
            found += against
        for name, schema in before.items():
            if name not in now:
                found += self.against(schema, new_rest, _at(place, f"properties.{name}"))
        for pattern, schema in new_patterns.items():
            where = _at(place, f"patternProperties.{pattern}")
            if pattern in patterns:
                found += self.against(patterns[pattern], schema, where)
            elif schema not in (True, {}):
                found.append(f"{where}: it is new, and may refuse what was accepted")
        for pattern, schema in patterns.items():
            if pattern not in new_patterns:
                found += self.against(schema, new_rest, _at(place, f"patternProperties.{pattern}"))
        found += self.against(rest, new_rest, _at(place, "additionalProperties"))
        if "propertyNames" in new:
            found += self.against(old.get("propertyNames", True), new["propertyNames"], _at(place, "propertyNames"))
        return found

    def _arrays(self, old: dict[str, Any], new: dict[str, Any], place: str) -> list[str]:
        first, new_first = old.get("prefixItems", []), new.get("prefixItems", [])
        rest, new_rest = old.get("items", True), new.get("items", True)
        found: list[str] = []
        for i in range(max(len(first), len(new_first))):
            given = first[i] if i < len(first) else rest
            wanted = new_first[i] if i < len(new_first) else new_rest
            found += self.against(given, wanted, _at(place, f"items.{i}"))
        return found + self.against(rest, new_rest, _at(place, "items"))


def _of_keyword(old: dict[str, Any], new: dict[str, Any], keyword: str) -> list[str]:
    """What one plain assertion of the new schema refuses that the old one did not."""
    now, before = new[keyword], old.get(keyword)
    if keyword in ("enum", "const"):
        return ["any other value was accepted before"]
    if keyword == "required":
        more = [name for name in now if name not in (before or ())]
        return [f"{', '.join(more)} was not required before"] if more else []
    if keyword == "dependentRequired":
        more = [
            f"{n} with {name}" for name, names in now.items() for n in names if n not in (before or {}).get(name, ())
        ]
        return [f"{', '.join(more)} was not required before"] if more else []
    if keyword in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        return [] if _bounded(old, keyword, now) else [f"{now} is narrower than before"]
    if keyword in _LOWER and keyword != "minContains":
        return [] if now <= (before or 0) else [f"{now} is above the {before or 0} of before"]
    if keyword in _UPPER and keyword != "maxContains":
        return [] if before is not None and before <= now else [f"{now} is below the {before or 'none'} of before"]
    if keyword == "multipleOf":
        whole = isinstance(now, int) and isinstance(before, int) and before % now == 0
        integers = now == 1 and _listed(old.get("type", ())) == {"integer"}
        return [] if whole or integers or before == now else [f"{now} was not required before"]
    if keyword == "pattern":
        return [] if before == now else ["the pattern is new or another one"]
    if keyword == "uniqueItems":
        return ["items could repeat before"] if now and not before else []
    return []


def _bounded(old: dict[str, Any], keyword: str, limit: float) -> bool:
    """Whether the old schema's own bounds keep every number within this one."""
    low, strict = "inimum" in keyword, keyword.startswith("exclusive")
    names = ("minimum", "exclusiveMinimum") if low else ("maximum", "exclusiveMaximum")
    for name in names:
        if name in old:
            inside = old[name] > limit if low else old[name] < limit
            on_it = old[name] == limit and (name.startswith("exclusive") or not strict)
            if inside or on_it:
                return True
    return False


def _of_values(old: dict[str, Any], new: dict[str, Any], values: list[Any], place: str) -> list[str]:
    """A list of values can be tried out."""
    was, now = compiled(old), compiled(new)
    lost = [value for value in values if was.is_valid(value) and not now.is_valid(value)]
    if not lost:
        return []
    shown = ", ".join(msgspec.json.encode(value).decode()[:60] for value in lost[:5])
    return [f"{place or 'schema'}: {shown} was accepted before and is not now"]


def _with(old: dict[str, Any], keyword: str, branch: Any) -> Any:
    """The old schema where this branch of its alternatives holds."""
    beside = {k: v for k, v in old.items() if k != keyword}
    if branch is False or not beside:
        return branch
    return _lifted({**beside, "allOf": [*beside.get("allOf", []), branch]})


def _types(schema: dict[str, Any]) -> frozenset[str]:
    """The types that it may accept, an integer counted as the number that it is."""
    given = _listed(schema["type"]) if "type" in schema else _ALL
    return frozenset("number" if t == "integer" else t for t in given)


def _listed(types: Any) -> frozenset[str]:
    return frozenset((types,) if isinstance(types, str) else types)


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON, where true is not 1."""
    return msgspec.json.encode(one, order="deterministic") == msgspec.json.encode(other, order="deterministic")


def _at(place: str, keyword: str) -> str:
    return f"{place}.{keyword}" if place else keyword
