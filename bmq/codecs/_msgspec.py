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
    """JSON of msgspec's structs."""

    content_type = JSON

    def __init__(self, of: Any) -> None:
        self.encode = msgspec.json.Encoder().encode
        self.decode = msgspec.json.Decoder(of).decode


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
