# SPDX-License-Identifier: Apache-2.0
"""Options of a PUSH message: which subscriptions it is for."""

from __future__ import annotations

from bmq.errors import ProtocolError
from bmq.wire.codec import OPTION_HEADER, SUB_QUEUE_ID
from bmq.wire.constants import OptionType
from bmq.wire.notice import Notice

__all__ = ["LimitedIds", "encode_sub_queue_ids", "read_sub_queue_ids"]

_pack_ids = OPTION_HEADER.packer(type=OptionType.SUB_QUEUE_IDS_OLD, packed=0, typeSpecific=0)
_unpack = OPTION_HEADER.unpack_from
_unpack_id = SUB_QUEUE_ID.unpack_from


# In the byte of remaining delivery attempts: the bit that says "unlimited", and the bits of the number.
_UNLIMITED, _ATTEMPTS = 0x80, 0x3F
_TYPES = frozenset(map(int, OptionType))


class LimitedIds(tuple[int, ...]):
    """Subscription ids of a message that is delivered a limited number of times.

    Attributes:
        attempts_left: how many more times it is delivered if it is not confirmed.
    """

    attempts_left: int


def encode_sub_queue_ids(ids: tuple[int, ...]) -> bytes:
    """Return the option SUB_QUEUE_IDS_OLD, the form in which clients receive subscription ids."""
    return b"".join([_pack_ids(1 + len(ids)), *map(SUB_QUEUE_ID.pack, ids)])


def read_sub_queue_ids(options: bytes, offset: int = 0, notice: Notice | None = None) -> tuple[int, ...]:
    """Return the subscription ids that an options area names; ``(0,)`` when it names none.

    They are :class:`LimitedIds` where the broker says how many delivery attempts are left. Options of other
    types are skipped.

    Args:
        options: the options area.
        offset: where it starts in its event, for the error.
        notice: receives the unknown types, which are skipped.

    Raises:
        ProtocolError: an option's length does not fit the area or its type.
    """
    ids: list[int] = []
    attempts = _UNLIMITED
    position, end = 0, len(options)
    while position < end:
        if end - position < OPTION_HEADER.size:
            raise ProtocolError("cut short", field="OptionHeader", offset=offset + position)
        kind, packed, specific, words = _unpack(options, position)
        if notice is not None and kind not in _TYPES:
            notice(f"options of type {kind} in PUSH messages")
        if packed:
            if kind == OptionType.SUB_QUEUE_INFOS:
                ids.append(0)
                attempts = words & 0xFF
            position += OPTION_HEADER.size
            continue
        stop = position + words * 4
        if words <= 1 or stop > end:
            raise ProtocolError(
                f"{words} words do not fit the {end - position} bytes left",
                field="OptionHeader.words",
                offset=offset + position,
            )
        stride = 0
        if kind == OptionType.SUB_QUEUE_IDS_OLD:
            stride = SUB_QUEUE_ID.size
        elif kind == OptionType.SUB_QUEUE_INFOS:
            stride = specific * 4
            if stride < SUB_QUEUE_ID.size or (stop - position - OPTION_HEADER.size) % stride:
                raise ProtocolError(
                    f"items of {stride} bytes do not fit {words} words",
                    field="OptionHeader.typeSpecific",
                    offset=offset + position,
                )
            if stride > SUB_QUEUE_ID.size:
                attempts = options[position + OPTION_HEADER.size + SUB_QUEUE_ID.size]
        if stride:
            ids.extend(
                _unpack_id(options, at)[0] for at in range(position + OPTION_HEADER.size, stop, stride)
            )
        position = stop
    if not attempts & _UNLIMITED:
        limited = LimitedIds(ids)
        limited.attempts_left = attempts & _ATTEMPTS
        return limited
    return tuple(ids) or (0,)
