# SPDX-License-Identifier: Apache-2.0
# pyright: basic
"""Message properties whose names and types repeat: work once a schema instead of once a message.

The problem: an area of properties describes itself. Decoding reads a header for each property, checks the
lengths, and looks up each name; encoding packs the same parts one by one. Most producers send the same names
and types with every message, so nearly all of this work has the same result each time.

The solution: code generated for each schema.

- Encoding: :func:`make_encoder` generates a function for a sequence of names and types. The function packs
  headers, names and values of fixed size with one precompiled struct, and joins the values of any length.
- Decoding: :class:`Layouts` keeps a generated :class:`Reader` for each sequence of property headers with few,
  short values, by the bytes of the headers. A reader decodes all values with one ``struct`` call. The reader
  for the headers of the latest areas is the first guess (``usual``); the second of two equal areas replaces
  the guess.
- Columns: :meth:`_Shape.column` reads one property of many areas with a few passes over all bytes.

Invariants:

- The module only caches. Results equal those of :mod:`bmq.wire.properties`, and any doubt (None, or an error
  in ``UNREADABLE``) leaves the area to that module, which raises the precise errors.
- Equal headers do not imply equal names: names of equal length have equal headers. Every reader compares the
  name bytes before returning values.
- Caches are bounded, in entries and in bytes per entry: a peer that never repeats a schema fills some
  megabytes at most.

Replaced designs: a key of all names and types, built for each message (encoders now compare the properties
themselves); an index of positions for each message, read value by value (still used for large areas); a
reader for each length of an area (1.1 times as fast); a column read area by area (a slice across all areas
costs a nanosecond an area, a slice of each area fifty).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from struct import Struct, calcsize, error, unpack
from typing import Any, NamedTuple

from bmq._caches import Cache
from bmq.wire.codec import PROPERTIES_HEADER, PROPERTY_HEADER
from bmq.wire.constants import MAX_PROPERTY_VALUE, PropertyType
from bmq.wire.padding import PADDING

#: Encode properties, from a dict, followed by a payload. If the properties do not match the schema, an
#: encoder returns None, or raises ``KeyError`` for a missing name, ``struct.error`` for an int out of range,
#: and ``ValueError`` for a text that is not plain UTF-8 or an area so large that all limits need checking.
Encoder = Callable[[Mapping[str, Any], bytes], "bytes | None"]

#: The words of an area's header.
AREA = PROPERTIES_HEADER.words(
    "reserved+propertyHeaderSize2x+headerSize2x+areaWords", "reserved2", "numProperties"
)
#: The words of a property's header.
PROPERTY_WORDS = PROPERTY_HEADER.words("reserved+type+valueField", "reserved2+nameLength")
_TYPE_SHIFT = PROPERTY_WORDS.shift("type")
# The first word of an area is followed by a reserved byte and the number of properties.
_WORD = 4
_HEADERS_AT = PROPERTIES_HEADER.size
_COUNT_AT = _HEADERS_AT - 1
_KEY_AT = _HEADERS_AT - 2
_HEADER = PROPERTY_HEADER.size
_FIXED: dict[type, tuple[str, int, PropertyType]] = {
    int: ("q", 8, PropertyType.INT64),
    bool: ("?", 1, PropertyType.BOOL),
}
_VARIABLE: dict[type, PropertyType] = {str: PropertyType.STRING, bytes: PropertyType.BINARY}
#: The first word of an area, with 0 in the bits of the area's length.
EMPTY = PROPERTY_HEADER.size // 2 << AREA.shift(
    "propertyHeaderSize2x"
) | PROPERTIES_HEADER.size // 2 << AREA.shift("headerSize2x")


class _Pieces:
    """The pieces of an area, in order: adjacent pieces of known length are packed together, then all are
    joined.

    Attributes:
        names: the objects that the expression refers to, by name.
    """

    def __init__(self) -> None:
        self._items: list[bytes | tuple[str, str]] = []
        self.names: dict[str, Any] = {"join": b"".join}

    def constant(self, raw: bytes) -> None:
        """Add constant bytes."""
        last = self._items[-1] if self._items else None
        if isinstance(last, bytes):
            self._items[-1] = last + raw
        else:
            self._items.append(raw)

    def add(self, letter: str, expression: str) -> None:
        """Add the result of an expression: a value for a ``struct`` format, or bytes if the format is ""."""
        self._items.append((letter, expression))

    def expression(self) -> str:
        """Return one expression for all pieces joined."""
        joined: list[str] = []
        run: list[bytes | tuple[str, str]] = []
        for item in [*self._items, None]:
            if item is not None and (isinstance(item, bytes) or item[0]):
                run.append(item)
                continue
            if run:
                joined.append(self._packed(run))
                run = []
            if item is not None:
                joined.append(item[1])
        return f"join(({', '.join(joined)}))"

    def _packed(self, run: list[bytes | tuple[str, str]]) -> str:
        formats, arguments = [">"], []
        for item in run:
            if isinstance(item, bytes):
                formats.append(f"{len(item)}s")
                arguments.append(self._named(item))
            else:
                formats.append(item[0])
                arguments.append(item[1])
        if len(run) == 1 and isinstance(run[0], bytes):
            return arguments[0]
        return f"{self._named(Struct(''.join(formats)).pack)}({', '.join(arguments)})"

    def _named(self, thing: object) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = thing
        return name


def make_encoder(keys: list[str], names: list[bytes], types: list[type], *, new: bool) -> Encoder | None:
    """Generate the encoder of one schema; None if values of a type cannot be packed this way.

    Args:
        keys: the names, in the order of the properties.
        names: the same names, legal and encoded.
        types: the Python types of the values.
        new: whether to use the new encoding, whose properties are in the order of their names.
    """
    if not all(t in _FIXED or t in _VARIABLE for t in types):
        return None
    count = len(names)
    order = sorted(range(count), key=names.__getitem__) if new else range(count)
    # In the old encoding the order of the properties counts too.
    same = f"len(p) != {count}" if new else "(*p,) != KEYS"
    values = [f"type(v{i} := p[K{i}]) is not {kind.__name__}" for i, kind in enumerate(types)]
    lines = [f"if {' or '.join([same, *values])}: return None"]
    # The words of each property's header: the variable part, and the constant part.
    heads: list[tuple[str, int]] = []
    # Names; and values as (format, expression), with the format "" for bytes of any length.
    parts: list[bytes | tuple[str, str]] = []
    offset, lengths = 0, ""  # The constant part of the offset, and the sum of the variable lengths so far.
    for i in order:
        name, kind = names[i], types[i]
        if kind in _FIXED:
            letter, size, number = _FIXED[kind]
            parts += [name, (letter, f"v{i}")]
            own = ""
        else:
            number, letter, size, own = _VARIABLE[kind], "", 0, f" + s{i}"
            raw = f"v{i}"
            if kind is str:
                raw = f"r{i}"
                lines.append(f"{raw} = v{i}.encode()")
            lines.append(f"s{i} = len({raw})")
            parts += [name, ("", raw)]
        word = number << _TYPE_SHIFT
        heads.append((lengths, word + offset) if new else (own, word + size))
        heads.append(("", len(name)))
        offset += len(name) + size
        lengths += own
    fixed = _HEADERS_AT + _HEADER * count + offset
    # Merge adjacent constants into one piece. Pack everything before the first value of variable length with
    # one struct, and join the rest.
    pieces = _Pieces()
    if lengths:
        lines += [f"size = {fixed}{lengths}", f"if size > {MAX_PROPERTY_VALUE}: raise ValueError"]
        pieces.add("I", f"(size >> 2) + {EMPTY + 1}")
    elif fixed > MAX_PROPERTY_VALUE:
        return None
    else:
        pieces.constant(Struct(">I").pack((fixed >> 2) + EMPTY + 1))
    pieces.constant(AREA.pack(EMPTY, 0, count)[_WORD:])
    formats = PROPERTY_WORDS.format[1:]
    for at, (changing, word) in enumerate(heads):
        letter = formats[at % len(formats)]
        if changing:
            pieces.add(letter, f"{word}{changing}")
        else:
            pieces.constant(Struct(">" + letter).pack(word))
    for part in parts:
        if isinstance(part, bytes):
            pieces.constant(part)
        else:
            pieces.add(*part)
    if lengths:
        pieces.add("", "PADDING[size & 3]")
    else:
        pieces.constant(PADDING[fixed & 3])
    pieces.add("", "payload")
    source = "\n    ".join(["def encode(p, payload):", *lines, f"return {pieces.expression()}"])
    namespace: dict[str, Any] = {"PADDING": PADDING, "KEYS": tuple(keys), **pieces.names}
    namespace.update({f"K{i}": key for i, key in enumerate(keys)})
    exec(compile(source, "<message properties>", "exec"), namespace)
    encoder: Encoder = namespace["encode"]
    return encoder


#: The area's length; all values by name; and the same values again if their Python types determine the
#: property types (no CHAR, no BINARY), otherwise None.
_Read = tuple[int, dict[str, Any], "dict[str, Any] | None"]


@dataclass(frozen=True, slots=True)
class Reader:
    """Functions that read application data beginning with an area of one shape.

    Attributes:
        values: returns the values if their Python types determine the property types; None otherwise, and for
            an area of another shape.
        read: returns the values. Returns None or raises IndexError, UnicodeDecodeError or ``struct.error``
            for an area of another shape.
        properties: returns a ``Properties`` object, built inline because this runs for every message whose
            properties are read; None for an area of another shape.
        column: reads one property of many areas, see :meth:`_Shape.column`.
    """

    read: Callable[[bytes], _Read | None]
    values: Callable[[bytes], dict[str, Any] | None]
    properties: Callable[[bytes], Any]
    column: Callable[[Sequence[bytes], str], list[Any] | None]


#: The functions of a reader.
_Functions = tuple[
    Callable[[bytes], "_Read | None"], Callable[[bytes], "dict[str, Any] | None"], Callable[[bytes], Any]
]
#: Errors of a reader for an area of another shape.
UNREADABLE = (IndexError, KeyError, UnicodeDecodeError, error)

# The ``struct`` format of each property type, and the expression that makes a property's value.
_UNPACKED = {PropertyType.SHORT: "h", PropertyType.INT32: "i", PropertyType.INT64: "q"}
_OPEN = (PropertyType.STRING, PropertyType.BINARY)
_AMBIGUOUS = (PropertyType.CHAR, PropertyType.BINARY)
_MADE = {PropertyType.BOOL: " == b'\\1'", PropertyType.STRING: ".decode()"}
# The possible values of the last byte of padding.
_PADS = bytes(range(1, 5))
# Minimum number of areas, and maximum length of an area, for a table; maximum length of texts cut from it.
_MANY = 64
_SHORT = 128
_NARROW = 24
# Decode all values at once only if that is cheap: few and short values.
_READ_PROPERTIES = 32
_READ_BYTES = 2048
# The length of such an area by its first word. Finding a length is faster than calculating and comparing it.
_LENGTHS = {EMPTY + words: 4 * words for words in range(1, _READ_BYTES // 4 + 2)}
# The source of a reader depends on the types, and on whether the last value has variable length. Compile it
# once for each combination.
_reader_makers: Cache[tuple[tuple[int, ...], bool], Callable[..., _Functions]] = Cache(
    "readers of properties", 512
)


def headers_of(area: bytes) -> bytes:
    """Return the bytes from the number of properties to the end of all headers."""
    return area[_KEY_AT : _HEADERS_AT + area[_COUNT_AT] * _HEADER] if len(area) > _COUNT_AT else b""


def alike(data: Sequence[bytes]) -> Iterable[list[int]]:
    """Return the positions of areas, grouped by equal headers (including the area's length)."""
    places: dict[bytes, list[int]] = {}
    for place, area in enumerate(data):
        # Same as headers_of(), inlined.
        headers = area[: _HEADERS_AT + area[_COUNT_AT] * _HEADER] if len(area) > _COUNT_AT else b""
        try:
            places[headers].append(place)
        except KeyError:
            places[headers] = [place]
    return places.values()


def _nothing(_: bytes) -> None:
    return None


def _no_column(_: Sequence[bytes], _name: str) -> None:
    return None


_NOTHING = Reader(_nothing, _nothing, _nothing, _no_column)


class Layouts:
    """The readers of one encoding, by the bytes of the headers.

    Args:
        new: whether this is the new encoding.
        cls: the class of the objects to create: :class:`bmq.wire.properties.Properties`.

    Attributes:
        usual: reader for the headers of the latest areas.
    """

    __slots__ = ("_cls", "_new", "_readers", "_unusual", "usual")

    # Limit, so that a peer that never repeats a schema fills some megabytes at most.
    _MAX = 512

    def __init__(self, cls: type, *, new: bool) -> None:
        self._cls = cls
        self._new = new
        self.empty()

    def empty(self) -> None:
        """Forget all readers."""
        self._readers: dict[bytes, Reader] = {}
        # The headers of the last area that differed from the usual.
        self._unusual = b""
        self.usual = _NOTHING

    def read(self, data: bytes) -> _Read | None:
        """Read an area that differs from the usual ones; None if no reader fits.

        If two such areas in a row have equal headers, their reader becomes the usual one.
        """
        key = headers_of(data)
        reader = self._readers.get(key)
        if reader is None:
            return None
        try:
            found = reader.read(data)
        except UNREADABLE:
            return None
        if found is not None:
            if key == self._unusual:
                self.usual = reader
            self._unusual = key
        return found

    def column(self, data: Sequence[bytes], name: str) -> list[Any] | None:
        """Read one property of areas with equal headers and lengths.

        Args:
            data: application data that begins with an area; at least one item.
            name: the property's name.

        Returns:
            The values, with None for an absent property; None instead of the list if the areas cannot be read
            this way.
        """
        try:
            reader = self._readers.get(headers_of(data[0]))
            return reader.column(data, name) if reader is not None else None
        except UNREADABLE:
            return None

    def prepare(self, area: bytes, end: int, index: dict[str, tuple[int, int, int]]) -> None:
        """Create the reader for areas with the headers of a legal area, if the values are few and short.

        Names of equal lengths have equal headers; the first names get the reader. When the cache is full,
        other areas are read by their index.
        """
        key = headers_of(area)
        if (
            len(index) <= _READ_PROPERTIES
            and end <= _READ_BYTES
            and key not in self._readers
            and len(self._readers) < self._MAX
        ):
            self._readers[key] = _Shape(area, end, index, new=self._new).reader(self._cls)


class _Shape:
    """The positions in areas with the same headers and names, prepared for ``struct``.

    Attributes:
        names: the properties' names.
        kinds: the properties' types.
        constants: for each property, the constant bytes in front of its value: all headers and the first
            name, or only the name.
        formats: the ``struct`` format of each value; "" for a last value of variable length.
        places: start, stop and format of each value.
        start: start of a last value of variable length; 0 if all areas have one length.
        last: the last byte of the padding, if all areas have one length.
        words: the smallest and the largest first word of an area.
        new: whether this is the new encoding.
    """

    __slots__ = ("constants", "formats", "kinds", "last", "names", "new", "places", "start", "words")

    def __init__(self, area: bytes, end: int, index: dict[str, tuple[int, int, int]], *, new: bool) -> None:
        self.new = new
        self.names = list(index)
        self.kinds = tuple(kind for kind, _, _ in index.values())
        self.constants: list[bytes] = []
        self.formats: list[str] = []
        self.start, self.last = 0, 4 - end % 4
        position = _WORD
        for kind, start, stop in index.values():
            self.constants.append(area[position:start])
            position = stop
            self.formats.append(_UNPACKED.get(PropertyType(kind)) or f"{position - start}s")
            if new and len(self.formats) == len(index) and kind in _OPEN:
                self.start, self.formats[-1] = start, ""
        self.places: list[tuple[int, int, str]] = []
        at = _WORD
        for constant, number in zip(self.constants, self.formats, strict=True):
            begin = at + len(constant)
            at = begin + calcsize(f">{number}")
            self.places.append((begin, at, number))
        word = EMPTY + (end >> 2) + 1
        self.words = word, word
        if self.start:
            self.words = EMPTY + (self.start >> 2) + 1, EMPTY + _READ_BYTES // 4

    def reader(self, cls: type) -> Reader:
        """Return a reader of all values of an area, which creates objects of a class."""
        kinds = self.kinds, bool(self.start)
        maker = _reader_makers.get(kinds)
        if maker is None:
            maker = _reader_makers.keep(kinds, _make_maker(*kinds))
        constants, word, end, length = self.constants, "I", "", 0
        if not self.start:
            # All areas have one length, and therefore the same first word.
            first, length = self.words[0], _LENGTHS[self.words[0]]
            constants = [Struct(">I").pack(first) + constants[0], *constants[1:]]
            word, end = "", f"{self.last - 1}xB"
        items = [f"{len(each)}s{value}" for each, value in zip(constants, self.formats, strict=True)]
        unpack = Struct(f">{word}{''.join(items)}{end}").unpack_from
        functions = maker(unpack, constants, self.names, length, self.start, self.last, cls, self.new)
        return Reader(*functions, self.column)

    def column(self, data: Sequence[bytes], name: str) -> list[Any] | None:
        """Return the values of a property; None unless all areas have this shape, and one length in words.

        Raises:
            IndexError, UnicodeDecodeError: an area cannot be read.
        """
        count, every = len(data), tuple(data)
        first = data[0][:_WORD] + self.constants[0]
        word = int.from_bytes(first[:_WORD], "big")
        if not self.words[0] <= word <= self.words[1]:
            return None
        # Compare all headers and the first name at once. "%.9b" takes the first nine bytes.
        if b"%%.%db" % len(first) * count % every != first * count:
            return None
        length = word - EMPTY << 2
        table: _Table | None = None
        if count >= _MANY and length <= _SHORT:
            table = _Table(b"%%.%db" % length * count % every, length)
            if len(table.areas) != length * count:
                return None
            pads = table.areas[length - 1 :: length]
        else:
            pads = bytes(map(itemgetter(length - 1), data))
        legal = _PADS[: length - self.start] if self.start else bytes((self.last,))
        if pads.translate(None, legal):
            return None

        def cut(start: int, stop: int) -> bytes | bytearray:
            if table is not None:
                return table.cut(start, stop)
            return b"".join(map(itemgetter(slice(start, stop)), data))

        size = len(name.encode("utf-8", "surrogateescape"))
        for constant, (start, _, _) in zip(self.constants[1:], self.places[1:], strict=True):
            # A name of another length cannot be the requested one.
            if len(constant) == size and cut(start - size, start) != constant * count:
                return None
        try:
            wanted = self.names.index(name)
        except ValueError:
            return [None] * count
        kind, (start, stop, number) = self.kinds[wanted], self.places[wanted]
        if kind in _UNPACKED:
            return list(unpack(f">{count}{number}", cut(start, stop)))
        if kind == PropertyType.BOOL:
            return [byte == 1 for byte in cut(start, stop)]
        if not number:
            stop = length - pads[0] if pads.count(pads[0]) == count else 0
        if table is not None and kind == PropertyType.STRING and 0 < stop <= start + _NARROW:
            # With a zero after each text, one call decodes all texts, and another splits them.
            texts = table.cut(start, stop, 1).decode().split("\0")
            texts.pop()
            if len(texts) == count:
                return texts
        if stop:
            values = list(map(itemgetter(slice(start, stop)), data))
        else:
            values = [each[start : length - pad] for each, pad in zip(data, pads, strict=True)]
        return list(map(bytes.decode, values)) if kind == PropertyType.STRING else values


def _make_maker(kinds: tuple[int, ...], any_length: bool) -> Callable[..., _Functions]:
    count = range(len(kinds))
    fixed = [i for i in count if not any_length or i != count[-1]]
    values = [f"v{i}" for i in fixed] + (["area[start:stop]"] if any_length else [])
    made = [f"K{i}: {values[i]}{_MADE.get(PropertyType(kinds[i]), '')}" for i in count]
    unpacked = "".join(f"c{i}, v{i}, " if i in fixed else f"c{i}, " for i in count)
    same = " and ".join(f"c{i} == C{i}" for i in count)
    again = "None" if any(kind in _AMBIGUOUS for kind in kinds) else "values"
    values_made = f"values = {{{', '.join(made)}}}"
    # Same as Properties.__init__, inlined.
    attributes = {
        "_area": "area", "_new": "new", "_index": "None", "length": "length", "_values": "values",
        "plain": again,
    }  # fmt: skip
    objects = [
        values_made,
        "found = object_of(cls)",
        *(f"found.{name} = {value}" for name, value in attributes.items()),
        "return found",
    ]
    if any_length:
        found = [
            f"word, {unpacked} = unpack(area)",
            f"if {same}:",
            "  length = lengths[word]",
            "  pad = area[length - 1]",
            "  stop = length - pad",
            "  if stop >= start and 0 < pad < 5:",
        ]
    else:
        found = [f"{unpacked} pad = unpack(area)", f"if {same} and pad == last:"]
    inner = "    " if any_length else "  "
    lines = [
        "def make(unpack, constants, keys, length, start, last, cls, new):",
        f"  {''.join(f'C{i}, ' for i in count)} = constants",
        f"  {''.join(f'K{i}, ' for i in count)} = keys",
        "  def read(area):",
        *(f"    {line}" for line in found),
        f"    {inner}{values_made}",
        f"    {inner}return length, values, {again}",
        "  def values(area):",
        "    try:",
        *(f"      {line}" for line in found),
        f"      {inner}return {{{', '.join(made)}}}",
        "    except UNREADABLE: pass",
        "  def properties(area):",
        "    try:",
        *(f"      {line}" for line in found),
        *(f"      {inner}{line}" for line in objects),
        "    except UNREADABLE: pass",
        f"  return read, {'none' if again == 'None' else 'values'}, properties",
    ]
    namespace: dict[str, Any] = {
        "object_of": object.__new__,
        "lengths": _LENGTHS,
        "UNREADABLE": UNREADABLE,
        "none": _nothing,
    }
    exec(compile("\n".join(lines), "<message properties>", "exec"), namespace)
    maker: Callable[..., _Functions] = namespace["make"]
    return maker


class _Table(NamedTuple):
    """Areas of one length, concatenated.

    The bytes at one position of all areas are a slice with a step, which costs a nanosecond an area. A slice
    of each area costs fifty, but has no cost of setting up the table.

    Attributes:
        areas: the bytes of all areas.
        length: length of each area.
    """

    areas: bytes
    length: int

    def cut(self, start: int, stop: int, zeros: int = 0) -> bytearray:
        """Return the bytes between two positions of every area, each followed by ``zeros`` zeros."""
        areas, length = self
        width = stop - start + zeros
        cut = bytearray(len(areas) // length * width)
        for place, at in enumerate(range(start, stop)):
            cut[place::width] = areas[at::length]
        return cut
