# SPDX-License-Identifier: Apache-2.0
"""Message properties: typed name/value pairs in front of the payload, in both encodings.

The *old* encoding stores the length of each value, the *new* one (MESSAGE_PROPERTIES_EX) the offset of each
name; all other bytes are equal. Values are ``bool`` (BOOL), ``int`` (INT64), ``str`` (STRING, UTF-8) and
``bytes`` (BINARY); :class:`PropertyValue` selects any other type.
"""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from struct import Struct, error
from typing import Any, NamedTuple, SupportsIndex, cast

from bmq import _checks
from bmq._caches import CACHES, Cache
from bmq.errors import ExpressionWarning, InvalidProperty, ProtocolError, UsageError
from bmq.wire.codec import PROPERTIES_HEADER, PROPERTY_HEADER
from bmq.wire.constants import (
    MAX_PROPERTIES,
    MAX_PROPERTIES_AREA,
    MAX_PROPERTY_NAME,
    MAX_PROPERTY_VALUE,
    PropertyType,
)
from bmq.wire.padding import padding, unpadded_length
from bmq.wire.property_schema import AREA, EMPTY, PROPERTY_WORDS, Encoder, Layouts, alike, make_encoder

#: A property's value as read.
PlainValue = bool | int | str | bytes


class PropertyValue(NamedTuple):
    """A property value with an explicit type, for types that the Python type does not determine.

    >>> PropertyValue(PropertyType.SHORT, 7)
    PropertyValue(type=<PropertyType.SHORT: 3>, value=7)

    Attributes:
        type: the property type of the protocol.
        value: the value, within the range of the type.
    """

    type: PropertyType
    value: PlainValue


#: A property's value as accepted when posting.
PropertyInput = PlainValue | bytearray | memoryview | PropertyValue


def typed_value(kind: str, text: str) -> PropertyValue:
    """Return a value of a type from its text; bytes are hexadecimal digits.

    Raises:
        ValueError: the type is unknown, or the text is not one of its values.
    """
    if kind.upper() not in PropertyType.__members__:
        known = ", ".join(PropertyType.__members__).lower()
        raise ValueError(f"unknown type {kind!r}; use one of: {known}")
    wanted = PropertyType[kind.upper()]
    form, read = _FORMS.get(wanted, ("a whole number", int))
    try:
        return PropertyValue(wanted, read(text))
    except (KeyError, ValueError) as error:
        raise ValueError(f"{text!r} is not a value of type {kind}; the form is {form}") from error


_FORMS: dict[PropertyType, tuple[str, Callable[[str], PlainValue]]] = {
    PropertyType.BOOL: ("true or false", lambda text: {"true": True, "false": False}[text.strip().lower()]),
    PropertyType.CHAR: ("two hexadecimal digits", bytes.fromhex),
    PropertyType.STRING: ("a text", str),
    PropertyType.BINARY: ("hexadecimal digits", bytes.fromhex),
}

_INT_SIZES = {PropertyType.SHORT: 2, PropertyType.INT32: 4, PropertyType.INT64: 8}
_FIXED_SIZES = {PropertyType.BOOL: 1, PropertyType.CHAR: 1, **_INT_SIZES}
_TYPES: dict[int, PropertyType] = {int(t): t for t in PropertyType}
_KINDS: tuple[tuple[type | tuple[type, ...], PropertyType], ...] = (
    (bool, PropertyType.BOOL),
    (int, PropertyType.INT64),
    (str, PropertyType.STRING),
    ((bytes, bytearray, memoryview), PropertyType.BINARY),
)
_TRUE, _FALSE = b"\1", b"\0"

_TYPE_SHIFT = PROPERTY_WORDS.shift("type")
_TYPE_MASK = PROPERTY_WORDS.mask("type")
_VALUE_MASK = PROPERTY_WORDS.mask("valueField")
_NAME_MASK = PROPERTY_WORDS.mask("nameLength")
# Functions that pack all property headers of an area, by the number of properties.
_packers: Cache[int, Callable[..., bytes]] = Cache("packers of property headers", 256)

