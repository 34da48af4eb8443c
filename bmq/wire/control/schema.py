# SPDX-License-Identifier: Apache-2.0
"""Declarations of control messages: each member once, for both encodings.

A structure is a frozen, slotted dataclass. The metadata of each attribute holds the member's element id and
kind, and whether the member may be absent. The attribute's default is the schema's default. The name in the
protocol follows from the attribute's name (``max_unconfirmed_bytes`` is ``maxUnconfirmedBytes``). The JSON
and the BER codec use no other description.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any, ClassVar, NoReturn, TypeVar, cast, dataclass_transform

from bmq.errors import UsageError

__all__ = [
    "BOOL",
    "BYTES",
    "I32",
    "I64",
    "MAX_ELEMENTS",
    "STRING",
    "U32",
    "U64",
    "ArrayKind",
    "BooleanKind",
    "BytesKind",
    "ChoiceKind",
    "EnumerationKind",
    "IntegerKind",
    "Kind",
    "Member",
    "SequenceKind",
    "StringKind",
    "Structure",
    "join_path",
    "member",
    "selection_name",
    "structure",
]

#: Largest number of elements accepted in one message: elements of arrays in JSON, of all kinds in BER. Two
#: bytes on the wire can make an element that costs microseconds and hundreds of bytes, so the length of a
#: message does not bound the work. An honest subscription has about eleven elements.
MAX_ELEMENTS = 131_072

_S = TypeVar("_S", bound="Structure")


class Structure:
    """Base of all structures: construction from keywords, value equality, hash, repr, immutability.

    These methods are written by hand, because generating them for every dataclass adds ten milliseconds to
    each import.

    Attributes:
        MEMBERS: the members in the order of the attributes; a member's index is its element id.
        NAMES: the members' names in the protocol, including the selections of a choice.
        written: by attribute, enumerators unknown to this version, as the peer wrote them; unset if all are
            known. Equality and pickling ignore this attribute.
    """

    __slots__ = ("written",)
    written: Mapping[str, str]
    NAMES: ClassVar[frozenset[str]] = frozenset()
    MEMBERS: ClassVar[tuple[Member, ...]] = ()
    __match_args__: tuple[str, ...] = ()

    def __init__(self, *args: object, **kwargs: object) -> None:
        names = self.__match_args__
        if len(args) > len(names):
            raise TypeError(f"{type(self).__name__} takes at most {len(names)} values, got {len(args)}")
        given = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name in given or name not in names:
                problem = "got twice" if name in given else "has no member"
                raise TypeError(f"{type(self).__name__} {problem} {name!r}")
            given[name] = value
        for m in self.MEMBERS:
            object.__setattr__(self, m.attribute, given.get(m.attribute, m.default))

    def enumerator(self, attribute: str) -> str:
        """Return an enumerator's name, or the peer's text for an unknown enumerator."""
        written: Mapping[str, str] = getattr(self, "written", {})
        name: str = getattr(self, attribute).name
        return f"{name}, which stands for {written[attribute]}" if attribute in written else name

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__match_args__)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        shown = (
            f"{m.attribute}={'...' if m.secret and value else repr(value)}"
            for m, value in zip(self.MEMBERS, self._values(), strict=True)
        )
        return f"{type(self).__name__}({', '.join(shown)})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot assign to {name!r}: use dataclasses.replace")

    def __delattr__(self, name: str) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot delete {name!r}")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), self._values()


class Kind:
    """The type of a member's value.

    Attributes:
        expected: the description of legal values in error messages.
        zero: the default of members without a declared default.
        plain: the Python type whose values need no conversion for JSON; None if no type qualifies.
        exact: the Python type whose values only need a conversion for JSON, no check; None if no type does.
        by_name: enumerators by name.
        low: the smallest integer allowed.
        high: the largest integer allowed.
    """

    __slots__ = ("by_name", "exact", "expected", "high", "low", "plain", "zero")

    def __init__(
        self, expected: str, zero: object, plain: type | None = None, exact: type | None = None
    ) -> None:
        self.expected = expected
        self.zero = zero
        self.plain = plain
        self.exact = exact
        self.by_name: Mapping[str, object] = {}
        self.low = self.high = 0

    def refuse(self, value: object, path: str, *, secret: bool = False) -> UsageError:
        """Return the error for a value from the caller that cannot be written."""
        got = type(value).__name__ if secret else f"{type(value).__name__} {value!r:.80}"
        return UsageError(f"{path}: expected {self.expected}, got {got}")


class IntegerKind(Kind):
    """An integer of 32 or 64 bits."""

    __slots__ = ("bits", "signed")

    def __init__(self, expected: str, bits: int, *, signed: bool) -> None:
        self.bits = bits
        self.signed = signed
        low = -(1 << (bits - 1)) if signed else 0
        high = (1 << (bits - 1 if signed else bits)) - 1
        super().__init__(f"{expected} from {low} to {high}", 0, int)
        self.low, self.high = low, high

    def check(self, value: object, path: str) -> int:
        """Return ``value`` as a plain integer, or raise :class:`UsageError`."""
        if not isinstance(value, int) or isinstance(value, bool) or not self.low <= value <= self.high:
            raise self.refuse(value, path)
        return int(value)


class BooleanKind(Kind):
    """True or false."""

    __slots__ = ()

    def check(self, value: object, path: str) -> bool:
        """Return ``value``, or raise :class:`UsageError`."""
        if not isinstance(value, bool):
            raise self.refuse(value, path)
        return value


class StringKind(Kind):
    """Text. Bytes of a peer that are not UTF-8 are kept as surrogate escapes."""

    __slots__ = ()

    def check(self, value: object, path: str) -> bytes:
        """Return ``value`` as bytes, or raise :class:`UsageError`."""
        if isinstance(value, str):
            try:
                return value.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                pass
        raise self.refuse(value, path)


class BytesKind(Kind):
    """Raw bytes (base64 in JSON). Never shown in a repr or an error, because they are credentials."""

    __slots__ = ()

    def check(self, value: object, path: str) -> bytes:
        """Return ``value`` as bytes, or raise :class:`UsageError`."""
        if not isinstance(value, bytes):
            raise self.refuse(value, path, secret=True)
        return value


class EnumerationKind(Kind):
    """An enumerator: by name in JSON, by number in BER.

    Attributes:
        unknown: substitute for enumerators of newer peers.
    """

    __slots__ = ("type", "unknown")

    def __init__(self, type: type[IntEnum]) -> None:
        self.type = type
        self.unknown = next(each for each in type if each.name in ("E_UNKNOWN", "E_UNDEFINED"))
        super().__init__("one of " + ", ".join(f"{e.name} ({e.value})" for e in type), type(0), exact=type)
        self.by_name = type.__members__

    def knows(self, value: str | int) -> bool:
        """Whether this is an enumerator's name or number."""
        if isinstance(value, str):
            return value in self.type.__members__
        return value in self.type._value2member_map_

    def check(self, value: object, path: str) -> IntEnum:
        """Return ``value`` as an enumerator, or raise :class:`UsageError`."""
        try:
            return self.type(cast("int", value))
        except ValueError:
            raise self.refuse(value, path) from None


