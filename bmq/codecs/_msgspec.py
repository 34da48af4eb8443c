# SPDX-License-Identifier: Apache-2.0
"""Codecs that msgspec does: JSON of its structs, MessagePack of all types it knows."""

from __future__ import annotations

from typing import Any

from bmq.codecs._media_types import JSON, MSGPACK
from bmq.errors import UsageError

try:
    import msgspec
except ModuleNotFoundError:
    raise UsageError(
        "MessagePack, and the structs of msgspec, need msgspec: pip install 'bmq[msgspec]'"
    ) from None

__all__ = ["MsgspecJson", "MsgspecPack"]


class MsgspecJson:
    """JSON by msgspec: of its own structs, and of all other types it knows.

    Structs have it by themselves. For dataclasses it is a choice::

        orders = queue.typed(Order, codec=bmq.codecs.MsgspecJson(Order))

    It reads them three to six times as fast as the codec that they have by themselves, with what msgspec
    checks and says: a dataclass is filled without calling its ``__init__``, and errors are in other words.

    Args:
        of: the type of the values.

    Raises:
        UsageError: msgspec does not know the type, or is not installed.

    Attributes:
        content_type: ``application/json``.
        encode: returns the payload of a value.
        decode: returns the value of a payload.
    """

    content_type = JSON

    def __init__(self, of: Any) -> None:
        try:
            self.decode = msgspec.json.Decoder(of).decode
        except TypeError as error:
            raise UsageError(f"msgspec has no JSON for {of!r}: {error}") from None
        self.encode = msgspec.json.Encoder().encode


class MsgspecPack:
    """MessagePack.

    Raises:
        UsageError: msgspec does not know the type.
    """

    content_type = MSGPACK

    def __init__(self, of: Any) -> None:
        try:
            self.decode = msgspec.msgpack.Decoder(of).decode
        except TypeError as error:
            raise UsageError(f"no MessagePack for {of!r}: {error}") from None
        self.encode = msgspec.msgpack.Encoder().encode
