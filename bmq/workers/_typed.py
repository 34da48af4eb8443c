# SPDX-License-Identifier: Apache-2.0
"""Checks of a handler's type of values, beside other handlers and beside a typed queue."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, TypeAlias

from bmq import _checks
from bmq.codecs import Shape
from bmq.errors import UsageError
from bmq.workers._handlers import name_of

__all__ = ["AnyHandler", "alike", "check_shape", "check_source"]

#: A function of a message or a value, and of further parameters.
AnyHandler: TypeAlias = Callable[Concatenate[Any, ...], object]

_NOTHING: Any = inspect.Parameter.empty


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