AREA_HEADER = PROPERTIES_HEADER.size
_WITH_LENGTH = PROPERTIES_HEADER.words("areaWords+reserved2")
_unpack_words = _WITH_LENGTH.unpack_from
_WORDS_SHIFT = _WITH_LENGTH.shift("areaWords")

# The first byte of an area whose headers have the sizes declared here.
_STANDARD_SIZES = AREA.pack(EMPTY, 0, 0)[0]

# Schemas repeat from message to message, so their encoders are cached.
_encoders: Cache[tuple[Any, ...], Encoder | None] = Cache("encoders of properties", 512)
_ENCODER_PROPERTIES = 32

#: Errors of an encoder whose schema does not match, or of an illegal value.
NOT_OF_THE_SCHEMA = (ValueError, KeyError, error)

# The new encoding, without a schema id.
_NO_SCHEMA = 1
_raw_name = itemgetter(0)

# Names that subscription expressions can read.
_READABLE = re.compile(r"[a-zA-Z][a-zA-Z0-9_.]*")

# Names repeat from message to message: a cache of legal names with their bytes.
_names: Cache[str, bytes] = Cache("names of properties", 4096)


def _utf8(name: str, text: str) -> bytes:
    try:
        return str.encode(text, "utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidProperty(
            f"property {name[:40]!r}: the character {text[error.start]!r} at {error.start} is half of a "
            "surrogate pair, which UTF-8 cannot encode; use bytes for binary data"
        ) from None


def _name_bytes(name: str) -> bytes:
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidProperty(f"a property name must be a str, not {type(name).__name__}")
    raw = _utf8(name, name)
    if not 1 <= len(raw) <= MAX_PROPERTY_NAME:
        raise InvalidProperty(
            f"property name {name[:40]!r} has {len(raw)} bytes; 1 to {MAX_PROPERTY_NAME} are allowed"
        )
    if not (name[0].isascii() and name[0].isalnum()):
        raise InvalidProperty(f"property name {name!r} must start with an ASCII letter or digit")
    if not _READABLE.fullmatch(name):
        warnings.warn(
            f"no subscription expression can read the property {name!r}: a readable name has ASCII letters, "
            "digits, '_' and '.', and begins with a letter",
            ExpressionWarning,
            stacklevel=2,
        )
    return _names.keep(name, raw)


def _plain(value: object) -> object:
    """Return the Python value of a NumPy boolean or integer, and any other value unchanged."""
    if type(value).__module__ != "numpy" or isinstance(value, int | float | str | bytes):
        return value
    try:
        return _checks.boolean("", value)
    except UsageError:
        pass
    try:
        return operator.index(cast("SupportsIndex", value))
    except TypeError:
        return value


def _integer(name: str, kind: PropertyType, value: object, size: int) -> bytes:
    if not isinstance(value, int):
        raise InvalidProperty(f"property {name!r}: {kind.name} needs an int, not {type(value).__name__}")
    try:
        return int.to_bytes(value, size, "big", signed=True)
    except OverflowError:
        raise InvalidProperty(
            f"property {name!r}: {_checks.shown(value)} does not fit {kind.name} ({size * 8} bits)"
        ) from None


def _typed_value(name: str, kind: PropertyType, value: Any) -> bytes:
    value = _plain(value)
    if kind in _INT_SIZES:
        return _integer(name, kind, value, _INT_SIZES[kind])
    if kind is PropertyType.BOOL and isinstance(value, bool):
        return _TRUE if value else _FALSE
    if kind is PropertyType.STRING and isinstance(value, str):
        return _utf8(name, value)
    if kind is PropertyType.BINARY and isinstance(value, bytes | bytearray | memoryview):
        return bytes(cast("bytes", value))
    if kind is PropertyType.CHAR:
        if isinstance(value, bytes) and len(value) == 1:
            return value
        raise InvalidProperty(
            f"property {name!r}: CHAR needs one byte (such as b'A'), not {_checks.shown(value)}"
        )
    raise InvalidProperty(f"property {name!r}: {kind.name} does not accept {type(value).__name__}")


