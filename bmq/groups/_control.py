# SPDX-License-Identifier: Apache-2.0
"""Reports, orders and crowns as messages of a control queue: JSON, with receiver and sender in properties."""

from __future__ import annotations

import msgspec

from bmq import _world
from bmq.conventions import GROUP_MEMBER as TO
from bmq.conventions import GROUP_SENDER as FROM
from bmq.errors import ProtocolError
from bmq.groups._protocol import Crown, Order, Report

__all__ = ["FROM", "TO", "decoded", "encoded"]


# Bytes of a message that names as many members as a crown may.
_LONGEST = 2 * 1024 * 1024


class _Sender(msgspec.Struct):
    group: str = ""
    time: float = 0.0


_message = msgspec.json.Decoder(Report | Order | Crown)
_sender = msgspec.json.Decoder(_Sender)


def encoded(message: Report | Order | Crown, group: str = "") -> bytes:
    """Return the payload of a control message, with the present time of the sender's clock.

    ``group`` is the expression of the sender's first bucket.
    """
    return msgspec.json.encode({**msgspec.to_builtins(message), "group": group, "time": _world.time()})


def decoded(payload: bytes) -> tuple[Report | Order | Crown, str, float]:
    """Return the message of a payload, the expression of the sender's first bucket, and the sender's time.

    Raises:
        ProtocolError: the payload is not a control message of this version, or a value is out of its range.
    """
    try:
        if len(payload) > _LONGEST:
            raise ValueError(f"it has {len(payload)} bytes")
        sender = _sender.decode(payload)
        return _message.decode(payload), sender.group, sender.time
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"{payload[:100]!r} is not a control message of a group: {error}") from error
