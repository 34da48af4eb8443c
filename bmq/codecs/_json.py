# SPDX-License-Identifier: Apache-2.0
"""JSON through orjson: dataclasses, typed dictionaries, lists, and nested values."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from datetime import date, datetime, time
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    NotRequired,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

from bmq._json import orjson
from bmq.codecs._json_schema import json_schema
from bmq.codecs._media_types import JSON
from bmq.errors import UsageError

__all__ = ["Json"]

#: Converts parsed JSON to a value.
_Load: TypeAlias = Callable[[Any], Any]


class Json:
    """JSON of dataclasses, typed dictionaries, lists, dictionaries and plain values.

    Values are checked when read: a field of another type is an error, a missing field takes its default, and
    an unknown field is ignored.

    Raises:
        UsageError: the type contains a part that JSON cannot represent.
    """

    content_type = JSON

    def __init__(self, of: Any) -> None:
        self._of = of
        self.encode = orjson.dumps
        self._load = _Loaders(of).load(of)

    def decode(self, data: bytes) -> Any:
        """Return the value of a JSON text."""
        try:
            return self._load(orjson.loads(data))
        except _WrongError as error:
            raise ValueError(str(error)) from None

    def json_schema(self) -> dict[str, Any]:
        """Return the schema of the values."""
        return json_schema(self._of)


class _WrongError(Exception):
    """A value of the wrong type, with the path to the value."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path: list[str] = []

    def __str__(self) -> str:
        path = "".join(reversed(self.path)).lstrip(".")
        return f"{path}: {self.what}" if path else self.what


def _wrong(expected: str, found: Any) -> _WrongError:
    kind = "null" if found is None else _JSON_NAMES[found.__class__]
    return _WrongError(f"expected {expected}, got {kind}")


_JSON_NAMES: dict[Any, str] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
}


class _Loaders:
    """Creates the function that checks and builds the values of one type."""

    def __init__(self, of: Any) -> None:
        self._of = of
        # A type may be recursive: look up unfinished functions only at the time of the call.
        self._made: dict[Any, _Load] = {}

    def load(self, of: Any) -> _Load:
        """Return the function for a type.

        Raises:
            UsageError: no JSON value can become a value of the type.
        """
        if isinstance(of, NewType):
            return self.load(of.__supertype__)
        if of in _PLAIN:
            return _PLAIN[of]
        origin, arguments = get_origin(of), get_args(of)
        if origin is Annotated:
            return self.load(arguments[0])
        if origin is Literal:
            return _one_of(arguments)
        if origin in (Union, types.UnionType):
            return _any_of(str(of), [self.load(each) for each in arguments])
        if origin in (list, Sequence) or of is list:
            return _array(self.load(arguments[0]) if arguments else _anything)
        if origin is tuple:
            if len(arguments) == 2 and arguments[1] is ...:
                items = _array(self.load(arguments[0]))
                return lambda found: tuple(items(found))
            return _row([self.load(each) for each in arguments])
        if origin in (dict, Mapping) or of is dict:
            if arguments and arguments[0] is not str:
                raise UsageError(f"the keys of JSON objects must be strings: {of} in {self._of!r}")
            return _object(self.load(arguments[1]) if arguments else _anything)
        if inspect.isclass(of):
            if issubclass(of, enum.Enum):
                return _member(of)
            if dataclasses.is_dataclass(of) or is_typeddict(of):
                return self._record(of)
        raise UsageError(
            f"JSON cannot restore {of!r}, in {self._of!r}. Possible types are dataclasses, typed "
            "dictionaries, lists, tuples, dictionaries, enumerations, dates, UUID and plain values. "
            "Otherwise use a struct of msgspec, a model of pydantic, or a codec of your own "
            "(bmq.codecs.register)"
        )

    def _record(self, of: Any) -> _Load:
        if of in self._made:
            return lambda found: self._made[of](found)
        self._made[of] = _anything
        try:
            hints = get_type_hints(of)
        except NameError as error:
            raise UsageError(
                f"{of.__qualname__}: {error}; annotations must be names of the module of the class"
            ) from None
        fields: list[tuple[str, _Load]]
        required: frozenset[str]
        if is_typeddict(of):
            fields = [(name, self.load(hint)) for name, hint in hints.items()]
            # __required_keys__ alone is not enough: the set counts annotations given as text as required.
            asked = get_type_hints(of, include_extras=True)
            required = of.__required_keys__ - {
                name for name, hint in asked.items() if get_origin(hint) is NotRequired
            }
            make: Callable[..., Any] = dict
        else:
            fields, needed = [], set[str]()
            for field in dataclasses.fields(of):
                if field.name.startswith("_"):
                    raise UsageError(
                        f"{of.__qualname__}.{field.name}: JSON omits names that begin with an underscore"
                    )
                if field.init:
                    fields.append((field.name, self.load(hints[field.name])))
                    if field.default is MISSING and field.default_factory is MISSING:
                        needed.add(field.name)
            required, make = frozenset(needed), of
        load = self._made[of] = _fields(of.__qualname__, make, fields, required)
        return load