def _encode_value(name: str, value: Any) -> tuple[int, bytes]:
    """Return the wire type and the bytes of a value of any supported kind."""
    value = _plain(value)
    if isinstance(value, PropertyValue):
        given: Any = value.type
        kind = _TYPES.get(given) if isinstance(given, int) else None
        if kind is None:
            raise InvalidProperty(
                f"property {name!r}: {_checks.shown(value.type)} is not a property type; the types are "
                f"{', '.join(PropertyType.__members__)}"
            )
        return kind, _typed_value(name, kind, value.value)
    for python, kind in _KINDS:
        if isinstance(value, python):
            return kind, _typed_value(name, kind, value)
    raise InvalidProperty(
        f"property {name!r}: a value must be bool, int, str, bytes or bmq.PropertyValue, not "
        f"{type(value).__name__}"
    )


def encode_properties(properties: Mapping[str, PropertyInput], *, new: bool) -> bytes:
    """Return the properties area, padding included; ``b""`` if there are no properties.

    Args:
        properties: values by name. The old encoding keeps their order. The new encoding sorts the names by
            their bytes, because a broker that knows a schema finds a property by the rank of its name.
        new: whether to write the new encoding (the broker advertises MPS:MESSAGE_PROPERTIES_EX).

    Raises:
        InvalidProperty: a name, type, value or the number of properties is not legal.
    """
    if properties.__class__ is dict:
        key = (new, *properties, *map(type, properties.values()))
        encoder = _encoders.get(key)
        if encoder is not None:
            try:
                area = encoder(properties, b"")
                if area is not None:
                    return area
            except NOT_OF_THE_SCHEMA:
                pass  # The slower code below raises a precise error.
        elif key not in _encoders:
            _learn_encoder(key, properties, new=new)
    return _encode(properties, new=new)


def _learn_encoder(key: tuple[Any, ...], properties: Mapping[str, PropertyInput], *, new: bool) -> None:
    if not 0 < len(properties) <= _ENCODER_PROPERTIES:
        return
    names = [_names.get(name) or _name_bytes(name) for name in properties]
    types = [type(value) for value in properties.values()]
    _encoders.keep(key, make_encoder(list(properties), names, types, new=new))