class SequenceKind(Kind):
    """A nested structure."""

    __slots__ = ("type",)

    def __init__(self, type: type[Structure]) -> None:
        self.type = type
        super().__init__(f"{type.__name__}", type(), exact=type)

    def check(self, value: object, path: str) -> Structure:
        """Return ``value``, or raise :class:`UsageError`."""
        if not isinstance(value, self.type):
            raise self.refuse(value, path, secret=True)
        return value


class ArrayKind(Kind):
    """Any number of structures of one type."""

    __slots__ = ("element",)

    def __init__(self, type: type[Structure]) -> None:
        self.element = SequenceKind(type)
        super().__init__(f"a tuple of {type.__name__}", (), exact=tuple)

    def check(self, value: object, path: str) -> Iterator[tuple[str, Structure]]:
        """Yield each element's path and the element, or raise :class:`UsageError`."""
        if not isinstance(value, tuple | list):
            raise self.refuse(value, path)
        for index, element in enumerate(cast("tuple[object, ...]", value)):
            at = f"{path}[{index}]"
            yield at, self.element.check(element, at)


class ChoiceKind(Kind):
    """One structure out of several, named after its type with a small first letter."""

    __slots__ = ("by_id", "ids", "names", "selections")

    def __init__(self, selections: dict[int, type[Structure]]) -> None:
        self.by_id = selections
        self.selections = {selection_name(type): type for type in selections.values()}
        self.names = {type: name for name, type in self.selections.items()}
        self.ids = {type: id for id, type in selections.items()}
        super().__init__("one of " + ", ".join(self.selections), None)

    def check(self, value: object, path: str) -> Structure:
        """Return ``value``, or raise :class:`UsageError`."""
        if type(value) not in self.ids:
            raise self.refuse(value, path, secret=True)
        return cast("Structure", value)


