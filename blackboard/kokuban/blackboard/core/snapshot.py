"""A board as bytes, and back. The bytes are JSON in a form that is worked out from the state's own classes; `shapes()`
tells the forms of two releases apart. A snapshot only saves reading: whoever loads one checks it against the log."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from kokuban.blackboard.core.state import Board, Task
from kokuban.schemas import digest, encode

_DERIVED = frozenset({"running", "under_way"})
"""Fields of a board that follow from its tasks (and share their steps)."""


class BadSnapshot(ValueError):
    """Bytes that are no board of this release's form."""


def dump(board: Board) -> bytes:
    """The whole board. The same board gives the same bytes."""
    return encode(_form(Board).to_wire(board))


def load(data: bytes) -> Board:
    """The board again. Raises `BadSnapshot`."""
    form = _form(Board)
    try:
        board = form.from_wire(msgspec.json.decode(data, type=form.wire))
    except (msgspec.DecodeError, RecursionError, ValueError, TypeError) as error:
        raise BadSnapshot(f"no board of this form: {error}") from error
    assert isinstance(board, Board)
    for task in board.tasks.values():
        for step in task.steps.values():
            if step.running:
                board.under_way[(task.id, step.id)] = step
                board.running[step.role] += 1
    return board


@functools.cache
def shapes() -> str:
    """A digest of the form: another one is another release's."""
    return digest(encode(msgspec.json.schema(_form(Board).wire)))


def differences(ours: Board, theirs: Board) -> list[str]:
    """What two folds of one log do not agree on, of what a decision rests on: empty when they agree. Of tasks that are
    over only the end counts, and one that either has forgotten is left out."""
    found = [
        field
        for field in ("epochs", "limits", "intake", "kinds", "roles")
        if getattr(ours, field) != getattr(theirs, field)
    ]
    for name in sorted(ours.tasks.keys() | theirs.tasks.keys()):
        one, other = ours.tasks.get(name), theirs.tasks.get(name)
        if one is None or other is None:
            if any(task is not None and task.final is None for task in (one, other)):
                found.append(f"task {name} is there in one only")
        elif (one.final is None or other.final is None) and _links(one) != _links(other):
            found.append(f"task {name} is not the same")
        elif one.final and other.final and (one.final.state, one.final_seq) != (other.final.state, other.final_seq):
            found.append(f"task {name} has another end")
    return found


def _links(task: Task) -> Task:
    """The task without what depends on whether finished tasks around it are archived."""
    return dataclasses.replace(task, children=[], dependents=[])


class _Form(NamedTuple):
    """How a type travels: `wire` is what JSON is read as. `plain` says that nothing has to be turned."""

    wire: Any
    to_wire: Callable[[Any], Any]
    from_wire: Callable[[Any], Any]
    plain: bool


def _same(value: Any) -> Any:
    return value


@functools.cache
def _form(kind: Any) -> _Form:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _of_class(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is dict:
        return _of_dict(*arguments)
    if origin is tuple:
        return _of_tuple(kind, arguments)
    return _plain(kind)  # unions and lists too: those of a board hold only what is plain


def _plain(kind: Any) -> _Form:
    return _Form(kind, _same, _same, True)


def _of_class(kind: type) -> _Form:
    hints = typing.get_type_hints(kind)
    fields = [(f.name, _form(hints[f.name])) for f in dataclasses.fields(kind) if f.name not in _DERIVED]
    wire = msgspec.defstruct(f"{kind.__name__}Form", [(name, form.wire) for name, form in fields], array_like=True)
    out = [(name, form.to_wire, form.plain) for name, form in fields]
    back = [(name, form.from_wire, form.plain) for name, form in fields]

    def to_wire(value: Any) -> Any:
        return wire(*[getattr(value, name) if plain else turn(getattr(value, name)) for name, turn, plain in out])

    def from_wire(value: Any) -> Any:
        given = {name: getattr(value, name) if plain else turn(getattr(value, name)) for name, turn, plain in back}
        return kind(**given)

    return _Form(wire, to_wire, from_wire, False)


def _of_dict(key: Any, value: Any) -> _Form:
    inner = _form(value)
    if key in (str, int):
        if inner.plain:
            return _plain(dict[key, value])
        return _Form(
            dict[key, inner.wire],  # type: ignore[name-defined]
            lambda whole: {k: inner.to_wire(v) for k, v in whole.items()},
            lambda whole: {k: inner.from_wire(v) for k, v in whole.items()},
            False,
        )
    return _Form(  # JSON has no such keys
        list[tuple[key, inner.wire]],  # type: ignore[name-defined]
        lambda whole: [(k, inner.to_wire(v)) for k, v in whole.items()],
        lambda whole: {k: inner.from_wire(v) for k, v in whole},
        False,
    )


def _of_tuple(kind: Any, arguments: tuple[Any, ...]) -> _Form:
    forms = [_form(argument) for argument in arguments if argument is not Ellipsis]
    if all(form.plain for form in forms):
        return _plain(kind)
    if arguments[-1] is Ellipsis:
        (inner,) = forms
        return _Form(tuple[inner.wire, ...], _each(tuple, inner.to_wire), _each(tuple, inner.from_wire), False)  # type: ignore[name-defined]
    return _Form(
        tuple[tuple(form.wire for form in forms)],  # type: ignore[misc]
        lambda whole: tuple(form.to_wire(part) for form, part in zip(forms, whole, strict=True)),
        lambda whole: tuple(form.from_wire(part) for form, part in zip(forms, whole, strict=True)),
        False,
    )


def _each(container: Callable[[Any], Any], turn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda whole: container([turn(part) for part in whole])
