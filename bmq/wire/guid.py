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

__all__ = ["GuidGenerator", "client_id_from", "guid_from_text", "guid_to_text"]

_VERSION = 1
_COUNTER_BITS = MESSAGE_GUID.fields["counter"].bits
_COUNTER_MASK = MESSAGE_GUID.fields["counter"].mask
_TICK_BITS = MESSAGE_GUID.fields["timerTick"].bits
_TICK_MASK = MESSAGE_GUID.fields["timerTick"].mask
# The counter ends in the middle of a 32 bit word: the tick is cut where that word ends.
_PREFIX_BYTES = 4
_LOW_TICK_BITS = 2 + _COUNTER_BITS + _TICK_BITS - _PREFIX_BYTES * 8
_LOW_TICK_MASK = (1 << _LOW_TICK_BITS) - 1
_HIGH_TICK_BITS = _TICK_BITS - _LOW_TICK_BITS
_TEXT = re.compile(r"[0-9A-F]{32}\Z")


class GuidGenerator:
    """Makes the GUIDs of one client.

    Args:
        client_id: six bytes that no other client shares.

    The counter alone makes 4 million GUIDs distinct within one tick; the tick is a parameter, so that
    nothing here reads a clock.
    """

    __slots__ = ("_base", "_counter", "_suffix", "_tick", "client_id")

    def __init__(self, client_id: bytes) -> None:
        if len(client_id) != 6:
            raise ValueError(f"a client id has 6 bytes, not {len(client_id)}")
        self.client_id = client_id
        self._counter = 0
        self._tick = -1

    def next(self, tick: int) -> bytes:
        """Return a new GUID.

        Args:
            tick: nanoseconds since the generator was made, from a monotonic clock.
        """
        if tick != self._tick:
            # Everything but the counter stays the same as long as the tick does.
            self._tick = tick
            self._base = (_VERSION << _COUNTER_BITS + _TICK_BITS | tick & _TICK_MASK) >> _LOW_TICK_BITS
            self._suffix = (tick & _LOW_TICK_MASK).to_bytes(_LOW_TICK_BITS // 8, "big") + self.client_id
        counter = self._counter
        self._counter = counter + 1 & _COUNTER_MASK
        return (self._base | counter << _HIGH_TICK_BITS).to_bytes(_PREFIX_BYTES, "big") + self._suffix

    def next_many(self, tick: int, count: int) -> bytes:
        """Return new GUIDs, one behind the other: the same as :meth:`next` would make.

        Args:
            tick: as for :meth:`next`.
            count: how many.
        """
        if not count:
            return b""
        guids = bytearray(self.next(tick) * count)
        first = self._counter - 1 & _COUNTER_MASK
        # What differs is the word at the beginning, and that counts up; the counter may begin anew.
        step = 1 << _HIGH_TICK_BITS
        whole = range(self._base, self._base + (_COUNTER_MASK + 1) * step, step)
        words = array("I", whole[first : first + count])
        while len(words) < count:
            words.extend(whole[: count - len(words)])
        if sys.byteorder == "little":
            words.byteswap()
        raw = words.tobytes()
        for at in range(_PREFIX_BYTES):
            guids[at::16] = raw[at::_PREFIX_BYTES]
        self._counter = first + count & _COUNTER_MASK
        return bytes(guids)

    def next_list(self, tick: int, count: int) -> list[bytes]:
        """Return the same in a list."""
        if count == 1:
            return [self.next(tick)]
        guids = self.next_many(tick, count)
        return [guids[at : at + 16] for at in range(0, count * 16, 16)]

    @property
    def client_id_text(self) -> str:
        """The client id as negotiation wants it: 12 upper-case hexadecimal digits."""
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
    """Return a GUID's text form: 32 upper-case hexadecimal digits."""
    return guid.hex().upper()


def guid_from_text(text: object) -> bytes:
    """Return the GUID that ``text`` spells.

    Raises:
        UsageError: the text is not 32 upper-case hexadecimal digits, or spells the unset GUID.
    """
    if not isinstance(text, str) or not _TEXT.match(text):
        hint = "; bytes are spelled guid.hex().upper()" if isinstance(text, bytes) else ""
        raise UsageError(
            "a message GUID is a str of 32 upper-case hexadecimal digits, as message.guid is, "
            f"not {_checks.shown(text)}{hint}"
        )
    guid = bytes.fromhex(text)
    if guid == UNSET_GUID:
        raise UsageError("the message GUID of all zeros means 'unset' and cannot be used")
    return guid
