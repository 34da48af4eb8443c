# SPDX-License-Identifier: Apache-2.0
"""Options of a PUSH message: its subscription ids."""

from __future__ import annotations

from bmq.errors import ProtocolError
from bmq.wire.codec import OPTION_HEADER, SUB_QUEUE_ID, SUB_QUEUE_INFO
from bmq.wire.constants import OptionType
from bmq.wire.notice import Notice

_OPTION = OPTION_HEADER.words("type+packed+typeSpecific+words")
_TYPE_SHIFT = _OPTION.shift("type")
_ID = SUB_QUEUE_ID.words("id")
_INFO = SUB_QUEUE_INFO.words("id", "unlimited+potentiallyPoisonous+remainingDeliveryAttempts")
# A packed option has the byte of remaining delivery attempts instead of its length.
_UNLIMITED = 1 << _INFO.shift("unlimited")
_ATTEMPTS = _INFO.mask("remainingDeliveryAttempts")
_TYPES = frozenset(map(int, OptionType))


class LimitedIds(tuple[int, ...]):
    """Subscription ids of a message with a limited number of delivery attempts.

    Attributes:
        attempts_left: remaining deliveries if the message is not confirmed.
    """

    attempts_left: int


def encode_sub_queue_ids(ids: tuple[int, ...]) -> bytes:
    """Return the option SUB_QUEUE_IDS_OLD, the form in which clients receive subscription ids."""
    header = _OPTION.pack(OptionType.SUB_QUEUE_IDS_OLD << _TYPE_SHIFT | 1 + len(ids))
    return b"".join([header, *map(_ID.pack, ids)])


def read_sub_queue_ids(options: bytes, offset: int = 0, notice: Notice | None = None) -> tuple[int, ...]:
    """Return the subscription ids in an options area; ``(0,)`` if the area has no ids.

    If the broker reports the remaining delivery attempts, the result is :class:`LimitedIds`. Options of other
    types are skipped.

    Args:
        options: the options area.
        offset: offset of the area in its event, for errors.
        notice: receives the unknown types, which are skipped.

    Raises:
        ProtocolError: an option's length does not fit the area or its type.
    """
    ids: list[int] = []
    attempts = _UNLIMITED
    position, end = 0, len(options)
    while position < end:
        if end - position < OPTION_HEADER.size:
            raise ProtocolError("truncated", field="OptionHeader", offset=offset + position)
        (header,) = _OPTION.unpack_from(options, position)
        kind = header >> _TYPE_SHIFT
        words = header & _OPTION.mask("words")
        if notice is not None and kind not in _TYPES:
            notice(f"options of type {kind} in PUSH messages")
        if header >> _OPTION.shift("packed") & 1:
            if kind == OptionType.SUB_QUEUE_INFOS:
                ids.append(0)
                attempts = words & (2 * _UNLIMITED - 1)
            position += OPTION_HEADER.size
            continue
        stop = position + words * 4
        if words <= 1 or stop > end:
            raise ProtocolError(
                f"{words} words do not fit the {end - position} bytes left",
                field="OptionHeader.words",
                offset=offset + position,
            )
        entries: range | None = None
        if kind == OptionType.SUB_QUEUE_IDS_OLD:
            entries = range(position + OPTION_HEADER.size, stop, SUB_QUEUE_ID.size)
        elif kind == OptionType.SUB_QUEUE_INFOS:
            stride = (header >> _OPTION.shift("typeSpecific") & _OPTION.mask("typeSpecific")) * 4
            if stride < SUB_QUEUE_ID.size or (stop - position - OPTION_HEADER.size) % stride:
                raise ProtocolError(
                    f"items of {stride} bytes do not fit {words} words",
                    field="OptionHeader.typeSpecific",
                    offset=offset + position,
                )
            entries = range(position + OPTION_HEADER.size, stop, stride)
        if entries and entries.step >= SUB_QUEUE_INFO.size:
            infos = [_INFO.unpack_from(options, at) for at in entries]
            ids.extend(number for number, _ in infos)
            attempts = infos[0][1]
        elif entries:
            ids.extend(_ID.unpack_from(options, at)[0] for at in entries)
        position = stop
    if not attempts & _UNLIMITED:
        limited = LimitedIds(ids)
        limited.attempts_left = attempts & _ATTEMPTS
        return limited
    return tuple(ids) or (0,)
