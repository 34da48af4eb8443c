# SPDX-License-Identifier: Apache-2.0
"""The conversion between values of one type and messages, with properties and content type."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, Protocol, TypeVar, cast, get_args, get_origin

from bmq import _checks
from bmq.codecs._cloudevents import ATTRIBUTES, CloudEvent, attributes_of, event_of
from bmq.codecs._codec import JSON, Codec, codec_for, plain
from bmq.codecs.fields import fields_of
from bmq.conventions import CONTENT_TYPE
from bmq.errors import InvalidPayload, ProtocolError, Undecodable, UsageError
from bmq.subscriptions import ExpressionInput, check_property_types
from bmq.wire.properties import Properties, PropertyInput

__all__ = ["Received", "Shape"]

T = TypeVar("T")


class Received(Protocol):
    """A message to decode, such as a :class:`bmq.Message`."""

    @property
    def data(self) -> bytes:
        """The payload."""
        ...

    @property
    def properties(self) -> Properties:
        """The properties."""
        ...


# Codecs of unusual content types are kept, up to this number: a peer chooses the content types.
_KEPT: Final = 16
# Largest number of a value's errors in a message, and largest length of the reason in characters.
_SHOWN: Final = 3
_LONGEST_REASON: Final = 300


class Shape(Generic[T]):
    """Converts values of one type to messages and back.

    Args:
        of: the type.
        codec: encodes values, and decodes messages without a content type: a registered content type, or a
            codec.

    Raises:
        UsageError: no codec supports the type, or a field marked as a property cannot be one.

    Attributes:
        of: the type.
        name: name of the type, for errors.
        codec: the codec that encodes values.
    """

    def __init__(self, of: type[T], codec: str | Codec[Any] = JSON) -> None:
        _check_type(of)
        self.of = of
        self._event = (get_origin(of) or of) is CloudEvent
        body: Any = of
        if self._event:
            body = (*get_args(of), Any)[0]
        elif body in (bytes, bytearray, memoryview):
            raise UsageError("bytes are posted and received unchanged and need no type")
        self._body = body
        name: str = getattr(body, "__qualname__", None) or repr(body)
        self.name = f"CloudEvent[{name}]" if self._event else name
        self.codec: Codec[Any] = codec_for(body, codec) if isinstance(codec, str) else _checked(codec)
        self._content_type = _checks.text("content_type of the codec", self.codec.content_type)
        self._fields = [(field.name, field.get) for field in fields_of(body)]
        self._kinds: dict[str, type] = {field.name: field.kind for field in fields_of(body)}
        if self._event:
            self._kinds |= dict.fromkeys(ATTRIBUTES, str)
        self._codecs: dict[Any, Codec[Any]] = {None: self.codec, self._content_type: self.codec}
        self._expected = CloudEvent if self._event else body if isinstance(body, type) else None
        if self._expected is not None and not _can_be_checked(self._expected):
            self._expected = None

    @property
    def properties(self) -> Mapping[str, type]:
        """The properties of the type's messages: the Python type (bool, int, str or bytes) by name."""
        return MappingProxyType(self._kinds)

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the payload, with the schemas of classes in ``$defs``.

        The result is empty if the codec has no schema. A codec of your own may have a method ``json_schema``,
        without arguments, that returns a schema.
        """
        make: Any = getattr(self.codec, "json_schema", None)
        return {} if make is None else make()

    def encode(self, value: T) -> tuple[bytes, dict[str, PropertyInput]]:
        """Return payload and properties of a value.

        Raises:
            InvalidPayload: the value is of another type, or the codec cannot encode it.
        """
        if self._expected is not None and not isinstance(value, self._expected):
            raise InvalidPayload(f"a value must be {self.name}, not {type(value).__name__}")
        properties: dict[str, PropertyInput] = {CONTENT_TYPE: self._content_type}
        body: Any = value
        if self._event:
            event = cast("CloudEvent[Any]", value)
            properties |= attributes_of(event)
            body = event.data
        for name, get in self._fields:
            found = get(body)
            if found is not None:
                properties[name] = found
        try:
            return self.codec.encode(body), properties
        except Exception as error:
            raise InvalidPayload(f"{self.name} cannot be encoded as {self._content_type}: {error}") from error

    def decode(self, message: Received) -> T:
        """Return the value of a message.

        Raises:
            Undecodable: the message has no such value, or an unknown content type.
        """
        content_type: Any = ""
        try:
            properties = message.properties
            content_type = properties.get(CONTENT_TYPE)
            codec = self._codecs.get(content_type) or self._codec_for(content_type)
            value: Any = codec.decode(message.data)
            if self._event:
                value = event_of(value, properties)
        except ProtocolError as error:
            raise Undecodable(f"the message is malformed: {error}") from error
        except Exception as error:
            said = content_type if isinstance(content_type, str) else ""
            what = said or f"{self._content_type}, by default"
            raise Undecodable(
                f"not a value of {self.name} ({what:.100}): {_reason(error)}", content_type=said
            ) from error
        return cast("T", value)

    def _codec_for(self, content_type: object) -> Codec[Any]:
        if not isinstance(content_type, str):
            raise ValueError(f"{CONTENT_TYPE} is {content_type!r}, which is not text")  # noqa: TRY004
        if plain(content_type) == plain(self._content_type):
            codec = self.codec
        else:
            codec = codec_for(self._body, content_type)
        if len(self._codecs) < _KEPT:
            self._codecs[content_type] = codec
        return codec

    def check(self, expression: ExpressionInput, more: Mapping[str, type] = MappingProxyType({})) -> None:
        """Check that a filter uses only properties of this type, and compares them with values of their type.

        A type without properties accepts every filter.

        Args:
            expression: the filter.
            more: further properties of the messages, and their Python types.

        Raises:
            InvalidExpression: the filter does not fit the type.
        """
        if self._kinds:
            # A CloudEvent may have undeclared extensions.
            kinds = {**self._kinds, **more}
            check_property_types(expression, kinds, self.name, others=("ce_",) if self._event else ())


def _reason(error: Exception) -> str:
    """Return the reason for rejecting a payload in one line, if possible without the payload."""
    details = getattr(error, "errors", None)
    if callable(details):  # pydantic's own text has a line for each error, with the rejected input.
        try:
            found: Any = details(include_url=False, include_context=False, include_input=False)
            parts = [
                f"{'.'.join(map(str, each['loc'])) or 'value'}: {each['msg']}" for each in found[:_SHOWN]
            ]
            more = f"; {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            return "; ".join(parts)[:_LONGEST_REASON] + more
        except Exception:  # Another codec's error has a method of the same name with another meaning.
            pass
    try:
        text = " ".join(str(error)[: 2 * _LONGEST_REASON].split())
    except Exception:  # The error's own __str__ fails.
        text = type(error).__name__
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 3] + "..."


def _check_type(of: object) -> None:
    """Check that a value is a type, or a substitute from :mod:`typing`.

    Raises:
        UsageError: the value is neither.
    """
    if isinstance(of, type) or type(of).__module__ in ("typing", "types", "typing_extensions"):
        return
    raise UsageError(f"of must be the type of the values, as in queue.typed(Order), not {_checks.shown(of)}")


def _checked(codec: Codec[Any]) -> Codec[Any]:
    if not all(hasattr(codec, name) for name in ("encode", "decode", "content_type")):
        raise UsageError(
            "codec must be a content type, or an object with content_type, encode and decode, not "
            f"{_checks.shown(codec)}"
        )
    return codec


def _can_be_checked(of: type) -> bool:
    try:
        isinstance(None, of)
    except TypeError:  # A typed dictionary, for instance.
        return False
    return True
