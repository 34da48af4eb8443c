# SPDX-License-Identifier: Apache-2.0
"""Message GUIDs: 16 bytes, unique by client id, nanosecond tick and counter."""

from __future__ import annotations

import hashlib
import re
import sys
from array import array

from bmq import _checks
from bmq.errors import UsageError
from bmq.wire.codec import MESSAGE_GUID
from bmq.wire.constants import UNSET_GUID

_VERSION = 1
_SIZE = MESSAGE_GUID.size
_COUNTER_MASK = MESSAGE_GUID.fields["counter"].mask
_TICK_MASK = MESSAGE_GUID.fields["timerTick"].mask
# The shifts of the fields in the GUID as an integer, and the bytes of the counter.
_COUNTER_SHIFT = MESSAGE_GUID.shift("counter")
_TICK_SHIFT = MESSAGE_GUID.shift("timerTick")
_COUNTER_START = MESSAGE_GUID.offset_of("counter")
_COUNTER_STOP = MESSAGE_GUID.end_of("counter")
_WORD = 4
_TEXT = re.compile(r"[0-9A-F]{32}\Z")


class GuidGenerator:
    """Makes the GUIDs of one client.

    Args:
        client_id: six bytes, unique to this client.

    The counter alone distinguishes 4 million GUIDs within one tick. The tick is a parameter, so this module
    reads no clock.
    """

    __slots__ = ("_base", "_counter", "_fixed", "_tick", "client_id")

    def __init__(self, client_id: bytes) -> None:
        if len(client_id) != 6:
            raise ValueError(f"a client id must have 6 bytes, not {len(client_id)}")
        self.client_id = client_id
        self._counter = 0
        self._tick = -1
        self._fixed = _VERSION << MESSAGE_GUID.shift("version")
        self._fixed |= int.from_bytes(client_id, "big") << MESSAGE_GUID.shift("clientId")

    def next(self, tick: int) -> bytes:
        """Return a new GUID.

        Args:
            tick: nanoseconds since the creation of the generator, from a monotonic clock.
        """
        if tick != self._tick:
            # While the tick stays the same, only the counter changes.
            self._tick = tick
            self._base = self._fixed | (tick & _TICK_MASK) << _TICK_SHIFT
        counter = self._counter
        self._counter = counter + 1 & _COUNTER_MASK
        return (self._base | counter << _COUNTER_SHIFT).to_bytes(_SIZE, "big")

    def next_many(self, tick: int, count: int) -> bytes:
        """Return new GUIDs, concatenated, equal to ``count`` calls of :meth:`next`.

        Args:
            tick: as for :meth:`next`.
            count: number of GUIDs.
        """
        if not count:
            return b""
        guids = bytearray(self.next(tick) * count)
        first = self._counter - 1 & _COUNTER_MASK
        # Only the bytes with the counter differ. The counter may wrap around.
        below = (_SIZE - _COUNTER_STOP) * 8
        step = 1 << _COUNTER_SHIFT - below
        base = self._base >> below & (1 << (_COUNTER_STOP - _COUNTER_START) * 8) - 1
        whole = range(base, base + (_COUNTER_MASK + 1) * step, step)
        words = array("I", whole[first : first + count])
        while len(words) < count:
            words.extend(whole[: count - len(words)])
        if sys.byteorder == "little":
            words.byteswap()
        raw = words.tobytes()
        for at in range(_COUNTER_START, _COUNTER_STOP):
            guids[at::_SIZE] = raw[_WORD - _COUNTER_STOP + at :: _WORD]
        self._counter = first + count & _COUNTER_MASK
        return bytes(guids)

    def next_list(self, tick: int, count: int) -> list[bytes]:
        """Return the GUIDs of :meth:`next_many` as a list."""
        if count == 1:
            return [self.next(tick)]
        guids = self.next_many(tick, count)
        return [guids[at : at + _SIZE] for at in range(0, count * _SIZE, _SIZE)]

    @property
    def client_id_text(self) -> str:
        """The client id in the format of the negotiation: 12 upper-case hexadecimal digits."""
        return self.client_id.hex().upper()


def client_id_from(host: str, nanoseconds: int, pid: int, session: int) -> bytes:
    """Derive a client id from values that together differ between any two sessions."""
    seed = b"".join(
        (
            host.encode("utf-8", "surrogateescape"),
            nanoseconds.to_bytes(8, "big", signed=True),
            pid.to_bytes(4, "big"),
            session.to_bytes(4, "big"),
        )
    )
    return hashlib.md5(seed, usedforsecurity=False).digest()[:6]


def guid_to_text(guid: bytes) -> str:
    """Return a GUID as text: 32 upper-case hexadecimal digits."""
    return guid.hex().upper()


def guid_from_text(text: object) -> bytes:
    """Return the GUID for a text of 32 digits.

    Raises:
        UsageError: the text is not 32 upper-case hexadecimal digits, or is the unset GUID.
    """
    if not isinstance(text, str) or not _TEXT.match(text):
        hint = "; convert bytes with guid.hex().upper()" if isinstance(text, bytes) else ""
        raise UsageError(
            "a message GUID must be a str of 32 upper-case hexadecimal digits, like message.guid, not "
            f"{_checks.shown(text)}{hint}"
        )
    guid = bytes.fromhex(text)
    if guid == UNSET_GUID:
        raise UsageError("the message GUID of all zeros means 'unset' and cannot be used")
    return guid
