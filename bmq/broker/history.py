"""GUIDs of messages that are gone, remembered for a while: a message posted again is not stored again.

There may be a million of them, so they are kept as bare bytes in a few large pieces, some 35 bytes each;
an object in a dictionary takes over 100. They are entered when their message goes: no small object that stays
for minutes is made among those that go at once, where each would keep a megabyte from being given back.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import Final

__all__ = ["Era", "History", "Slot"]

_GUID: Final = 16
_STAMP: Final = 4
_RECORD: Final = _GUID + _STAMP
#: The records there is room for at first, and how much room is added when it is used up.
_SMALLEST: Final = 10
_GROWTH: Final = 3
#: Messages that come within one second share a slot, so many of them at most.
_SLOT_SIZE: Final = 8192
#: How many eras a window, or the limit of what is remembered, is divided into.
_ERAS_A_WINDOW: Final = 2
_ERAS_A_LIMIT: Final = 4
_NEVER: Final = float("-inf")


class Slot:
    """The messages of one second, or some of them: what they need to be remembered by.

    Attributes:
        era: where their GUIDs go.
        stamp: the second, as it is written behind a GUID.
    """

    __slots__ = ("era", "stamp")

    def __init__(self, era: Era, second: int) -> None:
        self.era = era
        self.stamp = (second - era.start).to_bytes(_STAMP, "big")


class Era:
    """The GUIDs of messages that came within some time and are gone.

    They stand one behind the other, each with its second behind it; an index of open addressing says where.

    Args:
        start: the second it begins with.
        records: what is to hold the GUIDs; empty.

    Attributes:
        start: the second it begins with.
        seconds: how many seconds later its last messages came.
        open: whether it is still of use.
    """

    __slots__ = ("_arrivals", "_index", "_records", "open", "seconds", "start")

    def __init__(self, start: int, records: bytearray) -> None:
        self.start = start
        self.seconds = 0
        self.open = True
        self._arrivals = array("Q", [0])
        self._records = records
        # At the place of a GUID's hash, or the next free one: its number, from 1.
        self._index = array("I", [0])

    def __len__(self) -> int:
        return len(self._records) // _RECORD

    @property
    def arrivals(self) -> int:
        """How many messages came in it, those of a slot that is not finished not counted."""
        return self._arrivals[0]

    def count(self, arrivals: int) -> None:
        """Add to the arrivals."""
        self._arrivals[0] += arrivals

    def clear(self) -> None:
        """Forget everything so far."""
        self._records.clear()
        self._index[:] = array("I", [0])

    def close(self) -> bytearray:
        """Forget everything, remember nothing more, and return what held the GUIDs."""
        self.clear()
        self.open = False
        return self._records

    def add(self, guid: bytes, stamp: bytes) -> None:
        """Remember a GUID that came in the slot of this stamp."""
        records, index = self._records, self._index
        number, size = len(records) // _RECORD + 1, len(index)
        if number * 3 > size * 2:
            size = self._grow()
        records += guid + stamp
        mask = size - 1
        place = hash(guid) & mask
        while index[place]:
            place = place + 1 & mask
        index[place] = number

    def has(self, guid: bytes, oldest: float) -> bool:
        """Whether a GUID is remembered that came in this second or later."""
        index, records = self._index, self._records
        mask = len(index) - 1
        place = hash(guid) & mask
        while number := index[place]:
            stop = number * _RECORD
            if records.startswith(guid, stop - _RECORD):
                second = self.start + int.from_bytes(records[stop - _STAMP : stop], "big")
                if second >= oldest:
                    return True
            place = place + 1 & mask
        return False

    def _grow(self) -> int:
        """Make the index anew, larger, and return its size."""
        # What came is going to go: with room for as many the index need not grow again.
        wanted = max(_SMALLEST, self.arrivals, len(self) * _GROWTH)
        size = 1 << (wanted * 3 // 2).bit_length()
        index, mask, records = self._index, size - 1, self._records
        index[:] = array("I", bytes(index.itemsize * size))
        for number in range(1, len(self) + 1):
            stop = number * _RECORD
            place = hash(bytes(records[stop - _RECORD : stop - _STAMP])) & mask
            while index[place]:
                place = place + 1 & mask
            index[place] = number
        return size


class History:
    """The GUIDs a queue remembers.

    Time is divided into eras, so that what is forgotten is forgotten by the thousands, at no cost.

    Args:
        window: for how many seconds after its arrival a GUID is remembered; 0 for none at all.
        limit: how many are remembered at most.
    """

    __slots__ = ("_end", "_eras", "_now", "_room", "_slot", "_spare", "limit", "window")

    def __init__(self, window: float, limit: int) -> None:
        self.window = window
        self.limit = limit
        self._eras: deque[Era] = deque()
        # Objects as large as a message's GUID: to be used again, lest new ones stay among those.
        self._spare = [bytearray() for _ in range(_ERAS_A_WINDOW)]
        # The slot of messages that come now, up to when it lasts, and how many messages still fit it.
        self._slot: Slot | None = None
        self._end = 0
        self._room = 0
        # The time of the last look at what is over.
        self._now = _NEVER

    def __len__(self) -> int:
        return sum(map(len, self._eras))

    def __contains__(self, guid: bytes) -> bool:
        """Whether a GUID is remembered of a message that is gone."""
        oldest = self._now - self.window - 1
        return any(era.has(guid, oldest) for era in self._eras)

    def slot_for(self, arrival: float) -> Slot | None:
        """Return the slot of a message that comes now."""
        if self._room and arrival < self._end:
            self._room -= 1
            return self._slot
        return self._begin(int(arrival)) if self.window else None

    def _begin(self, second: int) -> Slot:
        self._finish()
        eras = self._eras
        era = eras[-1] if eras else None
        if (
            era is None
            or era.arrivals >= max(self.limit // _ERAS_A_LIMIT, _SLOT_SIZE)
            or not 0 <= second - era.start <= self.window / _ERAS_A_WINDOW
        ):
            era = Era(second, self._spare.pop() if self._spare else bytearray())
            eras.append(era)
        era.seconds = max(era.seconds, second - era.start)
        self._slot = slot = Slot(era, second)
        self._end = second + 1
        self._room = _SLOT_SIZE - 1
        return slot

    def _finish(self) -> None:
        """Put nothing more into the slot."""
        if self._slot is not None:
            self._slot.era.count(_SLOT_SIZE - self._room)
            self._slot = None
            self._end = self._room = 0

    def forget(self, now: float) -> None:
        """Drop what came before the window, and the oldest where there is too much."""
        self._now = now
        if now >= self._end:
            self._finish()
        eras, oldest = self._eras, now - self.window - 1
        while eras and (eras[0].start + eras[0].seconds < oldest or len(self) > self.limit):
            if self._slot is not None and self._slot.era is eras[0]:
                self._finish()
            self._close_first()

    def set_window(self, window: float) -> None:
        """Change for how long GUIDs are remembered."""
        self._finish()
        self.window = window

    def clear(self) -> None:
        """Drop everything so far; messages that are stored will be remembered."""
        for era in self._eras:
            era.clear()

    def close(self) -> None:
        """Drop everything; messages that came so far will not be remembered."""
        self._finish()
        while self._eras:
            self._close_first()

    def _close_first(self) -> None:
        records = self._eras.popleft().close()
        if len(self._spare) < _ERAS_A_WINDOW:
            self._spare.append(records)
