# SPDX-License-Identifier: Apache-2.0
"""Handlers of values: reads the annotations and adds the decoding."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

from bmq import _checks
from bmq.client.message import Message
from bmq.client.typed import TypedMessage
from bmq.codecs import Codec, Shape
from bmq.errors import Undecodable, UsageError
from bmq.workers._handlers import Handler, is_async, name_of

__all__ = [
    "AnyHandler",
    "OnUndecodable",
    "adapted",
    "alike",
    "check_shape",
    "check_source",
    "returned_by",
    "wanted_by",
]

#: A function of a message, of a value, or of a value and its message.
AnyHandler: TypeAlias = Callable[[Any], object] | Callable[[Any, Message], object]
#: Function called with messages not decodable to the handler's type.
OnUndecodable: TypeAlias = Callable[[Message, Undecodable], object]

_NOTHING: Any = inspect.Parameter.empty


def wanted_by(handler: Callable[..., object]) -> list[Any]:
    """Return the annotations of a handler's required parameters; ``empty`` for a missing annotation.

    Raises:
        UsageError: an annotation contains an unresolvable name.
    """
    function: Any = handler
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    parameters = _parameters_of(handler)
    if parameters is None:
        return []  # some functions written in C have no signature
    places = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    # The handler receives the message or the value even if its first parameter has a default.
    needed = [each for index, each in enumerate(places) if each.default is _NOTHING or not index]
    if all(isinstance(each.annotation, str) and _says_message(each.annotation) for each in needed):
        return [Message] * len(needed)  # the name may be imported for type checkers only
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise UsageError(
            f"{name_of(handler)} takes a value of a type that cannot be found: {error}. Annotations must "
            "be names of the handler's module, not of a function, nor of an import for type checkers only"
        ) from None
    return [hints.get(each.name, _NOTHING) for each in needed]


def returned_by(handler: Callable[..., object]) -> Any:
    """Return the annotation of a handler's result; ``empty`` if missing or not resolvable."""
    function: Any = handler
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        return get_type_hints(function).get("return", _NOTHING)
    except Exception:  # names resolvable only by type checkers
        return _NOTHING


def check_shape(handler: object, what: str, takes: str, most: int = 2) -> None:
    """Check whether a function can be called as a handler.

    Args:
        handler: object to be registered.
        what: role of the function for the error, with an article.
        takes: noun for the argument for the error, with an article.
        most: maximum number of arguments.

    Raises:
        UsageError: the object is not a function, a call would not run its body, or the parameters differ.
    """
    if not callable(handler):
        raise UsageError(f"{what} must be a function that takes {takes}, not {_checks.shown(handler)}")
    name = name_of(handler)
    if inspect.isclass(handler):
        raise UsageError(
            f"{name} is a class, and a call of it only makes an object: give {what} as a function, or an "
            "object with an 'async def __call__'"
        )
    if _is_generator(handler):
        raise UsageError(
            f"{name} is a generator, and a call does not run its body: {what} has no 'yield', and returns "
            "when done"
        )
    parameters = _parameters_of(handler)
    if parameters is None:
        return
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and each.default is _NOTHING:
            raise UsageError(
                f"{name} needs the keyword {each.name}, which is never given: {what} takes {takes}. Give "
                f"{each.name} a default, or use functools.partial({name}, {each.name}=...)"
            )
    places = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if not places and not any(each.kind is each.VAR_POSITIONAL for each in parameters):
        raise UsageError(f"{name} takes no parameter: {what} takes {takes}, as in def {name}(message)")
    needed = [each.name for each in places if each.default is _NOTHING]
    if len(needed) > most:
        raise UsageError(f"{name} takes {len(needed)} arguments ({', '.join(needed)}): {what} takes {takes}")


def _parameters_of(handler: Callable[..., object]) -> list[inspect.Parameter] | None:
    """Return the parameters of a function; None if unknown."""
    try:
        return list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):
        return None


def _is_generator(handler: Callable[..., object]) -> bool:
    function: Any = handler
    while isinstance(function, functools.partial):
        function = function.func
    return any(
        kind(each)
        for kind in (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        for each in (function, type(function).__call__)
    )


def _says_message(annotation: str) -> bool:
    return annotation.rpartition(".")[2] == "Message"


def adapted(
    handler: AnyHandler, codec: str | Codec[Any] | None, undecodable: OnUndecodable | None
) -> tuple[Handler, Shape[Any] | None]:
    """Return a handler as a function of a message, and the shape of its values.

    Args:
        handler: takes a message, a value, a value and its message, or a :class:`bmq.TypedMessage`.
        codec: decodes messages without a content type; None for JSON.
        undecodable: called instead of the handler with undecodable messages; None to raise the
            :class:`bmq.Undecodable`.

    Raises:
        UsageError: the parameters are of another kind, or the values cannot be decoded.
    """
    check_shape(handler, "a handler", "a message, a value, or a value and its bmq.Message")
    if undecodable is not None:
        _checks.function("undecodable", undecodable, 2)
    wanted = wanted_by(handler)
    first = wanted[0] if wanted else _NOTHING
    if len(wanted) == 2 and wanted[1] not in (Message, _NOTHING, Any, object):
        raise UsageError(
            f"{name_of(handler)} takes {len(wanted)} arguments: a handler takes a message, a value, or a "
            "value and its bmq.Message"
        )
    if len(wanted) == 2 and first in (_NOTHING, Message):
        raise UsageError(
            f"{name_of(handler)} takes two arguments, and the first has no annotation: annotate it with "
            "the type of the value"
        )
    if first in (_NOTHING, Message, Any, object):
        if codec is not None or undecodable is not None:
            raise UsageError(
                f"{name_of(handler)} takes messages: codec and undecodable require a handler whose first "
                "parameter is annotated with a type of values"
            )
        return handler, None  # type: ignore[return-value]  # the handler takes one argument
    if undecodable is not None and is_async(undecodable) is not is_async(handler):
        raise UsageError(
            f"{name_of(handler)} and {name_of(undecodable)} must both run in the event loop ('async def'), "
            "or both in threads"
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
    """Convert a function of a value to a function of a message."""

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


def alike(one: Shape[Any], other: Shape[Any]) -> bool:
    """Whether two handlers may share messages: the types are equal, or either type is a base of the other."""
    if one.of == other.of:
        return True
    if not (inspect.isclass(one.of) and inspect.isclass(other.of)):
        return False
    return issubclass(one.of, other.of) or issubclass(other.of, one.of)


def check_source(handler: AnyHandler, shape: Shape[Any] | None, of: Shape[Any] | None, codec: object) -> None:
    """Check whether a handler takes the values of a queue.

    Args:
        handler: the handler, for the error.
        shape: shape of the handler's values; None for raw messages.
        of: shape of the queue's values; None if the queue is untyped.
        codec: the ``codec`` given beside the queue, or None.

    Raises:
        UsageError: the handler takes another type, or a codec is given beside a typed queue.
    """
    if of is None:
        return
    if codec is not None:
        raise UsageError(f"a queue of {of.name} already has a codec: give codec to queue.typed(...)")
    if shape is None or shape.of == of.of:
        return
    if inspect.isclass(shape.of) and inspect.isclass(of.of) and issubclass(of.of, shape.of):
        return
    parameters = _parameters_of(handler)
    name = f"parameter {parameters[0].name}" if parameters else "its first parameter"
    raise UsageError(
        f"{name_of(handler)} takes {shape.name} in {name}, and the queue has {of.name}: annotate {name} with "
        f"{of.name}, or give the queue as queue.typed({shape.name})"
    )