def _encode(properties: Mapping[str, PropertyInput], *, new: bool) -> bytes:
    if not isinstance(properties, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidProperty(
            f"properties must be a mapping of names to values, not {type(properties).__name__}"
        )
    count = len(properties)
    if not count:
        return b""
    if isinstance(properties, Properties):
        properties = properties.typed()
    if count > MAX_PROPERTIES:
        raise InvalidProperty(f"{count} properties; a message has at most {MAX_PROPERTIES}")
    names = _names
    heads: list[int] = []
    parts: list[bytes] = []
    offset = 0
    items = [(names.get(name) or _name_bytes(name), name, value) for name, value in properties.items()]
    if new:
        items.sort(key=_raw_name)
    for raw_name, name, value in items:
        if type(value) is int:
            number = int(PropertyType.INT64)
            raw = _integer(name, PropertyType.INT64, value, 8)
        else:
            number, raw = _encode_value(name, value)
        size = len(raw)
        if size > MAX_PROPERTY_VALUE:
            raise InvalidProperty(
                f"property {name!r} has {size} bytes; at most {MAX_PROPERTY_VALUE} are allowed"
            )
        name_size = len(raw_name)
        heads.append(number << _TYPE_SHIFT | (offset if new else size))
        heads.append(name_size)
        offset += name_size + size
        if offset > MAX_PROPERTIES_AREA:
            raise InvalidProperty(f"the properties exceed {MAX_PROPERTIES_AREA} bytes at {name!r}")
        parts.append(raw_name)
        parts.append(raw)
    length = PROPERTIES_HEADER.size + PROPERTY_HEADER.size * count + offset
    if length > MAX_PROPERTIES_AREA:
        raise InvalidProperty(
            f"the properties take {length} bytes; at most {MAX_PROPERTIES_AREA} are allowed"
        )
    parts.append(padding(length))
    pack = _packers.get(count)
    if pack is None:
        pack = _packers.keep(count, Struct(f">{PROPERTY_WORDS.format[1:] * count}").pack)
    return AREA.pack(EMPTY + (length >> 2) + 1, 0, count) + pack(*heads) + b"".join(parts)


def _no_encoder(_: Mapping[str, Any], _payload: bytes) -> bytes | None:
    return None


class SchemaIds:
    """Numbers the sequences of property names that a session posts, so that brokers recognise them.

    A broker that knows a schema id finds one property of a message without reading the others. An id is never
    reused for other names: messages with the old names may still wait in a queue. When all ids are taken,
    other sequences are posted without an id.

    On the wire a schema id is shifted by one bit; the lowest bit marks the message that introduces the id.

    Attributes:
        usual: the encoder for the latest names and types, and their schema id.
    """

    __slots__ = ("_by_names", "_known", "usual")

    #: Number of ids for a session: all producers of a queue share the broker's 32,767 numbers.
    LIMIT = 1000

    def __init__(self) -> None:
        self._by_names: dict[tuple[str, ...], int] = {}
        # The encoder and the id by names and types.
        self._known: dict[tuple[Any, ...], tuple[Encoder, int]] = {}
        self.usual: tuple[Encoder, int] = _no_encoder, 0

    def encode(self, properties: Mapping[str, PropertyInput], payload: bytes = b"") -> tuple[bytes, int]:
        """Return the area in the new encoding followed by the payload, and the schema id of the PUT message.

        Raises:
            InvalidProperty: a name, type, value or the number of properties is not legal.
        """
        if properties.__class__ is dict:
            try:
                encoder, schema_id = self.usual
                data = encoder(properties, payload)
                if data is not None:
                    return data, schema_id
            except NOT_OF_THE_SCHEMA:
                pass  # The schema differs, or a value is out of range.
            return self._encode_another(properties, payload)
        area = encode_properties(properties, new=True)
        return area + payload, self.number(properties) if area else 0

    def _encode_another(self, properties: Mapping[str, PropertyInput], payload: bytes) -> tuple[bytes, int]:
        """Encode properties whose schema differs from the previous message's; see :meth:`encode`."""
        key = (True, *properties, *map(type, properties.values()))
        known = self._known.get(key)
        if known is not None:
            try:
                data = known[0](properties, payload)
                if data is not None:
                    self.usual = known
                    return data, known[1]
            except NOT_OF_THE_SCHEMA:
                pass  # The slower code below raises a precise error.
        area = encode_properties(properties, new=True)
        schema_id = self.number(properties)
        made = _encoders.get(key)
        if made is not None and len(self._known) < _encoders.size:
            self._known[key] = made, schema_id & ~1 or schema_id
        return area + payload, schema_id

    def number(self, properties: Iterable[str]) -> int:
        """Return the schema id, in its wire form, of a message whose properties have these names."""
        names = tuple(sorted(properties))
        number = self._by_names.get(names)
        if number is not None:
            return number << 1
        if len(self._by_names) >= self.LIMIT:
            return _NO_SCHEMA
        number = self._by_names[names] = len(self._by_names) + 1
        return number << 1 | 1


def properties_length(data: bytes, start: int = 0, limit: int = 0) -> int:
    """Return the size in bytes of the properties area at ``start``, padding included.

    Args:
        data: bytes with the area, or at least its header.
        start: offset of the area.
        limit: largest size in bytes of an area that is only partly present; 0 if the whole area is present.

    Raises:
        ProtocolError: the header is cut short, or claims more bytes than allowed.
    """
    available = len(data) - start
    if available < AREA_HEADER:
        raise ProtocolError(
            f"{available} bytes are too few for a header of {AREA_HEADER}",
            field="MessagePropertiesHeader",
            offset=start,
        )
    words: int = _unpack_words(data, start)[0]
    length = (words >> _WORDS_SHIFT) * 4
    if not AREA_HEADER < length <= (limit or available):
        raise ProtocolError(
            f"claims {length} bytes, {available} are present",
            field="MessagePropertiesHeader.areaWords",
            offset=start + PROPERTIES_HEADER.offset_of("areaWords"),
        )
    return length


def split_properties(data: bytes, new: bool) -> tuple[Properties, int]:
    """Return the properties at the start of application data, and their size in bytes.

    Args:
        data: the properties area and the bytes after it.
        new: whether the area is in the new encoding.

    Raises:
        ProtocolError: the header is cut short or claims more bytes than there are.
    """
    properties = first_properties(data, new)
    return properties, properties.length


def first_properties(data: bytes, new: bool) -> Properties:
    """Return the properties at the start of application data, with all values decoded if that is cheap.

    Args:
        data: the properties area and the bytes after it.
        new: whether the area is in the new encoding.

    Raises:
        ProtocolError: the header is cut short or claims more bytes than there are.
    """
    layouts = LAYOUTS[new]
    properties: Properties | None = layouts.usual.properties(data)
    if properties is not None:
        return properties
    found = layouts.read(data)
    if found is None:
        return Properties(data, new, properties_length(data))
    length, values, plain = found
    properties = Properties(data, new, length, values)
    properties.plain = plain
    return properties


def plain_values(data: bytes, new: bool) -> dict[str, Any] | None:
    """Return all values of the properties at the start of application data, if one call can decode them.

    Args:
        data: the properties area and the bytes after it.
        new: whether the area is in the new encoding.

    Returns:
        The values by name, all of them bool, int or str; None if one call cannot decode them.
    """
    layouts = LAYOUTS[1 if new else 0]
    values = layouts.usual.values(data)
    if values is None:
        found = layouts.read(data)
        if found is not None:
            values = found[2]
    return values


def property_column(data: Sequence[bytes], new: bool, name: str) -> list[PlainValue | None]:
    """Return one property of many messages, in a few passes over all messages if they share one schema.

    Args:
        data: application data that begins with an area.
        new: whether all areas are in the new encoding.
        name: the property's name.

    Raises:
        ProtocolError: an area is malformed.
    """
    layouts = LAYOUTS[new]
    found = layouts.column(data, name) if data else []
    if found is not None:
        return found
    values: list[PlainValue | None] = [None] * len(data)
    for places in alike(data):
        some = [data[place] for place in places]
        found = layouts.column(some, name)
        if found is None:
            found = [first_properties(each, new).get(name) for each in some]
        for place, value in zip(places, found, strict=True):
            values[place] = value
    return values


class Properties(Mapping[str, PlainValue]):
    """The properties of a message, decoded on first access.

    A read-only mapping of names to values; ``types`` has the types. BOOL reads as ``bool``, SHORT, INT32
    and INT64 as ``int``, STRING as ``str``, CHAR and BINARY as ``bytes``.

    ::

        customer = message.properties.get("CustomerId")
        kind = message.properties.types["CustomerId"]

    Args:
        area: the properties area (more bytes may follow).
        new: whether the area is in the new encoding.
        length: the result of :func:`properties_length` for this area, if available.

    Attributes:
        length: size of the area in bytes, padding included; 0 until known.
        plain: all values by name if they were decoded at once and are only bool, int and str (no CHAR, no
            BINARY); otherwise None. Must not be changed.

    Raises:
        ProtocolError: on first access, if the area is malformed.
    """

    __slots__ = ("_area", "_index", "_new", "_values", "length", "plain")

    def __init__(
        self, area: bytes = b"", new: bool = True, length: int = 0, values: dict[str, Any] | None = None
    ) -> None:
        self._area = area
        self._new = new
        self.length = length
        # The positions of values once the area is indexed; or the values
        # themselves.
        self._index: dict[str, tuple[int, int, int]] | None = None if area else {}
        self._values = values
        self.plain: Mapping[str, Any] | None = None if area else {}

    def _entries(self) -> dict[str, tuple[int, int, int]]:
        index = self._index
        if index is None:
            area = self._area
            total = self.length or properties_length(area)
            pad = area[total - 1]
            if not 1 <= pad <= 4 or pad > total:
                unpadded_length(area, 0, total, field="message properties padding")
            end = total - pad
            index = _parse(area, end, self._new)
            if area[0] == _STANDARD_SIZES:
                LAYOUTS[self._new].prepare(area, end, index)
            self.length, self._index = total, index
        return index

    def __getitem__(self, name: str) -> PlainValue:
        values = self._values
        if values is not None:
            value: PlainValue = values[name]
            return value
        index = self._index
        if index is None:
            index = self._entries()
        kind, start, stop = index[name]
        raw = self._area[start:stop]
        if kind == 6:
            return raw.decode("utf-8", "surrogateescape")
        if 3 <= kind <= 5:
            return int.from_bytes(raw, "big", signed=True)
        return raw == _TRUE if kind == 1 else raw

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())

    def __contains__(self, name: object) -> bool:
        return name in self._entries()

    def __repr__(self) -> str:
        return repr(dict(self))

    @property
    def types(self) -> dict[str, PropertyType]:
        """The type of each property."""
        return {name: _TYPES[kind] for name, (kind, _, _) in self._entries().items()}

    def typed(self) -> dict[str, PropertyInput]:
        """Every value with its type, so that posting the properties again keeps the types."""
        types = self.types
        return {name: PropertyValue(types[name], value) for name, value in self.items()}