def _anything(found: Any) -> Any:
    return found


def _exactly(kind: type, name: str) -> _Load:
    def load(found: Any) -> Any:
        if found.__class__ is not kind:
            raise _wrong(name, found)
        return found

    return load


def _number(found: Any) -> Any:
    if found.__class__ is float:
        return found
    if found.__class__ is int:
        return float(found)
    raise _wrong("a number", found)


def _text(name: str, make: Callable[[str], Any]) -> _Load:
    def load(found: Any) -> Any:
        if found.__class__ is not str:
            raise _wrong(name, found)
        try:
            return make(found)
        except ValueError:
            raise _WrongError(f"expected {name}, got {found[:40]!r}") from None

    return load


_PLAIN: dict[Any, _Load] = {
    Any: _anything,
    object: _anything,
    None: _exactly(type(None), "null"),
    type(None): _exactly(type(None), "null"),
    bool: _exactly(bool, "a boolean"),
    int: _exactly(int, "an integer"),
    float: _number,
    str: _exactly(str, "a string"),
    datetime: _text("a time stamp (RFC 3339)", datetime.fromisoformat),
    date: _text("a date", date.fromisoformat),
    time: _text("a time of day", time.fromisoformat),
    UUID: _text("a UUID", UUID),
}


def _one_of(choices: tuple[Any, ...]) -> _Load:
    def load(found: Any) -> Any:
        for choice in choices:
            if found == choice and found.__class__ is choice.__class__:
                return choice
        raise _WrongError(f"expected one of {', '.join(map(repr, choices))}, got {found!r}")

    return load


def _member(of: type[enum.Enum]) -> _Load:
    def load(found: Any) -> Any:
        try:
            return of(found)
        except ValueError:
            raise _WrongError(f"{found!r} is not a value of {of.__qualname__}") from None

    return load


def _any_of(name: str, loads: list[_Load]) -> _Load:
    def load(found: Any) -> Any:
        failures: list[_WrongError] = []
        for each in loads:
            try:
                return each(found)
            except _WrongError as error:
                failures.append(error)
        # Report the alternative with the longest path: most likely the intended type.
        raise max(failures, key=lambda error: len(error.path))

    return load


def _array(item: _Load) -> _Load:
    def load(found: Any) -> Any:
        if found.__class__ is not list:
            raise _wrong("an array", found)
        if item is _anything:
            return found
        values: list[Any] = []
        items: list[Any] = found
        for index, each in enumerate(items):
            try:
                values.append(item(each))
            except _WrongError as error:
                error.path.append(f"[{index}]")
                raise
        return values

    return load


def _row(items: list[_Load]) -> _Load:
    def load(found: Any) -> Any:
        if found.__class__ is not list or len(found) != len(items):
            raise _wrong(f"an array of {len(items)}", found)
        return tuple(item(each) for item, each in zip(items, found, strict=True))

    return load


def _object(item: _Load) -> _Load:
    def load(found: Any) -> Any:
        if found.__class__ is not dict:
            raise _wrong("an object", found)
        if item is _anything:
            return found
        values: dict[str, Any] = {}
        for name, each in found.items():
            try:
                values[name] = item(each)
            except _WrongError as error:
                error.path.append(f".{name}")
                raise
        return values

    return load


def _fields(
    kind: str, make: Callable[..., Any], fields: list[tuple[str, _Load]], required: frozenset[str]
) -> _Load:
    def load(found: Any) -> Any:
        if found.__class__ is not dict:
            raise _wrong(f"an object ({kind})", found)
        values: dict[str, Any] = {}
        for name, each in fields:
            if name in found:
                try:
                    values[name] = each(found[name])
                except _WrongError as error:
                    error.path.append(f".{name}")
                    raise
        if not required <= values.keys():
            missing = ", ".join(sorted(required - values.keys()))
            raise _WrongError(f"{kind} has no {missing}")
        try:
            return make(**values)
        except (ValueError, TypeError) as error:  # The type's own checks.
            raise _WrongError(f"{kind}: {error}") from None

    return cast("_Load", load)
