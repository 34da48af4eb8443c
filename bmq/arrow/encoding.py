# SPDX-License-Identifier: Apache-2.0
"""From the columns of a table to PUT events, without an object for each row.

Headers are numpy columns of the declared layouts. Arrow joins them with the parts of variable length (values,
payloads, padding). The bytes equal those of :func:`bmq.wire.put.encode_puts` and
:func:`bmq.wire.properties.encode_properties`, as a property test checks. Needs numpy and pyarrow: the extra
``bmq[arrow]``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bmq import _checks
from bmq.arrow.columns import ACK, AREA, PROPERTY, PUT, Array, dtype_of, fill, rewrite
from bmq.arrow.decoding import FIXED, to_arrow
from bmq.errors import InvalidPayload, InvalidProperty, UsageError
from bmq.wire.constants import (
    MAX_APPLICATION_DATA,
    MAX_PROPERTIES,
    MAX_PROPERTIES_AREA,
    MAX_PROPERTY_VALUE,
    UNSET_GUID,
    EventType,
    PropertyType,
    PutFlags,
)
from bmq.wire.crc import crc32c
from bmq.wire.event import HEADER_SIZE, pack_event_header
from bmq.wire.message import join_application_data, split_application_data
from bmq.wire.padding import PADDING
from bmq.wire.properties import PropertyInput, PropertyValue, encode_properties, properties_length
from bmq.wire.put import PutEvent, decode_puts

pa: Any = importlib.import_module("pyarrow")
pc: Any = importlib.import_module("pyarrow.compute")

#: A column, a batch of columns and their types of pyarrow, which has no type hints.
ArrowArray = Any
RecordBatch = Any
ArrowSchema = Any

#: Largest number of messages in an event, and largest size in bytes of an event of several messages.
MAX_MESSAGES = 4096
MAX_BYTES = 1024 * 1024

_PUT = dtype_of(PUT)
_ACK = dtype_of(ACK)
_AREA = dtype_of(AREA)
_PROPERTY = dtype_of(PROPERTY)
_HEADER_WORDS = PUT.size // 4
_PLAIN = int(PutFlags.ACK_REQUESTED)
_WITH_PROPERTIES = int(PutFlags.ACK_REQUESTED | PutFlags.MESSAGE_PROPERTIES)

#: The types of columns that are encoded as another type, by name: old versions of pyarrow lack some.
_FLAT = {
    "large_string": pa.string(),
    "string_view": pa.string(),
    "large_binary": pa.binary(),
    "binary_view": pa.binary(),
}
#: The type of the properties of a column.
_KINDS = {
    pa.bool_(): PropertyType.BOOL,
    pa.int8(): PropertyType.SHORT,
    pa.uint8(): PropertyType.SHORT,
    pa.int16(): PropertyType.SHORT,
    pa.uint16(): PropertyType.INT32,
    pa.int32(): PropertyType.INT32,
    pa.uint32(): PropertyType.INT64,
    pa.int64(): PropertyType.INT64,
    pa.uint64(): PropertyType.INT64,
    pa.null(): PropertyType.STRING,
    pa.string(): PropertyType.STRING,
    pa.binary(): PropertyType.BINARY,
}
#: Property types that the Python type does not determine.
_NARROW = {PropertyType.SHORT, PropertyType.INT32}


class Slice(NamedTuple):
    """Some rows of a batch: the application data of messages, before compression.

    Attributes:
        first: position of the first row.
        batch: the rows themselves.
        payload_bytes: size of the payloads in bytes.
        data: properties and payload of each row, a binary array without nulls.
        schemas: the distinct sets of property names, each sorted; () for none.
        schema_of: for each row, the index of its set in ``schemas``.
    """

    first: int
    batch: RecordBatch
    payload_bytes: int
    data: ArrowArray
    schemas: list[tuple[str, ...]]
    schema_of: Array


class _Property(NamedTuple):
    """A column that becomes a property.

    Attributes:
        name: the property's name.
        raw: the encoded name.
        kind: the property's type.
        at: index of the column; for a struct column, also the index of the field.
    """

    name: str
    raw: bytes
    kind: PropertyType
    at: tuple[int, ...]


class TableEncoder:
    """Makes messages from batches of one schema.

    Args:
        schema: the columns, including unused ones.
        value: the column with the payload: binary or string, of any width, plain or dictionary-encoded.
        properties: the columns that become properties of the same name: boolean, integer, string or binary.
            Each field of a struct column becomes a property. Null is an absent property.
        new: whether to write properties in the new encoding.
        name_row: returns the name of a row for errors, from its position.

    Raises:
        UsageError: a column is missing, or has a type that cannot be posted; the message names the column.
        InvalidProperty: the name of a column is not legal for a property.
    """

    def __init__(
        self,
        schema: ArrowSchema,
        value: str,
        properties: Sequence[str] = (),
        *,
        new: bool = True,
        name_row: Callable[[int], str] = "row {}".format,
    ) -> None:
        self._value = _find(schema, value)
        self._value_name = value
        self._new = new
        self._name_row = name_row
        kind = schema.field(self._value).type
        if _flat(kind) not in (pa.string(), pa.binary()):
            raise UsageError(
                f"column {value!r} is of type {kind}, and a payload must be string or binary: cast the "
                "column, or pack several columns into one"
            )
        plain: list[_Property] = []
        nested: list[_Property] = []
        for name in properties:
            at = _find(schema, name)
            kind = schema.field(at).type
            if pa.types.is_struct(kind):
                nested += [
                    _property(each.name, each.type, (at, field), f"{name}.{each.name}")
                    for field, each in enumerate(kind)
                ]
            else:
                plain.append(_property(name, kind, (at,), name))
        # Several columns may have the same name: in each row the first non-null value counts.
        self._properties = plain + nested
        if (count := len({each.name for each in self._properties})) > MAX_PROPERTIES:
            raise InvalidProperty(f"{count} properties; a message has at most {MAX_PROPERTIES}")
        if new:
            self._properties.sort(key=lambda each: each.raw)

    def slices(self, batch: RecordBatch, first: int = 0) -> Iterator[Slice]:
        """Cut a batch into slices, each as large as an event, and encode the slices.

        Args:
            batch: the rows.
            first: position of the first row, for errors.

        Raises:
            InvalidPayload, InvalidProperty: a row cannot be posted; the message names the row.
        """
        ends = np.cumsum(self._sizes(batch))
        start = 0
        while start < batch.num_rows:
            room = (int(ends[start - 1]) if start else 0) + MAX_BYTES - HEADER_SIZE
            stop = int(np.searchsorted(ends, room, side="right"))
            stop = max(start + 1, min(stop, start + MAX_MESSAGES))
            part = batch.slice(start, stop - start)
            yield self._slice(part, first + start)
            start = stop

    def _sizes(self, batch: RecordBatch) -> Array:
        """The approximate size of each row in bytes, never too small."""
        sizes = _lengths(batch.column(self._value)) + PUT.size + AREA.size + 8
        for each in self._properties:
            fixed = FIXED.get(each.kind)
            values = np.dtype(fixed).itemsize if fixed else _lengths(_pick(batch, each.at))
            sizes += PROPERTY.size + len(each.raw) + values
        return sizes

    def _slice(self, batch: RecordBatch, first: int) -> Slice:
        payload = _flattened(batch.column(self._value))
        payload_sizes = _lengths(payload)
        wrong = (payload_sizes == 0) | (payload_sizes > MAX_APPLICATION_DATA)
        if wrong.any():
            row = int(wrong.argmax())
            what = f"has {int(payload_sizes[row]):,} bytes" if payload[row].is_valid else "is null"
            raise InvalidPayload(
                f"{self._name_row(first + row)}: column {self._value_name!r} {what}; a payload has 1 to "
                f"{MAX_APPLICATION_DATA:,} bytes of string or binary: filter these rows out before posting"
            )
        columns = self._columns(batch)
        try:
            data, schemas, schema_of = _assemble(payload, columns, new=self._new)
        except InvalidProperty as error:
            raise self._located(error, columns, first) from None
        sizes = _lengths(data)
        if int(sizes.max()) > MAX_APPLICATION_DATA:
            row = int(sizes.argmax())
            raise InvalidPayload(
                f"{self._name_row(first + row)}: properties and payload take {int(sizes[row]):,} bytes; "
                f"a message has at most {MAX_APPLICATION_DATA:,} (64 MiB)"
            )
        return Slice(first, batch, int(payload_sizes.sum()), data, schemas, schema_of)

    def _columns(self, batch: RecordBatch) -> list[tuple[_Property, ArrowArray]]:
        """The values of each property. Of columns with one name at most one is not null in a row."""
        columns: list[tuple[_Property, ArrowArray]] = []
        taken: dict[str, ArrowArray] = {}
        for each in self._properties:
            values = _flattened(_pick(batch, each.at))
            valid = values.is_valid()
            if (there := taken.get(each.name)) is not None:
                values = pc.if_else(there, pa.scalar(None, values.type), values)
                valid = pc.or_(there, valid)
            taken[each.name] = valid
            columns.append((each, values))
        return columns

    def _located(
        self, error: InvalidProperty, columns: list[tuple[_Property, ArrowArray]], first: int
    ) -> InvalidProperty:
        """Return the error of the first row whose properties cannot be encoded."""
        values = [array.to_pylist() for _, array in columns]
        for row, cells in enumerate(zip(*values, strict=True)):
            properties: dict[str, PropertyInput] = {
                each.name: PropertyValue(each.kind, cell)
                for (each, _), cell in zip(columns, cells, strict=True)
                if cell is not None
            }
            try:
                encode_properties(properties, new=True)
            except InvalidProperty as found:
                return InvalidProperty(f"{self._name_row(first + row)}: {found}")
        return error


def _find(schema: ArrowSchema, name: str) -> int:
    found: list[int] = schema.get_all_field_indices(name)
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{len(found)} columns are named {name!r}: give each column a unique name")
    raise UsageError(f"no column {name!r}; the table has: {', '.join(schema.names) or 'none'}")


def _flat(kind: Any) -> Any:
    """The type of a column as encoded: not a dictionary, with 32-bit offsets."""
    if pa.types.is_dictionary(kind):
        return _flat(kind.value_type)
    return pa.binary() if pa.types.is_fixed_size_binary(kind) else _FLAT.get(str(kind), kind)


def _property(name: str, kind: Any, at: tuple[int, ...], path: str) -> _Property:
    found = _KINDS.get(_flat(kind))
    if found is None:
        raise UsageError(
            f"column {path!r} is of type {kind}, and a property must be boolean, an integer, string or "
            "binary: cast the column (to string, or to int64 in a whole unit), or omit the column"
        )
    encode_properties({name: True}, new=True)
    return _Property(name, name.encode("utf-8", "surrogateescape"), found, at)


def _pick(batch: RecordBatch, at: tuple[int, ...]) -> ArrowArray:
    column = batch.column(at[0])
    return column.flatten()[at[1]] if len(at) > 1 else column


def _flattened(column: ArrowArray) -> ArrowArray:
    if pa.types.is_dictionary(column.type):
        return _flattened(column.dictionary).take(column.indices)
    flat = _flat(column.type)
    return column if column.type == flat else column.cast(flat)


def _lengths(column: ArrowArray) -> Array:
    """The length of each value in bytes, 0 for null."""
    if pa.types.is_dictionary(column.type):
        lengths = to_arrow(_lengths(column.dictionary)).take(column.indices)
    else:
        if str(column.type) in ("string_view", "binary_view", "null"):
            column = column.cast(pa.large_binary())
        lengths = pc.binary_length(column)
    if lengths.null_count:
        lengths = lengths.fill_null(0)
    found: Array = lengths.to_numpy(zero_copy_only=False)
    return found.astype(np.int64)


def _assemble(
    payload: ArrowArray, columns: list[tuple[_Property, ArrowArray]], *, new: bool
) -> tuple[ArrowArray, list[tuple[str, ...]], Array]:
    """Put properties in front of payloads; return the last fields of :class:`Slice`.

    A property that is null in a row has empty pieces there.
    """
    count = len(payload)
    # Where each property is present: a boolean for each row, or True for all rows.
    there = [_valid(array) if array.null_count else np.True_ for _, array in columns]
    heads: list[Array] = []
    offset: Any = 0
    present: Any = 0
    for (each, array), valid in zip(columns, there, strict=True):
        size: Any = np.dtype(FIXED[each.kind]).itemsize if each.kind in FIXED else _lengths(array)
        _check_limit(size, MAX_PROPERTY_VALUE)
        field = offset if new else size
        head = np.zeros(1 if np.ndim(field) == 0 else count, _PROPERTY)
        fill(head, PROPERTY, type=int(each.kind), valueField=field, nameLength=len(each.raw))
        heads.append(head)
        offset = offset + (len(each.raw) + size) * valid
        present = present + 1 * valid
    length = AREA.size + PROPERTY.size * present + offset
    _check_limit(length, MAX_PROPERTIES_AREA)
    area = np.zeros(1 if np.ndim(length) == 0 else count, _AREA)
    fill(
        area,
        AREA,
        propertyHeaderSize2x=PROPERTY.size // 2,
        headerSize2x=AREA.size // 2,
        areaWords=(length >> 2) + 1,
        numProperties=present,
    )
    any_present = np.asarray(present > 0)
    pieces = _RowPieces(count)
    pieces.fixed(_AREA, area, any_present)
    for head, valid in zip(heads, there, strict=True):
        pieces.fixed(_PROPERTY, head, valid)
    for (each, array), valid in zip(columns, there, strict=True):
        pieces.fixed(np.dtype(f"V{len(each.raw)}"), np.void(each.raw), valid)
        if each.kind in FIXED:
            pieces.fixed(np.dtype(FIXED[each.kind]), _numbers(array), valid)
        else:
            pieces.varying(array)
    if np.ndim(length) == 0 and any_present:
        padding = PADDING[int(length) & 3]
        pieces.fixed(np.dtype(f"V{len(padding)}"), np.void(padding))
    elif any_present.any():
        pieces.varying(_ALL_PADDINGS.take(to_arrow(np.where(any_present, length & 3, len(PADDING)))))
    pieces.varying(payload)
    return pieces.join(), *_schemas(columns, there, count)


def _schemas(
    columns: list[tuple[_Property, ArrowArray]], there: list[Any], count: int
) -> tuple[list[tuple[str, ...]], Array]:
    """Return the distinct sets of property names, and the index of each row's set."""
    schema_of = np.zeros(count, np.int64)
    for valid in there:
        if np.ndim(valid):
            schema_of = np.unique(schema_of * 2 + valid, return_inverse=True)[1]
    # In most tables all rows have the same properties, and the first row is the only example.
    firsts = np.unique(schema_of, return_index=True)[1].tolist() if schema_of.any() else [0]
    schemas = [
        tuple(
            sorted(
                each.name
                for (each, _), valid in zip(columns, there, strict=True)
                if np.broadcast_to(valid, count)[row]
            )
        )
        for row in firsts
    ]
    return schemas, schema_of


