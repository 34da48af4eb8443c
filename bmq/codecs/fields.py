# SPDX-License-Identifier: Apache-2.0
"""The fields of a type that are also properties."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, itemgetter
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    NotRequired,
    Protocol,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from bmq import _checks
from bmq.conventions import PREFIX
from bmq.errors import InvalidPayload, ProtocolError, Undecodable, UsageError
from bmq.wire.constants import PropertyType
from bmq.wire.properties import Properties, PropertyInput, PropertyValue, encode_properties

__all__ = ["Field", "Property", "fields_of", "property_reader"]


@dataclass(frozen=True, slots=True)
class Property:
    """Marks a field of a type as a property of its messages, for use in subscriptions.

    ::

        @dataclass
        class Order:
            customer: Annotated[int, bmq.Property("CustomerId")]
            express: Annotated[bool, bmq.Property]
            address: str

    The field stays in the payload too. A field with the value None is an absent property. ``bmq.Property``
    alone uses the field's name.

    In the signature of a handler, the marker makes a parameter that receives the property, as in
    ``customer: Annotated[int, bmq.Property("CustomerId")]``.

    Attributes:
        name: the property's name; None for the name of the field or parameter.
        type: the property's type; None for BOOL, INT64, STRING or BINARY, according to the field's type.
    """

    name: str | None = None
    type: PropertyType | None = None

    def __post_init__(self) -> None:
        _checks.optional(_checks.text, "name", self.name)
        if self.type is not None:
            _checks.instance("type", self.type, PropertyType, "one of bmq.PropertyType")


@dataclass(frozen=True, slots=True)
class Field:
    """A field that is a property.

    Attributes:
        name: the property's name.
        kind: the Python type: bool, int, str or bytes.
        get: returns the field of a value; None if absent.
    """

    name: str
    kind: type
    get: Callable[[Any], PropertyInput | None]


def fields_of(of: Any) -> list[Field]:
    """Return the fields of a type that are properties.

    Raises:
        UsageError: a field cannot be a property.
    """
    if not _has_fields(of):
        return []
    try:
        hints = get_type_hints(of, include_extras=True)
    except NameError as error:
        raise UsageError(
            f"{of.__qualname__}: {error}; annotations must be names of the module of the class"
        ) from None
    reader: Callable[[str], Callable[[Any], Any]] = itemgetter if is_typeddict(of) else attrgetter
    fields: list[Field] = []
    for name, hint in hints.items():
        if get_origin(hint) in (Required, NotRequired):
            (hint,) = get_args(hint)
        mark = _mark(hint)
        if mark is not None:
            where = f"{of.__qualname__}.{name}"
            kind = _kind(hint, where)
            made = Field(
                mark.name or name, kind, _getter(reader(name), kind, mark.type, where, is_typeddict(of))
            )
            _check_name(made, mark.type, where)
            fields.append(made)
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        raise UsageError(f"{of.__qualname__} has two fields for the same property: {', '.join(names)}")
    return fields


def _has_fields(of: Any) -> bool:
    return inspect.isclass(of) and (
        dataclasses.is_dataclass(of)
        or is_typeddict(of)
        or hasattr(of, "__struct_fields__")
        or hasattr(of, "__pydantic_core_schema__")
    )


def _mark(hint: Any) -> Property | None:
    if get_origin(hint) is not Annotated:
        return None
    for each in get_args(hint)[1:]:
        if each is Property:
            return Property()
        if isinstance(each, Property):
            return each
    return None


def _kind(hint: Any, where: str) -> type:
    kinds = {kind for leaf in _leaves(hint) for kind in _kinds(leaf)} - {type(None)}
    if len(kinds) != 1 or not kinds <= {bool, int, str, bytes}:
        raise UsageError(
            f"{where} cannot be a property: a property must be bool, int, str, bytes, or an enumeration of "
            f"one of these, not {hint}"
        )
    kind: type = kinds.pop()
    return kind


def _kinds(leaf: Any) -> list[Any]:
    """Return the types of the values of a leaf."""
    if isinstance(leaf, partial):
        return [type(each) for each in leaf.args[0]]
    if isinstance(leaf, type) and issubclass(leaf, enum.Enum):
        return [type(member.value) for member in leaf]
    return [leaf]


def _getter(
    get: Callable[[Any], Any],
    kind: type[Any],
    wanted: PropertyType | None,
    where: str,
    may_be_missing: bool,
) -> Callable[[Any], PropertyInput | None]:
    def read(value: Any) -> PropertyInput | None:
        try:
            found = get(value)
        except KeyError:
            if may_be_missing:
                return None
            raise
        if isinstance(found, enum.Enum):
            found = found.value
        if found is None:
            return None
        if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
            raise InvalidPayload(f"{where} must be {kind.__name__}, not {type(found).__name__}")
        return found if wanted is None else PropertyValue(wanted, found)

    return read


def _check_name(field: Field, wanted: PropertyType | None, where: str) -> None:
    sample = field.kind(1) if field.kind is not bytes else b"1"
    if field.name.startswith(PREFIX):
        raise UsageError(f"{where}: names that begin with {PREFIX} are reserved")
    try:
        encode_properties({field.name: sample if wanted is None else PropertyValue(wanted, sample)}, new=True)
    except UsageError as error:
        raise UsageError(f"{where} cannot be a property: {error}") from None


_NO_DEFAULT: Any = inspect.Parameter.empty


class _HasProperties(Protocol):
    @property
    def properties(self) -> Properties: ...


def property_reader(
    hint: Any, mark: Property, where: str, default: Any = _NO_DEFAULT
) -> tuple[Field, Callable[[_HasProperties], Any]]:
    """Return the field of a parameter, and a function that reads the property of a message.

    Args:
        hint: type of the parameter.
        mark: marker with the property's name.
        where: name of the parameter for errors.
        default: value of an absent property. Without a default, an absent property is an error, or None if
            the type allows None.

    Raises:
        UsageError: the type cannot be the type of a property.
    """
    name = mark.name
    assert name is not None
    kind = _kind(hint, where)
    field = Field(name, kind, lambda value: value)
    _check_name(field, mark.type, where)
    leaves = list(_leaves(hint))
    if default is _NO_DEFAULT and any(leaf is type(None) for leaf in leaves):
        default = None
    plain = kind in leaves
    converters = [leaf for leaf in leaves if leaf is not kind and leaf is not type(None)]

    def read(message: _HasProperties) -> Any:
        try:
            found = message.properties.get(name)
        except ProtocolError as error:
            raise Undecodable(f"the message is malformed: {error}") from error
        if found is None:
            if default is _NO_DEFAULT:
                raise Undecodable(f"the message has no property {name}, a parameter of the handler")
            return default
        if type(found) is kind:
            if plain:
                return found
            for each in converters:
                try:
                    return each(found)
                except ValueError:
                    pass
        raise Undecodable(f"the property {name} is {found!r:.100}, and the handler takes {_shown(hint)}")

    return field, read


def _shown(hint: Any) -> str:
    return hint.__qualname__ if inspect.isclass(hint) else str(hint).replace("typing.", "")


def _leaves(hint: Any) -> Iterator[Any]:
    """Yield the plain types and the enumerations of a type, and a function for its literal values."""
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, NewType):
        yield from _leaves(hint.__supertype__)
    elif origin is Annotated:
        yield from _leaves(arguments[0])
    elif origin in (Union, types.UnionType):
        for each in arguments:
            yield from _leaves(each)
    elif origin is Literal:
        yield partial(_one_of, arguments)
    else:
        yield hint


def _one_of(allowed: tuple[Any, ...], found: Any) -> Any:
    if any(each == found and type(each) is type(found) for each in allowed):
        return found
    raise ValueError(found)
