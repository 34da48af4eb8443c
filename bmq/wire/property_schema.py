# SPDX-License-Identifier: Apache-2.0
# pyright: basic
"""Message properties whose names and types repeat: work that is done once a schema, not once a message.

Most producers send the same properties with every message. For each sequence of names and types seen, a
function is generated that packs headers, names and fixed-size values with one precompiled struct; for each
sequence of property headers received, the positions of names and values are kept. Both are caches: they give
the same results as :mod:`bmq.wire.properties`, which does what they cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, NamedTuple

from bmq.wire.codec import PROPERTIES_HEADER, PROPERTY_HEADER
from bmq.wire.constants import MAX_PROPERTY_VALUE, PropertyType
from bmq.wire.padding import PADDING

__all__ = ["Encoder", "Layout", "Layouts", "make_encoder"]

#: Takes properties, in a dict, and returns the area. None when they are not of its schema; ``struct.error``
#: on an int out of range, ``ValueError`` when the area is so large that every limit has to be looked at.
Encoder = Callable[[Mapping[str, Any]], "bytes | None"]

_FIRST_BYTE = (
    PROPERTY_HEADER.size // 2 << PROPERTIES_HEADER.fields["propertyHeaderSize2x"].shift
    | PROPERTIES_HEADER.size // 2 << PROPERTIES_HEADER.fields["headerSize2x"].shift
)
_WORDS_SHIFT = PROPERTIES_HEADER.fields["areaWords"].shift
_TYPE_SHIFT = PROPERTY_HEADER.fields["type"].shift
# What follows the length in the header of an area: a reserved byte, the number of properties.
_HEADERS_AT = PROPERTIES_HEADER.size
_COUNT_AT = _HEADERS_AT - 1
_KEY_AT = _HEADERS_AT - 2
_HEADER = PROPERTY_HEADER.size
_FIXED: dict[type, tuple[str, int, PropertyType]] = {
    int: ("q", 8, PropertyType.INT64),
    bool: ("?", 1, PropertyType.BOOL),
}
_VARIABLE: dict[type, PropertyType] = {str: PropertyType.STRING, bytes: PropertyType.BINARY}


def make_encoder(keys: list[str], names: list[bytes], types: list[type], *, new: bool) -> Encoder | None:
    """Generate the encoder of one schema; None if a type's values cannot be packed this way.

    Args:
        keys: the names, in the order of the properties.
        names: the same, legal and encoded.
        types: the Python types of the values.
        new: the encoding; the new one has its properties in the order of their names.
    """
    if not all(t in _FIXED or t in _VARIABLE for t in types):
        return None
    # In the old encoding the order matters too.
    same = f"len(p) != {len(names)}" if new else "(*p,) != KEYS"
    values = [f"(v{i} := get(K{i})).__class__ is not {kind.__name__}" for i, kind in enumerate(types)]
    lines = ["get = p.get", f"if {' or '.join([same, *values])}: return None"]
    formats = [PROPERTIES_HEADER.struct.format, PROPERTY_HEADER.struct.format[1:] * len(names)]
    heads: list[str] = []
    prefix: list[str] = []  # what the struct packs behind the headers, up to the first value of any length
    rest: list[str] = []  # what is joined behind it
    offset, lengths = 0, ""  # a constant, and the variable lengths added so far
    for i in sorted(range(len(names)), key=names.__getitem__) if new else range(len(names)):
        name, kind = names[i], types[i]
        if kind in _FIXED:
            letter, size, number = _FIXED[kind]
            value_size = str(size)
        else:
            number = _VARIABLE[kind]
            raw = f"v{i}" if kind is bytes else f"r{i}"
            if kind is str:
                lines.append(f"r{i} = v{i}.encode('utf-8', 'surrogateescape')")
            lines.append(f"s{i} = len({raw})")
            letter, size, value_size = "", 0, f"s{i}"
        field = (
            f"{number << _TYPE_SHIFT} + {offset}{lengths}"
            if new
            else f"{number << _TYPE_SHIFT} + {value_size}"
        )
        heads += [field, str(len(name))]
        if not rest and letter:
            formats.append(f"{len(name)}s{letter}")
            prefix += [f"n{i}", f"v{i}"]
        elif not rest:
            formats.append(f"{len(name)}s")
            prefix.append(f"n{i}")
            rest.append(f"v{i}" if kind is bytes else f"r{i}")
        else:
            rest.append(f"n{i}")
            rest.append(f"f{i}(v{i})" if letter else (f"v{i}" if kind is bytes else f"r{i}"))
        offset += len(name) + size
        if not letter:
            lengths += f" + s{i}"
    fixed = PROPERTIES_HEADER.size + PROPERTY_HEADER.size * len(names) + offset
    packed = ", ".join(
        [str(_FIRST_BYTE), f"((size >> 2) + 1) << {_WORDS_SHIFT}", str(len(names)), *heads, *prefix]
    )
    source = "\n    ".join(
        [
            "def encode(p):",
            *lines,
            f"size = {fixed}{lengths}",
            f"if size > {MAX_PROPERTY_VALUE}: raise ValueError",
            f"return {' + '.join([f'pack({packed})', *rest, 'PADDING[size & 3]'])}",
        ]
    )
    pack = Struct("".join(formats)).pack
    namespace: dict[str, Any] = {"pack": pack, "PADDING": PADDING, "KEYS": tuple(keys)}
    for i, (key, name, kind) in enumerate(zip(keys, names, types, strict=True)):
        namespace[f"K{i}"], namespace[f"n{i}"] = key, name
        if kind in _FIXED:
            namespace[f"f{i}"] = Struct(">" + _FIXED[kind][0]).pack
    exec(compile(source, "<message properties>", "exec"), namespace)
    encoder: Encoder = namespace["encode"]
    return encoder


#: Takes an area, which more bytes may follow, and returns all its values by name. None, UnicodeDecodeError or
#: ``struct.error`` for one that it cannot read.
Reader = Callable[[bytes], "dict[str, Any] | None"]

# How values are unpacked, and what makes a property's value of that, by the number of their type.
_UNPACKED = {PropertyType.SHORT: "h", PropertyType.INT32: "i", PropertyType.INT64: "q"}
_MADE = {PropertyType.BOOL: " == b'\\1'", PropertyType.STRING: ".decode()"}
# All values are read at once only where that costs little: few, short ones.
_READ_PROPERTIES = 8
_READ_BYTES = 512
# The source of a reader depends on the types alone: it is compiled once for each sequence of them.
_reader_makers: dict[tuple[int, ...], Callable[..., Reader]] = {}
_READER_MAKERS = 512


class Layout(NamedTuple):
    """Where everything is in areas with the same property headers.

    Attributes:
        entries: (type, start, stop) of each value by name; the last value in the new encoding has no stop of
            its own: 0 stands for the end of the area.
        names: (start, stop, bytes) of each name: what has to be compared before the index is believed.
        minimum: the length, without padding, below which the headers would not be legal.
        exact: whether it is also the only legal length.
    """

    entries: dict[str, tuple[int, int, int]]
    names: tuple[tuple[int, int, bytes], ...]
    minimum: int
    exact: bool


class Layouts:
    """The layouts of one encoding by their headers' bytes.

    Attributes:
        readers: for areas with few and short values, what reads them all at once, and the area's length; by
            all their headers, that with the length included.
    """

    __slots__ = ("_known", "_new", "readers")

    # So a peer that never repeats a schema fills some megabytes at most.
    _MAX = 1024
    _MAX_KEY = 512
    _MAX_NAMES = 1024

    def __init__(self, *, new: bool) -> None:
        self._known: dict[bytes, Layout] = {}
        self._new = new
        self.readers: dict[bytes, tuple[Reader, int]] = {}

    def find(self, area: bytes, end: int) -> dict[str, tuple[int, int, int]] | None:
        """Return the index of an area whose headers and names are known.

        Args:
            area: the area; its headers have the sizes declared.
            end: its length without padding.
        """
        layout = self._known.get(_key(area))
        if layout is None:
            return None
        entries, names, minimum, exact = layout
        if end != minimum if exact else end < minimum:
            return None
        for start, stop, name in names:
            if area[start:stop] != name:
                return None
        return entries

    def read(self, area: bytes, end: int, index: dict[str, tuple[int, int, int]]) -> None:
        """Keep what reads areas with the same headers as a legal one, if that is worth it.

        There are as many as there are lengths of the values: when there are too many, no more are made, and
        the other areas are read by their index.
        """
        if len(index) > _READ_PROPERTIES or end > _READ_BYTES or len(self.readers) >= self._MAX:
            return
        reader = _make_reader(area, end, index)
        if reader is not None:
            total = (end >> 2) + 1 << 2
            self.readers[area[: _HEADERS_AT + len(index) * _HEADER]] = reader, total

    def learn(self, area: bytes, end: int, index: dict[str, tuple[int, int, int]]) -> None:
        """Keep the positions of names and values in a legal area."""
        key = _key(area)
        if len(key) > self._MAX_KEY:
            return
        entries = list(index.items())
        position = PROPERTIES_HEADER.size + PROPERTY_HEADER.size * len(entries)
        names: list[tuple[int, int, bytes]] = []
        for _, (_, start, stop) in entries:
            names.append((position, start, area[position:start]))
            position = stop
        if sum(len(name) for _, _, name in names) > self._MAX_NAMES:
            return
        if len(self._known) >= self._MAX:
            self._known.clear()
        last, (kind, start, _) = entries[-1]
        open_ended = self._new and kind in (PropertyType.STRING, PropertyType.BINARY)
        if open_ended:
            index = {**index, last: (kind, start, 0)}
        self._known[key] = Layout(index, tuple(names), start if open_ended else end, not open_ended)


def _key(area: bytes) -> bytes:
    """Return the bytes of the headers after the area's length; the sizes before it are the standard ones."""
    return area[_KEY_AT : _HEADERS_AT + area[_COUNT_AT] * _HEADER]


