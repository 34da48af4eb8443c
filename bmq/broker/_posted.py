# SPDX-License-Identifier: Apache-2.0
"""The messages posted to an embedded broker, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bmq.errors import ProtocolError
from bmq.wire.constants import PutFlags
from bmq.wire.guid import guid_to_text
from bmq.wire.message import NO_PROPERTIES, split_application_data
from bmq.wire.properties import Properties, PropertyInput, PropertyValue

__all__ = ["PostedMessage", "told"]

_SHOWN: Final = 10
_SHOWN_BYTES: Final = 60


@dataclass(frozen=True)
class PostedMessage:
    """A message as posted.

    Attributes:
        queue_uri: URI of the queue.
        guid: GUID, 32 upper-case hexadecimal digits.
        payload: decompressed payload; for an unreadable message, the bytes as transmitted.
        properties: properties; empty for an unreadable message.
    """

    queue_uri: str
    guid: str
    payload: bytes
    properties: Properties

    def __str__(self) -> str:
        shown = self.payload[:_SHOWN_BYTES]
        more = "..." if len(self.payload) > len(shown) else ""
        return f"{self.guid} {shown!r}{more} {dict(self.properties)}"

    @classmethod
    def read(
        cls, queue_uri: str, guid: bytes, data: bytes, size: int, flags: int, schema_id: int, compression: int
    ) -> PostedMessage:
        """Return the message of a PUT; ``data`` has padding after ``size`` bytes."""
        try:
            properties, payload = split_application_data(
                data[:size],
                has_properties=bool(flags & PutFlags.MESSAGE_PROPERTIES),
                schema_id=schema_id,
                compression=compression,
            )
        except ProtocolError:  # a broker stores an unreadable message all the same
            properties, payload = NO_PROPERTIES, bytes(data[:size])
        return cls(queue_uri, guid_to_text(guid), payload, properties)

    def has(self, payload: bytes | None, properties: Mapping[str, PropertyInput]) -> bool:
        """Whether the message has this payload, if given, and at least these properties."""
        if payload is not None and self.payload != payload:
            return False
        return all(
            name in self.properties
            and self.properties[name] == (value.value if isinstance(value, PropertyValue) else value)
            for name, value in properties.items()
        )


def told(messages: list[PostedMessage]) -> str:
    """Describe messages, a line each, for the text of a failure."""
    lines = [f"    {each}" for each in messages[:_SHOWN]]
    if len(messages) > _SHOWN:
        lines.append(f"    ... and {len(messages) - _SHOWN} more")
    return "\n".join(lines) or "    nothing"
