# SPDX-License-Identifier: Apache-2.0
"""Objects that belong to a connection: no copies, and hints for calls without ``await``."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

from bmq.errors import UsageError

__all__ = ["live"]

C = TypeVar("C", bound=type)


def live(cls: C) -> C:
    """Decorate a class whose objects belong to a connection.

    ``copy.copy``, ``copy.deepcopy``, ``pickle`` and ``dataclasses.asdict`` raise a ``UsageError``: the copy
    of a session, for example, would close the connection of the original. If the class supports ``async
    for`` or ``async with``, then ``for`` and ``with`` raise a ``UsageError`` with the remedy. A class with
    ``async with`` alone names it in ``for``, too.
    """
    methods: dict[str, Any] = {"__reduce_ex__": _refuse_copy}
    if hasattr(cls, "__aiter__") and not hasattr(cls, "__iter__"):
        methods["__iter__"] = _refuse_for
    if hasattr(cls, "__aenter__") and not hasattr(cls, "__iter__") and "__iter__" not in methods:
        methods["__iter__"] = _refuse_with
    if hasattr(cls, "__aenter__") and not hasattr(cls, "__enter__"):
        methods |= {"__enter__": _refuse_with, "__exit__": _refuse_with}
    for name, method in methods.items():
        setattr(cls, name, method)
    return cls


def _name(value: object) -> str:
    cls = type(value)
    package = cls.__module__.split(".")[1]
    if cls.__name__.startswith("_"):
        return f"loop of bmq.{package}"
    return f"bmq.{cls.__name__}" if package in ("client", "workers") else f"bmq.{package}.{cls.__name__}"


def _refuse_copy(self: object, *_: object) -> NoReturn:
    raise UsageError(
        f"a {_name(self)} belongs to its connection and cannot be copied or pickled: pass the object "
        "itself, or its URI, GUID or payload"
    )


def _refuse_for(self: object) -> NoReturn:
    raise UsageError(
        f"a {_name(self)} is asynchronous: use 'async for', or bmq.blocking for code without await"
    )


def _refuse_with(self: object, *_: object) -> NoReturn:
    raise UsageError(
        f"a {_name(self)} is asynchronous: use 'async with', or bmq.blocking for code without await"
    )