I32 = IntegerKind("an int", 32, signed=True)
I64 = IntegerKind("a long", 64, signed=True)
U32 = IntegerKind("an unsignedInt", 32, signed=False)
U64 = IntegerKind("an unsignedLong", 64, signed=False)
BOOL = BooleanKind("a boolean", False, bool)
STRING = StringKind("a string", "", str)
BYTES = BytesKind("bytes", b"")


class Member:
    """One member of a structure.

    Attributes:
        id: element id in BER.
        attribute: name in Python.
        name: name in the protocol, and key in JSON.
        kind: type of the value.
        default: value that a reader assumes for a missing member.
        optional: whether the member may be null; a null member is omitted.
        secret: whether the value must not be shown.
    """

    __slots__ = ("attribute", "default", "id", "kind", "name", "optional", "secret")

    def __init__(self, id: int, kind: Kind, *, optional: bool, secret: bool) -> None:
        self.id = id
        self.kind = kind
        self.optional = optional
        self.secret = secret
        self.attribute = self.name = ""
        self.default: object = None


def member(
    id: int,
    kind: Kind | type[IntEnum] | type[Structure] | ChoiceKind,
    *,
    default: object = None,
    optional: bool = False,
    secret: bool = False,
) -> Any:
    """Declare a member: a dataclass field with its own description.

    Args:
        id: the element id.
        kind: a kind, or the enum or structure that the member holds.
        default: value that a reader assumes for a missing member; by default the kind's zero.
        optional: whether the member may be null, which is then the default.
        secret: whether to keep the value out of reprs and errors.
    """
    if isinstance(kind, type):
        kind = EnumerationKind(kind) if issubclass(kind, IntEnum) else SequenceKind(kind)
    if default is None and not optional:
        default = kind.zero
    description = Member(id, kind, optional=optional, secret=secret)
    return dataclasses.field(default=default, metadata={"member": description})


@dataclass_transform(frozen_default=True)
def structure(cls: type[_S]) -> type[_S]:
    """Make a class with declared members a frozen, slotted dataclass."""
    made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    found: list[Member] = []
    for field in dataclasses.fields(cast("Any", made)):
        description: Member = field.metadata["member"]
        head, *tail = field.name.split("_")
        if description.id != len(found):
            raise TypeError(f"{cls.__name__}.{field.name}: element ids count from 0 without gaps")
        description.attribute = field.name
        description.name = head + "".join(part.capitalize() for part in tail)
        description.default = field.default
        found.append(description)
    made.MEMBERS = tuple(found)
    choices = [each.kind for each in found if isinstance(each.kind, ChoiceKind)]
    names = [each.name for each in found if not isinstance(each.kind, ChoiceKind)]
    made.NAMES = frozenset([*names, *(name for choice in choices for name in choice.selections)])
    return made


def selection_name(type: type[Structure]) -> str:
    """Return the protocol's name of the selection of a choice that holds ``type``."""
    return type.__name__[0].lower() + type.__name__[1:]


def join_path(path: str, name: str) -> str:
    """Return the path of the member ``name`` of the structure at ``path``, for error messages."""
    return f"{path}.{name}" if path else name
