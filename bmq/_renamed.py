# SPDX-License-Identifier: Apache-2.0
"""Old names: each use of an old name raises an error with the new name.

The old attribute of a class is a descriptor, not a ``__getattr__``: a class with ``__getattr__`` makes every
attribute of its objects slower. Type checkers do not know the old names at all.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

__all__ = [
    "ARGUMENTS",
    "ATTRIBUTES",
    "NAMES",
    "Renamed",
    "missing_name",
    "old_names",
    "renamed",
    "renamed_arguments",
]

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

#: Attributes by class, for the asyncio classes and those of ``bmq.blocking``: the old and the new name.
ATTRIBUTES: dict[str, dict[str, str]] = {
    "Consumer": {"selector": "expression"},
    "Message": {"state": "context", "subscription": "consumer"},
    "Queue": {"subscriptions": "consumers", "waiting": "delay_queue_uri"},
    "RequestFailed": {"kind": "type", "reason": "detail"},
    "Session": {"output": "open_output"},
    "Subscription": {"selector": "expression"},
}
#: Names of modules: the old name, and the new one with its module.
NAMES: dict[str, dict[str, str]] = {
    "bmq": {
        "ConsumerStats": "bmq.stats.ConsumerStats",
        "Histogram": "bmq.stats.Histogram",
        "QueueStats": "bmq.stats.QueueStats",
        "SessionStats": "bmq.stats.SessionStats",
        "Handling": "bmq.Attempt",
        "OutgoingMessage": "bmq.interceptors.OutgoingMessage",
        "PostOutcome": "bmq.interceptors.PostOutcome",
        "Health": "bmq.health.Health",
        "HostHealth": "bmq.health.HostHealth",
        "HostHealthMonitor": "bmq.health.HostHealthMonitor",
        "Trouble": "bmq.health.Trouble",
        "AdminError": "bmq.errors.AdminError",
        "CloseQueueError": "bmq.errors.CloseQueueError",
        "StatusCategory": "bmq.errors.StatusCategory",
        "TypedBatch": "bmq.typed.TypedBatch",
        "TypedConsumer": "bmq.typed.TypedConsumer",
        "TypedGroup": "bmq.typed.TypedGroup",
        "CmqTags": "bmq.subscriptions.CmqTags",
        "RoutingTable": "bmq.subscriptions.RoutingTable",
        "ExponentialDecay": "bmq.Backoff",
        "exponential_backoff": "bmq.reconnect_delays",
        "InvalidArgument": "bmq.UsageError",
        "Post": "bmq.interceptors.OutgoingMessage",
        "ResponderError": "bmq.RequestFailed",
        "Typed": "bmq.PropertyValue",
    },
    "bmq.workers": {"ExponentialDecay": "bmq.workers.Backoff"},
    "bmq.interceptors": {"Handling": "bmq.Attempt"},
    "bmq.errors": {
        "InvalidArgument": "bmq.errors.UsageError",
        "ResponderError": "bmq.errors.RequestFailed",
    },
    "bmq.subscriptions": {"Selector": "bmq.subscriptions.ExpressionInput"},
    "bmq.conventions": {
        "WAITING_SUFFIX": "bmq.conventions.DELAY_QUEUE_SUFFIX",
        "waiting_queue": "bmq.conventions.delay_queue_of",
    },
}
#: Keyword arguments by function: the old and the new name.
ARGUMENTS: dict[str, dict[str, str]] = {
    "BmqBroker.__init__": {"subscription": "expression", "waiting": "delay_queue_uri"},
    "Consumer.configure": {"selector": "expression"},
    "Queue.group": {"selector": "expression"},
    "Queue.subscribe": {"selector": "expression"},
    "Queue.tables": {"selector": "expression"},
    "Registrar.batch_consumer": {"subscription": "expression"},
    "Registrar.consumer": {"subscription": "expression"},
    "Registrar.responder": {"subscription": "expression"},
    "Session.open_queue": {"waiting": "delay_queue_uri"},
    "Source.__init__": {"subscription": "expression"},
    "Subscription.__init__": {"selector": "expression"},
    "TypedConsumer.configure": {"selector": "expression"},
    "TypedQueue.group": {"selector": "expression"},
    "TypedQueue.subscribe": {"selector": "expression"},
    "consume": {"subscription": "expression"},
    "reader": {"subscription": "expression"},
}


class Renamed:
    """A renamed attribute: reading the old name raises an ``AttributeError`` with the new name."""

    def __init__(self, cls: str, old: str, new: str) -> None:
        self._text = f"{cls}.{old} is called {cls}.{new}"

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(self._text)


def missing_name(module: str, name: str) -> AttributeError:
    """Return the error for an unknown name of a module, with the new name if there is one."""
    new = NAMES[module].get(name)
    if new is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return AttributeError(f"{module}.{name} is called {new}")


def old_names(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` for a module with old names in :data:`NAMES`."""

    def __getattr__(name: str) -> Any:
        raise missing_name(module, name)

    return __getattr__


def renamed(cls: C) -> C:
    """Decorate a class with old names in :data:`ATTRIBUTES`."""
    for old, new in ATTRIBUTES[cls.__name__].items():
        setattr(cls, old, Renamed(cls.__name__, old, new))
    if f"{cls.__name__}.__init__" in ARGUMENTS:
        setattr(cls, "__init__", renamed_arguments(vars(cls)["__init__"]))  # noqa: B010
    return cls


def renamed_arguments(function: F) -> F:
    """Decorate a function or method with old keyword arguments in :data:`ARGUMENTS`."""
    names = ARGUMENTS[function.__qualname__]

    def check(given: dict[str, Any]) -> None:
        for old in names.keys() & given.keys():
            raise TypeError(f"{function.__qualname__}(): the argument {old} is now called {names[old]}")

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            check(kwargs)
            return await function(*args, **kwargs)

        return cast("F", awaited)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        check(kwargs)
        return function(*args, **kwargs)

    return cast("F", called)
