# SPDX-License-Identifier: Apache-2.0
"""The codec interface, and the registry of codecs by content type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from bmq import _checks
from bmq.codecs._msgspec import JSON, MSGPACK, MsgspecJson, MsgspecPack
from bmq.errors import UsageError

__all__ = ["Codec", "codec_for", "known", "plain", "register"]

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


def known() -> list[str]:
    """Return the content types with a codec."""
    return sorted(_made_by)


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
            f"no codec for {content_type!r}; known types: {', '.join(known())}. bmq.codecs.register(...) "
            "adds a codec"
        )
    try:
        return make(of)
    except UsageError:
        raise
    except Exception as error:  # Libraries raise all kinds of errors for objects that are not types.
        raise UsageError(f"no codec for {_checks.shown(of)} as {content_type}: {error!r:.200}") from error


def _json(of: Any) -> Codec[Any]:
    if hasattr(of, "__pydantic_core_schema__"):
        from bmq.codecs._pydantic import PydanticJson

        return PydanticJson(of)
    return MsgspecJson(Any if of is object else of)


register(JSON, _json)
register(MSGPACK, MsgspecPack)
