# SPDX-License-Identifier: Apache-2.0
"""Using an old name raises an error that names the new one."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

import bmq
import bmq.arrow
import bmq.taskiq
from bmq import _renamed

CLASSES: dict[str, tuple[type, ...]] = {
    "Consumer": (bmq.Consumer, bmq.blocking.Consumer),
    "Message": (bmq.Message, bmq.TypedMessage, bmq.blocking.Message),
    "Queue": (bmq.Queue, bmq.blocking.Queue),
    "RequestFailed": (bmq.RequestFailed,),
    "Session": (bmq.Session, bmq.blocking.Session),
    "Subscription": (bmq.Subscription,),
}
ATTRIBUTES = [
    (owner, name, old, new)
    for name, names in _renamed.ATTRIBUTES.items()
    for owner in CLASSES[name]
    for old, new in names.items()
]
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "Consumer.configure": (bmq.Consumer.configure, bmq.blocking.Consumer.configure),
    "Queue.group": (bmq.Queue.group, bmq.blocking.Queue.group),
    "Queue.subscribe": (bmq.Queue.subscribe, bmq.blocking.Queue.subscribe),
    "Queue.tables": (bmq.Queue.tables, bmq.blocking.Queue.tables),
    "Registrar.batch_consumer": (bmq.App.batch_consumer,),
    "Registrar.consumer": (bmq.App.consumer,),
    "Registrar.responder": (bmq.App.responder,),
    "BmqBroker.__init__": (bmq.taskiq.BmqBroker,),
    "Session.open_queue": (bmq.Session.open_queue, bmq.blocking.Session.open_queue),
    "Source.__init__": (bmq.arrow.Source,),
    "Subscription.__init__": (bmq.Subscription,),
    "TypedConsumer.configure": (bmq.typed.TypedConsumer.configure, bmq.blocking.TypedConsumer.configure),
    "TypedQueue.group": (bmq.TypedQueue.group, bmq.blocking.TypedQueue.group),
    "TypedQueue.subscribe": (bmq.TypedQueue.subscribe, bmq.blocking.TypedQueue.subscribe),
    "consume": (bmq.consume,),
    "reader": (bmq.arrow.reader,),
}
ARGUMENTS = [
    (function, name, old, new)
    for name, names in _renamed.ARGUMENTS.items()
    for function in FUNCTIONS[name]
    for old, new in names.items()
]


NAMES = [(module, old, new) for module, names in _renamed.NAMES.items() for old, new in names.items()]


@pytest.mark.parametrize(("module", "old", "new"), NAMES)
def test_an_old_name_of_a_module_names_the_new_one(module: str, old: str, new: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(importlib.import_module(module), old)
    assert str(caught.value) == f"{module}.{old} is called {new}"
    place, _, name = new.rpartition(".")
    assert name in importlib.import_module(place).__all__


@pytest.mark.parametrize("module", _renamed.NAMES)
def test_an_unknown_name_is_an_ordinary_error(module: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'Nonsense'"):
        importlib.import_module(module).Nonsense  # noqa: B018


@pytest.mark.parametrize(("owner", "name", "old", "new"), ATTRIBUTES)
def test_an_old_attribute_names_the_new_one(owner: type, name: str, old: str, new: str) -> None:
    made = owner.__new__(owner)
    for thing in (made, owner):
        with pytest.raises(AttributeError) as caught:
            getattr(thing, old)
        assert str(caught.value) == f"{name}.{old} is called {name}.{new}"
        assert not hasattr(thing, old)
    assert hasattr(owner, new)


@pytest.mark.parametrize(("function", "name", "old", "new"), ARGUMENTS)
async def test_an_old_argument_names_the_new_one(function: Any, name: str, old: str, new: str) -> None:
    async def call() -> None:
        result = function(None, None, **{old: None})
        if inspect.isawaitable(result):
            await result

    with pytest.raises(TypeError) as caught:
        await call()
    assert str(caught.value) == f"{name}(): the argument {old} is now called {new}"
