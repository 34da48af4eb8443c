# SPDX-License-Identifier: Apache-2.0
"""PUSH events as columns: numpy finds all positions, without an object for each message.

Results equal the results of :func:`bmq.wire.push.decode_push_runs`, as a property test checks. Rare cases and
precise errors are left to the latter decoder. The module needs numpy, so only modules for columns
import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

import numpy as np

from bmq.arrow.columns import PUSH, Array, at_offsets, column, dtype_of
from bmq.errors import ProtocolError
from bmq.wire.codec import PUSH_HEADER
from bmq.wire.options import read_sub_queue_ids
from bmq.wire.push import COMPRESSION, DATA, FLAGS, GUID, RARE_FLAGS, SUB_IDS, Push

_PUSH = dtype_of(PUSH)
_SIZE = PUSH_HEADER.size
# The word with the length of a message. Lengths are compared in columns if the declaration has the word.
_LENGTH = PUSH_HEADER.words("flags+messageWords")
_LENGTH_AT = PUSH_HEADER.offset_of("flags")
_unpack_word = _LENGTH.unpack_from
_WORDS_MASK = _LENGTH.mask("messageWords")
# Old brokers send headers that end before the schema id.
_MIN_HEADER = PUSH_HEADER.end_of(
    "messageWords", "optionsWords", "compressionAlgorithmType", "headerWords", "queueId", "messageGUID"
)
_WITH_SCHEMA_ID = PUSH_HEADER.end_of("schemaId")


@dataclass(frozen=True, slots=True, eq=False)
class PushColumns:
    """Messages of PUSH events, with an array for each field.

    Attributes:
        buffer: bytes that contain the application data of all messages.
        sub_ids: the distinct sets of subscription ids.
        starts: start of each message's data; never before the end of the previous message's data.
        stops: end of each message's data, without the padding.
        guids: the GUIDs, items of 16 bytes.
        flags: :class:`PushFlags` bits.
        schema_ids: 0 for the old property encoding, any different value for the new encoding.
        compressions: the CAT fields; a :class:`~bmq.wire.shape.Flaw` for an unreadable message.
        queue_ids: the qId of each message.
        sub_ids_of: for each message, the index of the message's set in ``sub_ids``.
    """

    buffer: bytes
    sub_ids: list[tuple[int, ...]]
    starts: Array
    stops: Array
    guids: Array
    flags: Array
    schema_ids: Array
    compressions: Array
    queue_ids: Array
    sub_ids_of: Array

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.starts)

    @property
    def size(self) -> int:
        """The size in bytes of the application data as transmitted."""
        return int((self.stops - self.starts).sum())

    @classmethod
    def of(cls, messages: Sequence[Push]) -> PushColumns:
        """Make columns from decoded messages."""
        count = len(messages)
        lengths = np.fromiter([len(each[DATA]) for each in messages], np.int64, count)
        stops = np.cumsum(lengths)
        # Compare by identity: ids with a number of remaining deliveries equal the same ids without.
        known = {id(each[SUB_IDS]): each[SUB_IDS] for each in messages}
        places = {key: place for place, key in enumerate(known)}
        which = [places[id(each[SUB_IDS])] for each in messages]
        return cls(
            b"".join([each[DATA] for each in messages]),
            list(known.values()),
            stops - lengths,
            stops,
            np.frombuffer(b"".join([each[GUID] for each in messages]), "V16"),
            np.fromiter([each[FLAGS] for each in messages], np.uint8, count),
            np.fromiter([each[4] for each in messages], np.uint16, count),
            np.fromiter([each[COMPRESSION] for each in messages], np.uint8, count),
            np.fromiter([each[0] for each in messages], np.int32, count),
            np.array(which, np.int64),
        )

    @classmethod
    def concat(cls, parts: Sequence[PushColumns]) -> PushColumns:
        """Concatenate columns; at least one part is required."""
        if len(parts) == 1:
            return parts[0]
        starts, stops, *rows, sub_ids_of = map(np.concatenate, zip(*map(_rows, parts), strict=True))
        counts = [len(part.starts) for part in parts]
        shifts = np.cumsum([0, *[len(part.buffer) for part in parts[:-1]]]).repeat(counts)
        sub_ids_of += np.cumsum([0, *[len(part.sub_ids) for part in parts[:-1]]]).repeat(counts)
        sub_ids = [ids for part in parts for ids in part.sub_ids]
        buffer = b"".join([part.buffer for part in parts])
        made: list[Any] = [buffer, sub_ids, starts + shifts, stops + shifts, *rows, sub_ids_of]
        return cls(*made)

    def part(self, start: int, stop: int) -> PushColumns:
        """Return the messages of these rows."""
        return self.select(slice(start, stop))

    def select(self, rows: Array | slice) -> PushColumns:
        """Return some of the messages; the rows must be ascending."""
        return PushColumns(self.buffer, self.sub_ids, *[each[rows] for each in _rows(self)])

    def trimmed(self) -> PushColumns:
        """Return the same messages in a buffer without unused bytes."""
        if not self.count:
            return self
        first, last = int(self.starts[0]), int(self.stops[-1])
        if last - first == len(self.buffer):
            return self
        return replace(
            self, buffer=self.buffer[first:last], starts=self.starts - first, stops=self.stops - first
        )

    def data(self, row: int) -> bytes:
        """Return the application data of one message."""
        return self.buffer[self.starts[row] : self.stops[row]]

    def routes(self) -> list[tuple[int, tuple[int, ...], PushColumns]]:
        """Return the messages grouped by qId and subscription ids; each group keeps the order of messages."""
        queue_ids, sub_ids_of = self.queue_ids, self.sub_ids_of
        one_queue = bool((queue_ids == queue_ids[0]).all())
        if one_queue and len(self.sub_ids) == 1:
            return [(int(queue_ids[0]), self.sub_ids[0], self)]
        keys = queue_ids.astype(np.int64) << 32 | sub_ids_of
        _, firsts, which = np.unique(keys, return_index=True, return_inverse=True)
        return [
            (int(queue_ids[first]), self.sub_ids[sub_ids_of[first]], self.select(np.flatnonzero(which == at)))
            for at, first in enumerate(firsts.tolist())
        ]

    def pushes(self) -> Iterator[Push]:
        """The messages as tuples."""
        buffer, sub_ids = self.buffer, self.sub_ids
        rows = zip(*[each.tolist() for each in _rows(self)], strict=True)
        for start, stop, guid, flags, schema_id, compression, queue_id, ids in rows:
            yield queue_id, sub_ids[ids], guid, flags, schema_id, compression, buffer[start:stop]


#: Returns the arrays with an item for each message.
_rows: Callable[[PushColumns], tuple[Array, ...]] = attrgetter(
    *[each.name for each in fields(PushColumns) if each.name not in ("buffer", "sub_ids")]
)


def read_push_columns(event: bytes, body: int, least: int = 1) -> PushColumns | None:
    """Return every PUSH message of an event, or None if messages have to be read singly.

    The result is None for a malformed event, an event with unknown content or with messages without data, and
    an event of too few messages.

    Args:
        event: the event.
        body: offset of the body.
        least: smallest number of messages to read as columns.
    """
    offsets = _find(event, body)
    if offsets is None or len(offsets) < least:
        return None
    headers = at_offsets(event, _PUSH, offsets)
    flags = column(headers, PUSH, "flags")
    header_words = column(headers, PUSH, "headerWords")
    compressions = column(headers, PUSH, "compressionAlgorithmType")
    options = offsets + header_words.astype(np.int64) * 4
    starts = options + column(headers, PUSH, "optionsWords").astype(np.int64) * 4
    ends = np.empty_like(offsets)
    ends[:-1] = offsets[1:]
    ends[-1] = len(event)
    paddings = np.frombuffer(event, np.uint8)[ends - 1]
    stops = ends - paddings
    if (
        int(header_words.min()) * 4 < _MIN_HEADER
        or bool((flags & RARE_FLAGS).any())
        or int(paddings.min()) < 1
        or int(paddings.max()) > 4
        or bool((starts >= stops).any())
    ):
        return None
    found = _read_options(event, options, starts)
    if found is None:
        return None
    schema_ids = column(headers, PUSH, "schemaId").astype(np.uint16)
    if int(header_words.min()) * 4 < _WITH_SCHEMA_ID:
        schema_ids[header_words.astype(np.int64) * 4 < _WITH_SCHEMA_ID] = 0
    sub_ids, sub_ids_of = found
    return PushColumns(
        event,
        sub_ids,
        starts,
        stops,
        np.ascontiguousarray(column(headers, PUSH, "messageGUID")),
        flags.astype(np.uint8),
        schema_ids,
        compressions.astype(np.uint8),
        column(headers, PUSH, "queueId").astype(np.int32),
        sub_ids_of,
    )


def _find(event: bytes, body: int) -> Array | None:
    """Return the starts of the messages; None unless they fill the event, each with room for a header."""
    end, final = len(event), len(event) - _SIZE
    if body > final:
        return None
    first = _unpack_word(event, body)[0] & _WORDS_MASK
    length = first * 4
    if length >= _SIZE and not (end - body) % length:
        # Most producers send messages of one length.
        words: Array = np.ndarray(((end - body) // length,), ">u4", event, body + _LENGTH_AT, (length,))
        if bool((words & _WORDS_MASK == first).all()):
            return np.arange(body, end, length, dtype=np.int64)
    offsets: list[int] = []
    offset = body
    while offset <= final:
        offsets.append(offset)
        length = (_unpack_word(event, offset)[0] & _WORDS_MASK) * 4
        if length < _SIZE:
            return None
        offset += length
    return np.array(offsets, np.int64) if offset == end else None


def _read_options(event: bytes, starts: Array, stops: Array) -> tuple[list[tuple[int, ...]], Array] | None:
    """Return the sets of subscription ids, and each message's set; None if an option is unreadable."""
    length = int(stops[0] - starts[0])
    areas: list[bytes]
    if not bool((stops - starts == length).all()):
        each = [event[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        places: dict[bytes, int] = {}
        which = np.array([places.setdefault(area, len(places)) for area in each], np.int64)
        areas = list(places)
    elif not length:
        areas, which = [b""], np.zeros(len(starts), np.int64)
    else:
        words = at_offsets(event, np.dtype((">u4", (length // 4,))), starts)
        if bool((words == words[0]).all()):
            areas, which = [words[0].tobytes()], np.zeros(len(starts), np.int64)
        else:
            found, which = np.unique(words, axis=0, return_inverse=True)
            areas, which = [area.tobytes() for area in found], which.reshape(-1)
    unknown: list[str] = []
    try:
        ids = [read_sub_queue_ids(area, 0, unknown.append) for area in areas]
    except ProtocolError:
        return None
    return None if unknown else (ids, which)
