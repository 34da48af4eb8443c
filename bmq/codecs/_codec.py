# SPDX-License-Identifier: Apache-2.0
"""The codec interface, the built-in codecs, and the registry of codecs by content type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import msgspec

from bmq import _checks
from bmq.errors import UsageError

__all__ = [
    "JSON",
    "MSGPACK",
    "Codec",
    "MsgspecJson",
    "MsgspecPack",
    "codec_for",
    "plain",
    "register",
]

# ---- Codecs through msgspec: JSON and MessagePack

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


class PydanticJson:
    """JSON as pydantic writes and validates it, with aliases."""

    content_type = JSON

    def __init__(self, of: Any) -> None:
        from pydantic import TypeAdapter  # installed, because the type is pydantic's

        self._adapter: TypeAdapter[Any] = TypeAdapter(of)
        self.decode = self._adapter.validate_json

    def encode(self, value: Any) -> bytes:
        """Return the JSON text."""
        return self._adapter.dump_json(value, by_alias=True)

    def json_schema(self) -> dict[str, Any]:
        """Return the schema of the values."""
        return self._adapter.json_schema()


def _unsupported(form: str, of: Any, error: Exception) -> UsageError:
    reason = str(error).rpartition("\n")[2]
    return UsageError(
        f"msgspec has no {form} for {of!r}: {reason}. Possible types are dataclasses, typed dictionaries, "
        "structs of msgspec, lists, tuples, dictionaries, enumerations, dates, UUID and plain values. "
        "Otherwise use a model of pydantic, or a codec of your own (bmq.codecs.register)"
    )


# ---- The interface, and the registry by content type

T = TypeVar("T")


class Codec(Protocol[T]):
    """Converts values of one type to payloads and back.

    ::

        class Protobuf:
            content_type = "application/protobuf"

            def __init__(self, of):
                self.of = of

            def encode(self, value):
                return value.SerializeToString()

            def decode(self, data):
                return self.of.FromString(data)

        bmq.codecs.register("application/protobuf", Protobuf)
        orders = queue.typed(Order, codec="application/protobuf")
    """

    @property
    def content_type(self) -> str:
        """The media type of the payloads, which is part of every message."""
        ...

    def encode(self, value: T, /) -> bytes:
        """Return a value's payload.

        Raises:
            Exception: the value has no payload; :meth:`bmq.TypedQueue.post` then raises a
                :class:`bmq.InvalidPayload`.
        """
        ...

    def decode(self, data: bytes, /) -> T:
        """Return the value of a payload.

        Raises:
            Exception: the payload is invalid for the type, with the reason in the text; callers receive a
                :class:`bmq.Undecodable`.
        """
        ...


_made_by: dict[str, Callable[[Any], Codec[Any]]] = {}


def register(content_type: str, make: Callable[[Any], Codec[Any]]) -> None:
    """Register the codec for a content type, in this process; a later call replaces an earlier one.

    Args:
        content_type: a media type without parameters.
        make: returns the codec for a type of values; called once for each type.

    Raises:
        UsageError: ``content_type`` is not a media type.
    """
    content_type = _checks.text("content_type", content_type)
    _checks.function("make", make, 1, plain=True)
    if content_type != plain(content_type) or not all(content_type.partition("/")):
        raise UsageError(
            f"a content type must be a media type in lower case, without parameters, not {content_type!r}"
        )
    _made_by[content_type] = make


def plain(content_type: str) -> str:
    """Return a media type without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def codec_for(of: Any, content_type: str = JSON) -> Codec[Any]:
    """Return the codec of a type for a content type.

    Args:
        of: the type of the values.
        content_type: a media type; parameters are ignored.

    Raises:
        UsageError: no codec is registered for the content type, or the codec does not support the type.
    """
    make = _made_by.get(plain(_checks.text("content_type", content_type)))
    if make is None:
        raise UsageError(
            f"no codec for {content_type!r}; known types: {', '.join(sorted(_made_by))}. "
            "bmq.codecs.register(...) adds a codec"
        )
    try:
        return make(of)
    except UsageError:
        raise
    except Exception as error:  # Libraries raise all kinds of errors for objects that are not types.
        raise UsageError(f"no codec for {_checks.shown(of)} as {content_type}: {error!r:.200}") from error


def _json(of: Any) -> Codec[Any]:
    if hasattr(of, "__pydantic_core_schema__"):
        return PydanticJson(of)
    return MsgspecJson(Any if of is object else of)


register(JSON, _json)
register(MSGPACK, MsgspecPack)
