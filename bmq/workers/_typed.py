# SPDX-License-Identifier: Apache-2.0
"""Handlers that take a value: what their annotations say, and the function that decodes for them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

from bmq.client.message import Message
from bmq.client.typed import TypedMessage
from bmq.codecs import Codec, Shape
from bmq.errors import Undecodable, UsageError
from bmq.workers._handlers import Handler, is_async, name_of

__all__ = ["AnyHandler", "OnUndecodable", "adapted", "wanted_by"]

#: A function of a message, of a value, or of a value and its message.
AnyHandler: TypeAlias = Callable[[Any], object] | Callable[[Any, Message], object]
#: Called with what is no value of the type that a handler takes.
OnUndecodable: TypeAlias = Callable[[Message, Undecodable], object]

_NOTHING: Any = inspect.Parameter.empty


def wanted_by(handler: Callable[..., object]) -> list[Any]:
    """Return the annotations of the parameters that a handler has to be given; a missing one is ``empty``.

    Raises:
        UsageError: an annotation names what cannot be found.
    """
    function: Any = handler
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return []  # some functions written in C have none
    needed = [
        each
        for each in parameters
        if each.default is _NOTHING and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if all(isinstance(each.annotation, str) and _says_message(each.annotation) for each in needed):
        return [Message] * len(needed)  # it may be imported for type checkers alone
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise UsageError(
            f"{name_of(handler)} takes a value of a type that cannot be found: {error}. Its annotations have "
            "to be names of its module, not of a function or of an import for type checkers"
        ) from None
    return [hints.get(each.name, _NOTHING) for each in needed]


def _says_message(annotation: str) -> bool:
    return annotation.rpartition(".")[2] == "Message"


def adapted(
    handler: AnyHandler, codec: str | Codec[Any] | None, undecodable: OnUndecodable | None
) -> tuple[Handler, Shape[Any] | None]:
    """Return a handler as a function of a message, and what is known of the values it takes.

    Args:
        handler: takes a message, a value, a value and its message, or a :class:`bmq.TypedMessage`.
        codec: decodes messages that do not say what they are; None for JSON.
        undecodable: called instead of the handler with what cannot be decoded; None raises the
            :class:`bmq.Undecodable`.

    Raises:
        UsageError: its parameters are none of these, or its values cannot be decoded.
    """
    if not callable(handler):
        raise UsageError(f"a handler is a function that takes a message, not {handler!r}")
    wanted = wanted_by(handler)
    first = wanted[0] if wanted else _NOTHING
    if len(wanted) > 2 or (len(wanted) == 2 and wanted[1] not in (Message, _NOTHING)):
        raise UsageError(
            f"{name_of(handler)} takes {len(wanted)} arguments: a handler takes a message, a value, or a "
            "value and its bmq.Message"
        )
    if len(wanted) == 2 and first in (_NOTHING, Message):
        raise UsageError(
            f"{name_of(handler)} takes two arguments, and its first does not say what it is: annotate it "
            "with the type of the value"
        )
    if first in (_NOTHING, Message, Any, object):
        if codec is not None or undecodable is not None:
            raise UsageError(
                f"{name_of(handler)} takes messages as they are: codec and undecodable are for one that "
                "takes a value, which its annotation says"
            )
        return handler, None  # type: ignore[return-value]  # it takes one argument
    if undecodable is not None and is_async(undecodable) is not is_async(handler):
        raise UsageError(
            f"{name_of(handler)} and {name_of(undecodable)} are not alike: both run in the event loop "
            "('async def'), or both in threads"
        )
    whole = get_origin(first) is TypedMessage
    shape: Shape[Any] = Shape(get_args(first)[0] if whole else first, codec or "application/json")
    return _decoding(handler, shape, undecodable, whole=whole, both=len(wanted) == 2), shape


def _decoding(
    handler: Callable[..., Any],
    shape: Shape[Any],
    undecodable: Callable[[Message, Undecodable], Any] | None,
    *,
    whole: bool,
    both: bool,
) -> Handler:
    """Return a function of a message that calls one of a value."""

    def call(message: Message) -> Any:
        try:
            if whole:
                value: Any = TypedMessage(message, shape)
                _ = value.value
            else:
                value = shape.decode(message)
        except Undecodable as error:
            if undecodable is None:
                raise
            return undecodable(message, error)
        return handler(value, message) if both else handler(value)

    async def awaited(message: Message) -> None:
        result: Awaitable[object] = call(message)
        await result

    result = awaited if is_async(handler) else call
    result.__qualname__ = name_of(handler)
    return result
