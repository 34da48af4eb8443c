# SPDX-License-Identifier: Apache-2.0
"""Codecs through msgspec: JSON and MessagePack."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from bmq.errors import UsageError

__all__ = ["JSON", "MSGPACK", "MsgspecJson", "MsgspecPack"]

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"


class MsgspecJson:
    """JSON through msgspec, the default codec of all types except for pydantic's.

    Values are checked when read: a field of another type is an error, a missing field takes its default, and
    an unknown field is ignored. A dataclass is filled without a call of its ``__init__``;
    ``__post_init__`` is called.

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
            # A decoder accepts any class, and would refuse each message: only the schema finds the class now.
            msgspec.json.schema(of)
        except (TypeError, NameError) as error:
            raise _unsupported("JSON", of, error) from None
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
        except (TypeError, NameError) as error:
            raise _unsupported("MessagePack", of, error) from None
        self.encode = msgspec.msgpack.Encoder().encode
        self._of = of

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the values."""
        return msgspec.json.schema(self._of)


def _unsupported(form: str, of: Any, error: Exception) -> UsageError:
    reason = str(error).rpartition("\n")[2]
    return UsageError(
        f"msgspec has no {form} for {of!r}: {reason}. Possible types are dataclasses, typed dictionaries, "
        "structs of msgspec, lists, tuples, dictionaries, enumerations, dates, UUID and plain values. "
        "Otherwise use a model of pydantic, or a codec of your own (bmq.codecs.register)"
    )
