# SPDX-License-Identifier: Apache-2.0
"""What a codec is, and which one a content type asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from bmq import _checks
from bmq.codecs._media_types import JSON, MSGPACK
from bmq.errors import InvalidArgument, UsageError

__all__ = ["Codec", "codec_for", "known", "plain", "register"]

T = TypeVar("T")


class Codec(Protocol[T]):
    """How values of one type become payloads.

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
        """The media type of the payloads it makes; it travels with every message."""
        ...

    def encode(self, value: T, /) -> bytes:
        """Return a value's payload.

        Raises:
            Exception: the value has no payload; :meth:`bmq.TypedQueue.post` raises a
                :class:`bmq.InvalidPayload` then.
        """
        ...

    def decode(self, data: bytes, /) -> T:
        """Return the value of a payload.

        Raises:
            Exception: it is not the payload of such a value, and the text says why; it becomes a
                :class:`bmq.Undecodable`.
        """
        ...


_made_by: dict[str, Callable[[Any], Codec[Any]]] = {}


def register(content_type: str, make: Callable[[Any], Codec[Any]]) -> None:
    """Say which codec a content type asks for, in this process; a later one replaces an earlier one.

    Args:
        content_type: a media type without parameters.
        make: called with the type of the values, once for each type; it returns the codec.

    Raises:
        InvalidArgument: this is no media type.
    """
    content_type = _checks.text("content_type", content_type)
    _checks.function("make", make, 1, plain=True)
    if content_type != plain(content_type) or not all(content_type.partition("/")):
        raise InvalidArgument(
            f"a content type is a media type in lower case, without parameters, not {content_type!r}"
        )
    _made_by[content_type] = make


def plain(content_type: str) -> str:
    """Return a media type without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def known() -> list[str]:
    """Return the content types that have a codec."""
    return sorted(_made_by)


def codec_for(of: Any, content_type: str = JSON) -> Codec[Any]:
    """Return the codec of a type for a content type.

    Args:
        of: the type of the values.
        content_type: a media type; its parameters do not matter.

    Raises:
        UsageError: no codec is registered for it, or it cannot do this type.
    """
    make = _made_by.get(plain(_checks.text("content_type", content_type)))
    if make is None:
        raise UsageError(
            f"no codec for {content_type!r}; there are {', '.join(known())}: bmq.codecs.register(...)"
        )
    try:
        return make(of)
    except UsageError:
        raise
    except Exception as error:  # whatever a library makes of what is no type
        raise UsageError(f"no codec for {_checks.shown(of)} as {content_type}: {error!r:.200}") from error


def _json(of: Any) -> Codec[Any]:
    """The JSON codec of the library that the type comes from."""
    if hasattr(of, "__struct_fields__"):
        from bmq.codecs._msgspec import MsgspecJson

        return MsgspecJson(of)
    if hasattr(of, "__pydantic_core_schema__"):
        from bmq.codecs._pydantic import PydanticJson

        return PydanticJson(of)
    from bmq.codecs._json import Json

    return Json(of)


def _msgpack(of: Any) -> Codec[Any]:
    from bmq.codecs._msgspec import MsgspecPack

    return MsgspecPack(of)


register(JSON, _json)
register(MSGPACK, _msgpack)
