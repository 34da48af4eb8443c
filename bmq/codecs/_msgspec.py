# SPDX-License-Identifier: Apache-2.0
"""Codecs through msgspec: JSON of msgspec's structs, and MessagePack of all supported types."""

from __future__ import annotations

from typing import Any

import msgspec

from bmq.codecs._media_types import JSON, MSGPACK
from bmq.errors import UsageError

__all__ = ["MsgspecJson", "MsgspecPack"]


class MsgspecJson:
    """JSON through msgspec: of its own structs, and of all other types it supports.

    Structs use this codec by default. Dataclasses can choose it::

        orders = queue.typed(Order, codec=bmq.codecs.MsgspecJson(Order))

    Reading a dataclass is three to six times as fast as with the default codec. The checks and messages are
    msgspec's: a dataclass is filled without a call of its ``__init__``, and errors have other texts.

    Args:
        of: the type of the values.

    Raises:
        UsageError: msgspec does not support the type.

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
        self._of = of

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the values."""
        return msgspec.json.schema(self._of)


class MsgspecPack:
    """MessagePack.

    Raises:
        UsageError: msgspec does not support the type.
    """

    content_type = MSGPACK

    def __init__(self, of: Any) -> None:
        try:
            self.decode = msgspec.msgpack.Decoder(of).decode
        except TypeError as error:
            raise UsageError(f"no MessagePack for {of!r}: {error}") from None
        self.encode = msgspec.msgpack.Encoder().encode
        self._of = of

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the values."""
        return msgspec.json.schema(self._of)
