# SPDX-License-Identifier: Apache-2.0
"""The ``features`` string of an identity: the capabilities of a client or a broker.

The format is ``FIELD:VALUE,VALUE;FIELD:VALUE``, compared exactly, without spaces.
"""

from __future__ import annotations

from bmq.wire.control.messages import Codec

__all__ = [
    "CONFIGURE_STREAM",
    "ENCODING_BER",
    "ENCODING_JSON",
    "MESSAGE_PROPERTIES_EX",
    "Features",
    "parse_features",
]

#: Control messages in BER, in JSON.
ENCODING_BER = ("PROTOCOL_ENCODING", "BER")
ENCODING_JSON = ("PROTOCOL_ENCODING", "JSON")
#: The new encoding of message properties.
MESSAGE_PROPERTIES_EX = ("MPS", "MESSAGE_PROPERTIES_EX")
#: Announced by a broker that accepts ``configureStream``; clients do not announce it.
CONFIGURE_STREAM = ("SUBSCRIPTIONS", "CONFIGURE_STREAM")


class Features:
    """A parsed features string, created by :func:`parse_features`."""

    __slots__ = ("_fields", "text")

    def __init__(self, text: str, fields: dict[str, tuple[str, ...]]) -> None:
        self.text = text
        self._fields = fields

    def has(self, field: str, value: str) -> bool:
        """Whether ``field`` lists ``value``: ``features.has(*MESSAGE_PROPERTIES_EX)``."""
        return value in self._fields.get(field, ())

    def values(self, field: str) -> tuple[str, ...]:
        """Return the values of a field; empty if the field is absent."""
        return self._fields.get(field, ())

    @property
    def codec(self) -> Codec:
        """The codec in which a broker writes to a client with these features: JSON only if listed without
        BER.
        """
        if self.has(*ENCODING_JSON) and not self.has(*ENCODING_BER):
            return Codec.JSON
        return Codec.BER

    def __repr__(self) -> str:
        return f"Features({self.text!r})"


def parse_features(text: str) -> Features:
    """Read a features string as the official implementation does.

    If a field is repeated, the first one counts. A field with an empty value is left out, and ends the list.
    """
    fields: dict[str, tuple[str, ...]] = {}
    for part in text.split(";"):
        field, colon, values = part.partition(":")
        if colon and not values:
            break
        if part:
            fields.setdefault(field, tuple(value for value in values.split(",") if value))
    return Features(text, fields)