def _make_reader(area: bytes, end: int, index: dict[str, tuple[int, int, int]]) -> Reader | None:
    kinds = tuple(kind for kind, _, _ in index.values())
    maker = _reader_makers.get(kinds)
    if maker is None:
        if len(_reader_makers) >= _READER_MAKERS:
            return None
        maker = _reader_makers[kinds] = _make_maker(kinds)
    position = _HEADERS_AT + len(index) * _HEADER
    formats, names = [f">{position}x"], []
    for kind, start, stop in index.values():
        stop = stop or end
        names.append(area[position:start])
        formats.append(f"{start - position}s{_UNPACKED.get(PropertyType(kind)) or f'{stop - start}s'}")
        position = stop
    pad = 4 - end % 4
    formats.append(f"{pad - 1}xB")
    return maker(Struct("".join(formats)).unpack_from, names, list(index), pad)


def _make_maker(kinds: tuple[int, ...]) -> Callable[..., Reader]:
    count = range(len(kinds))
    made = [f"K{i}: v{i}{_MADE.get(PropertyType(kinds[i]), '')}" for i in count]
    same = " and ".join([*(f"n{i} == N{i}" for i in count), "last == pad"])
    source = "\n".join(
        [
            "def make(unpack, names, keys, pad):",
            f"  {''.join(f'N{i}, ' for i in count)} = names",
            f"  {''.join(f'K{i}, ' for i in count)} = keys",
            "  def read(area):",
            f"    {''.join(f'n{i}, v{i}, ' for i in count)} last = unpack(area)",
            f"    if {same}: return {{{', '.join(made)}}}",
            "  return read",
        ]
    )
    namespace: dict[str, Any] = {}
    exec(compile(source, "<message properties>", "exec"), namespace)
    maker: Callable[..., Reader] = namespace["make"]
    return maker