def _valid(array: ArrowArray) -> Array:
    """Return a boolean for each value: whether it is not null."""
    valid: Array = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _check_limit(size: Any, limit: int) -> None:
    if int(np.max(size)) > limit:
        raise InvalidProperty(f"{int(np.max(size))} bytes; at most {limit} are allowed")


def _numbers(array: ArrowArray) -> Array:
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    if array.null_count:
        array = array.fill_null(0)
    numbers: Array = array.to_numpy(zero_copy_only=False)
    if numbers.dtype == np.uint64 and len(numbers) and int(numbers.max()) >> 63:
        raise InvalidProperty(f"{int(numbers.max())} does not fit INT64 (64 bits)")
    return numbers


# The paddings, and the padding of a message without properties. pa.array and pa.scalar would import pandas.
_PADDING_ENDS = np.cumsum([0, *map(len, PADDING), 0], dtype=np.int32)
_ALL_PADDINGS = pa.Array.from_buffers(
    pa.binary(), len(PADDING) + 1, [None, pa.py_buffer(_PADDING_ENDS), pa.py_buffer(b"".join(PADDING))]
)
_NOTHING = _ALL_PADDINGS[len(PADDING)]


class _RowPieces:
    """The parts of each row, from left to right: columns of fixed and of variable width."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        # Adjacent values of fixed width that are not yet an array.
        self._open: list[tuple[np.dtype[Any], Any]] = []
        self._pieces: list[ArrowArray] = []

    def fixed(self, dtype: np.dtype[Any], values: Any, valid: Any = np.True_) -> None:
        """Add values of fixed width.

        Args:
            dtype: type of the values.
            values: a value for each row, or one for all rows.
            valid: whether each row has the value; one value for all rows, or one for each.
        """
        if np.ndim(valid) == 0:
            if valid:
                self._open.append((dtype, values))
            return
        self._close()
        rows = np.empty(self._rows, dtype)
        rows[:] = values
        self._pieces.append(_binary(rows[valid], valid))

    def varying(self, values: ArrowArray) -> None:
        """Add a binary or string array."""
        self._close()
        values = values if values.type == pa.binary() else values.cast(pa.binary())
        self._pieces.append(values.fill_null(_NOTHING) if values.null_count else values)

    def _close(self) -> None:
        if not self._open:
            return
        dtype = np.dtype([(f"f{at}", each) for at, (each, _) in enumerate(self._open)])
        rows = np.empty(self._rows, dtype)
        for at, (_, values) in enumerate(self._open):
            rows[f"f{at}"] = values
        self._open.clear()
        self._pieces.append(_binary(rows))

    def join(self) -> ArrowArray:
        """Return the joined rows as a binary array."""
        self._close()
        return pc.binary_join_element_wise(*self._pieces, _NOTHING)


def _binary(items: Array, valid: Array | None = None) -> ArrowArray:
    """Return items of fixed width as a binary array, without a copy; "" for rows that are not valid."""
    width = items.dtype.itemsize
    if valid is None:
        count, offsets = len(items), np.arange(0, (len(items) + 1) * width, width, dtype=np.int32)
    else:
        count, offsets = len(valid), np.zeros(len(valid) + 1, np.int32)
        np.cumsum(valid * width, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(items)])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EncodedPosts:
    """The messages of one PUT event, encoded except for the session's fields; created by ``encode_table``.

    Attributes:
        body: the messages, as words.
        ends: end of each message in the body.
        guids: the GUIDs, as for :meth:`of`.
        schemas: the distinct sets of property names.
        schema_of: for each message, the index of its set in ``schemas``.
        payload_bytes: size of the payloads in bytes.
    """

    body: Array
    ends: Array
    guids: Array | None
    schemas: list[tuple[str, ...]]
    schema_of: Array
    payload_bytes: int

    @classmethod
    def of(
        cls,
        some: Slice,
        rows: list[bytes],
        guids: Array | None = None,
        *,
        new: bool = True,
        compression: int = 0,
        **how: Any,
    ) -> EncodedPosts:
        """Encode messages.

        Args:
            some: the messages.
            rows: their application data, ``some.data`` as a list.
            guids: a GUID for each message, as an array of items of 16 bytes; None lets the session make them.
            new: whether properties are in the new encoding.
            compression: the requested compression; payloads that would not shrink stay plain.
            how: ``level`` and ``threshold``, as for :func:`bmq.wire.message.join_application_data`.
        """
        data, schemas, schema_of = some.data, some.schemas, some.schema_of
        has_properties = np.array([bool(each) for each in schemas])[schema_of]
        kinds: Any = 0
        if compression:
            join: Any = partial(join_application_data, new=new, compression=compression, **how)
            several = zip(rows, has_properties.tolist(), strict=True)
            heads = [properties_length(row) if there else 0 for row, there in several]
            packed = [join(row[at:], row[:at]) for row, at in zip(rows, heads, strict=True)]
            rows = [each for each, _ in packed]
            data, kinds = pa.array(rows, pa.binary()), np.array([kind for _, kind in packed])
        count = len(rows)
        sizes = _lengths(data)
        words = (sizes >> 2) + (_HEADER_WORDS + 1)
        headers = np.zeros(count, _PUT)
        fill(
            headers,
            PUT,
            flags=np.where(has_properties, _WITH_PROPERTIES, _PLAIN),
            messageWords=words,
            compressionAlgorithmType=kinds,
            headerWords=_HEADER_WORDS,
            messageGUID=np.void(UNSET_GUID) if guids is None else guids,
            crc32c=np.fromiter(map(crc32c, rows), np.uint32, count),
        )
        pieces = _RowPieces(count)
        pieces.fixed(_PUT, headers)
        pieces.varying(data)
        pieces.varying(_ALL_PADDINGS.take(to_arrow(sizes & 3)))
        joined = pieces.join()
        body = np.frombuffer(joined.buffers()[2], ">u4", int(words.sum()))
        if not new:
            schemas = [()] * len(schemas)
        return cls(body, np.cumsum(words), guids, schemas, schema_of, some.payload_bytes)

    def __len__(self) -> int:
        return len(self.ends)

    def select(self, rows: Sequence[int]) -> EncodedPosts:
        """Return some of the messages (at least one), with their GUIDs."""
        starts = np.concatenate(([0], self.ends[:-1]))
        body = np.concatenate([self.body[starts[row] : self.ends[row]] for row in rows])
        chosen = np.array(rows)
        words = (self.ends - starts)[chosen]
        guids = None if self.guids is None else self.guids[chosen]
        return EncodedPosts(body, np.cumsum(words), guids, self.schemas, self.schema_of[chosen], 0)

    def bind(
        self,
        queue_id: int,
        number: Callable[[tuple[str, ...]], int],
        new_guids: Callable[[int], bytes],
    ) -> PutEvent:
        """Return the event with the session's fields filled in; the encoded posts stay unchanged.

        Args:
            queue_id: the queue's qId.
            number: returns the schema id, in its wire form, for the names of properties.
            new_guids: returns the given number of GUIDs, concatenated.
        """
        count = len(self.ends)
        event = bytearray(HEADER_SIZE + self.body.nbytes)
        event[:HEADER_SIZE] = pack_event_header(len(event), EventType.PUT)
        np.frombuffer(event, ">u4", offset=HEADER_SIZE)[:] = self.body
        starts = np.full(count, HEADER_SIZE, np.int64)
        starts[1:] += self.ends[:-1] * 4
        bound: dict[str, Any] = {"queueId": queue_id, "schemaId": self._schema_ids(number)}
        guids = self.guids
        if guids is None:
            guids = np.frombuffer(new_guids(count), "V16")
            bound["messageGUID"] = guids
        rewrite(event, PUT, starts, **bound)
        acks = np.zeros(count, _ACK)
        fill(acks, ACK, messageGUID=guids, queueId=queue_id)
        ends = memoryview((self.ends * 4 + HEADER_SIZE).astype(np.uint64).tobytes()).cast("Q")
        # The last byte of each message is the number of its padding bytes.
        padded = len(event) - HEADER_SIZE - PUT.size * count
        size = padded - int(self.body.view(np.uint8)[self.ends * 4 - 1].sum())
        return PutEvent(bytes(event), ends, acks.tobytes(), size)

    def decoded(self) -> Iterator[tuple[bytes, dict[str, PropertyInput], bytes | None]]:
        """Yield payload, properties and GUID of each message; the GUID is None if the session makes it."""
        event = self.bind(0, lambda _: 1, lambda count: bytes(16 * count)).event
        for put in decode_puts(event, HEADER_SIZE):
            properties, payload = split_application_data(
                put.data,
                has_properties=bool(put.flags & PutFlags.MESSAGE_PROPERTIES),
                schema_id=put.schema_id,
                compression=put.compression,
            )
            types = properties.types
            values: dict[str, PropertyInput] = {
                name: PropertyValue(types[name], value) if types[name] in _NARROW else value
                for name, value in properties.items()
            }
            yield payload, values, None if self.guids is None else put.guid

    def _schema_ids(self, number: Callable[[tuple[str, ...]], int]) -> Array:
        """The schema id of each message. The first message with a new id introduces the id."""
        ids = np.zeros(len(self.schemas), np.uint32)
        introduced: list[int] = []
        # Request ids in the order of first use, so that the introducing message comes first.
        there, firsts = np.unique(self.schema_of, return_index=True)
        for at in np.argsort(firsts):
            names = self.schemas[there[at]]
            found = number(names) if names else 0
            if found & 1 and found > 1:
                introduced.append(int(firsts[at]))
            ids[there[at]] = found if found == 1 else found & ~1
        each = ids[self.schema_of]
        each[introduced] |= 1
        return each


def stream_of(table: Any) -> Any:
    """Return a ``pyarrow.RecordBatchReader`` over any object that exports Arrow data.

    Raises:
        UsageError: the object does not export Arrow data.
    """
    if isinstance(table, pa.RecordBatchReader):
        return table
    if hasattr(table, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(table)
    if hasattr(table, "__arrow_c_array__"):
        batch = pa.record_batch(table)
        return pa.RecordBatchReader.from_batches(batch.schema, [batch])
    raise UsageError(
        "a table must be a pyarrow Table, RecordBatch or RecordBatchReader, a DataFrame of pandas (2.2 or "
        f"newer) or Polars, or another object with __arrow_c_stream__, not {type(table).__name__}"
    )


def guids_in(
    column: ArrowArray, name: str, first: int, name_row: Callable[[int], str] = "row {}".format
) -> Array:
    """Return GUIDs from a column of 16-byte values, or of texts of 32 upper-case hexadecimal digits.

    Raises:
        UsageError: a value is malformed, null, or all zeros.
    """
    guids: list[bytes] = []
    for at, value in enumerate(_flattened(column).to_pylist()):
        guid: Any = value
        if isinstance(value, str) and len(value) == 32 and value == value.upper():
            try:
                guid = bytes.fromhex(value)
            except ValueError:
                guid = None
        if not isinstance(guid, bytes) or len(guid) != 16 or guid == UNSET_GUID:
            raise UsageError(
                f"{name_row(first + at)}: column {name!r} is {value!r:.60}, and a GUID must be 16 bytes or "
                "32 upper-case hexadecimal digits, not all zeros"
            )
        guids.append(guid)
    return np.frombuffer(b"".join(guids), "V16")


def encode_table(
    table: object,
    value: str,
    properties: Sequence[str],
    guid: str | Callable[[list[bytes]], Any] | None,
    name_row: Callable[[int], str],
    *,
    new: bool,
    **how: int,
) -> Iterator[EncodedPosts]:
    """Encode the rows of a table; see :meth:`bmq.Queue.encode_table` and :meth:`EncodedPosts.of`."""
    reader = stream_of(table)
    encoder = TableEncoder(reader.schema, value, properties, new=new, name_row=name_row)
    at = _find(reader.schema, guid) if isinstance(guid, str) else 0
    first = 0
    for batch in reader:
        for some in encoder.slices(batch, first):
            rows: list[bytes] = some.data.to_pylist()
            guids: Any = None
            if isinstance(guid, str):
                guids = guids_in(some.batch.column(at), guid, some.first, name_row)
            elif guid is not None:
                guids = _checked_guids(guid(rows), len(rows))
            yield EncodedPosts.of(some, rows, guids, new=new, **how)
        first += batch.num_rows


def _checked_guids(guids: Any, count: int) -> Any:
    """Return the GUIDs of a function as an array of items of 16 bytes."""
    array: Any = guids
    if not isinstance(guids, np.ndarray) or array.nbytes != 16 * count or len(array) != count:
        raise UsageError(
            f"guid must return a numpy array of 16 bytes for each of {count} messages, not "
            f"{_checks.shown(array)}"
        )
    return array
