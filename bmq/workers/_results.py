# SPDX-License-Identifier: Apache-2.0
"""Results of functions as messages to post: replies of responders, outputs of handlers."""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Sequence,
)
from types import NoneType, UnionType
from typing import Any, Final, Never, NoReturn, Union, cast, get_args, get_origin

from bmq.client.posts import PutMessage
from bmq.codecs import Codec, Shape
from bmq.errors import InvalidPayload, UsageError
from bmq.wire.properties import PropertyInput
from bmq.workers._dependencies import returned_by, shown_type, target_of
from bmq.workers._handlers import name_of

__all__ = ["Results"]

_BYTES: Final = (bytes, bytearray, memoryview)
# Annotations of results that are posted unchanged.
_POSTED: Final = (*_BYTES, PutMessage)
# Annotations of results that are not encoded.
_AS_THEY_ARE: Final = (
    *_POSTED,
    NoneType,
    None,
    Any,
    object,
    NoReturn,
    Never,
    inspect.Parameter.empty,
)


class Results:
    """Converts the results of one function, by the annotation of its result.

    Args:
        function: the function.
        codec: content type or codec that encodes values; None for JSON.
        batch: whether the function returns a list with a result for each message.

    Raises:
        UsageError: no codec supports the type of the results, or the result of a batch is not a list.

    Attributes:
        of: type of the encoded values; None if the function returns only bytes.
        kinds: conversions of the kinds of results, for a description: of each class of a union, of its other
            types together, and None for payloads and whole messages.
        empty: whether the annotation of the result is None.
        unknown: whether the annotation is missing, or says nothing about the results.
    """

    def __init__(
        self, function: Callable[..., object], codec: str | Codec[Any] | None, *, batch: bool = False
    ) -> None:
        self._name = name = name_of(function)
        annotation = returned_by(function)
        if batch:
            annotation = _item_of(
                annotation, (list, Sequence), name, "a list with one result for each message"
            )
        elif inspect.isasyncgenfunction(target_of(function)):
            iterators = (AsyncIterator, AsyncGenerator, AsyncIterable)
            annotation = _item_of(annotation, iterators, name, "an AsyncIterator of results")
        union = get_origin(annotation) in (Union, UnionType)
        parts: tuple[Any, ...] = get_args(annotation) if union else (annotation,)
        values = [each for each in parts if each not in _AS_THEY_ARE and not _is_error(each)]
        self.empty = all(each in (NoneType, None) for each in parts)
        self.unknown = not (self.empty or values or any(each in _POSTED for each in parts))
        self._bytes = not values or any(each in _BYTES for each in parts)
        self.of: Any = None
        self.kinds: list[Shape[Any] | None] = []
        self._rest: Shape[Any] | None = None
        # The classes of a union have shapes of their own: only a class has fields that are properties.
        self._shapes: dict[type, Shape[Any]] = {}
        if values:
            self.of = Union[tuple(values)] if len(values) > 1 else values[0]  # noqa: UP007
            classes = [each for each in values if inspect.isclass(each) and len(values) > 1]
            others = [each for each in values if each not in classes]
            try:
                self._shapes = {each: Shape(each, codec or "application/json") for each in classes}
                if others:
                    rest: Any = Union[tuple(others)]  # noqa: UP007
                    self._rest = Shape(rest, codec or "application/json")
                    self.kinds.append(self._rest)
            except UsageError as error:
                raise UsageError(f"{name} returns {shown_type(self.of)}: {error}") from None
            self.kinds = [*self._shapes.values(), *self.kinds]
        if not values or any(each in _POSTED for each in parts):
            self.kinds.append(None)

    def encoded(self, result: object, properties: dict[str, PropertyInput] | None = None) -> PutMessage:
        """Return the message for a result; a :class:`bmq.PutMessage` stays unchanged.

        Args:
            result: the result, other than None.
            properties: further properties.

        Raises:
            InvalidPayload: the result has another type, or cannot be encoded.
            TypeError: the result is not bytes, and the function has no annotated type.
        """
        if isinstance(result, PutMessage):
            return result
        if self._bytes and isinstance(result, _BYTES):
            return PutMessage(cast("bytes", result), properties)
        if self.of is None:
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(
                f"{self._name} must return bytes or a bmq.PutMessage, not {type(result).__name__}: annotate "
                "the result with its type to encode values, as in '-> Order'"
            )
        found = (self._shapes[each] for each in type(result).__mro__ if each in self._shapes)
        shape = next(found, self._rest)
        if shape is None:
            raise InvalidPayload(f"a value must be {shown_type(self.of)}, not {type(result).__name__}")
        data, own = shape.encode(result)
        return PutMessage(data, own if properties is None else own | properties)


def _item_of(annotation: Any, of: tuple[Any, ...], name: str, wanted: str) -> Any:
    """Return the type of the items of a list or an iterator; ``empty`` without an annotation.

    Raises:
        UsageError: the annotation is of another kind.
    """
    if annotation in (inspect.Parameter.empty, Any, object):
        return inspect.Parameter.empty
    if (get_origin(annotation) or annotation) not in of:
        raise UsageError(f"{name} must return {wanted}, not {shown_type(annotation)}")
    return (*get_args(annotation), inspect.Parameter.empty)[0]


def _is_error(annotation: Any) -> bool:
    return inspect.isclass(annotation) and issubclass(annotation, BaseException)