#: Layouts of areas seen earlier, for the old and for the new encoding.
LAYOUTS = Layouts(Properties, new=False), Layouts(Properties, new=True)
CACHES.update(zip(("old property layouts", "new property layouts"), LAYOUTS, strict=True))


def _wrong(what: str, field: str, offset: int) -> ProtocolError:
    return ProtocolError(what, field=field, offset=offset, within="properties")


def _parse(area: bytes, end: int, new: bool) -> dict[str, tuple[int, int, int]]:
    first, _, count = AREA.unpack_from(area)
    header = (first >> AREA.shift("headerSize2x") & AREA.mask("headerSize2x")) * 2
    stride = (first >> AREA.shift("propertyHeaderSize2x") & AREA.mask("propertyHeaderSize2x")) * 2
    if header < PROPERTIES_HEADER.size:
        raise _wrong(f"{header} bytes are too few", "MessagePropertiesHeader.headerSize2x", 0)
    if stride < PROPERTY_HEADER.size:
        raise _wrong(f"{stride} bytes are too few", "MessagePropertiesHeader.propertyHeaderSize2x", 0)
    if not count:
        raise _wrong("0 properties", "MessagePropertiesHeader.numProperties", 5)
    position = header + stride * count
    if position > end:
        raise _wrong(f"{count} properties do not fit {end} bytes", "MessagePropertiesHeader.numProperties", 5)
    base = position
    unpack = PROPERTY_WORDS.unpack_from
    heads: list[Any] = [unpack(area, header + stride * i) for i in range(count)]
    index: dict[str, tuple[int, int, int]] = {}
    for i, (word, name_word) in enumerate(heads):
        at = header + stride * i
        kind = word >> _TYPE_SHIFT & _TYPE_MASK
        field = word & _VALUE_MASK
        name_size = name_word & _NAME_MASK
        if kind not in _TYPES:
            raise _wrong(f"{kind} is not a property type", "MessagePropertyHeader.type", at)
        if not name_size:
            raise _wrong("a name cannot be empty", "MessagePropertyHeader.nameLength", at)
        if new:
            if base + field != position:
                raise _wrong(
                    f"offset {field} where the previous property ends at {position - base}",
                    "MessagePropertyHeader.valueField",
                    at,
                )
            stop = base + (heads[i + 1][0] & _VALUE_MASK) if i + 1 < count else end
        else:
            stop = position + name_size + field
        start = position + name_size
        if not start <= stop <= end:
            raise _wrong(
                f"a value from byte {start} to {stop} of {end}", "MessagePropertyHeader.valueField", at
            )
        size = _FIXED_SIZES.get(_TYPES[kind])
        if size is not None and stop - start != size:
            raise _wrong(
                f"{_TYPES[kind].name} must have {size} bytes, not {stop - start}",
                "MessagePropertyHeader.valueField",
                at,
            )
        name = area[position:start].decode("utf-8", "surrogateescape")
        if name in index:
            raise _wrong(f"property {name!r} occurs twice", "message properties", position)
        index[name] = (kind, start, stop)
        position = stop
    return index
