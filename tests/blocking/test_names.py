# SPDX-License-Identifier: Apache-2.0
"""``bmq.blocking`` has the names, the arguments and the types of the asyncio API."""

from __future__ import annotations

import dataclasses
import inspect
import re
from types import ModuleType
from typing import Any

import pytest

import bmq
import bmq.arrow
import bmq.groups
from tests.programs.test_docs import generate as generate
from tests.test_surface import described, offered

PAIRS = {
    bmq.Session: bmq.blocking.Session,
    bmq.Queue: bmq.blocking.Queue,
    bmq.Consumer: bmq.blocking.Consumer,
    bmq.Message: bmq.blocking.Message,
    bmq.MessageBatch: bmq.blocking.MessageBatch,
    bmq.TypedQueue: bmq.blocking.TypedQueue,
    bmq.TypedConsumer: bmq.blocking.TypedConsumer,
    bmq.TypedMessage: bmq.blocking.TypedMessage,
    bmq.groups.Group: bmq.blocking.Group,
    bmq.arrow.Tables: bmq.blocking.Tables,
}
#: For what calls handlers in the event loop.
NOT_HERE = {"around_handle"}


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")} - NOT_HERE


def without_asyncio(annotation: object) -> str:
    """What is written here for an annotation there."""
    text = re.sub(r" \| AsyncIterable\[[^\]]+\]", "", str(annotation))
    return text.replace("AsyncIterator", "Iterator")


def parameters(function: Any) -> list[tuple[str, Any, Any, str]]:
    signature = inspect.signature(function)
    return [
        (
            each.name,
            each.kind,
            getattr(each.default, "__self__", each.default),
            without_asyncio(each.annotation),
        )
        for each in signature.parameters.values()
    ]


@pytest.mark.parametrize(("there", "here"), PAIRS.items(), ids=lambda each: each.__name__)
def test_names_arguments_and_types_are_the_same(there: Any, here: Any) -> None:
    assert public(here) == public(there)
    for name in public(there):
        one, other = inspect.getattr_static(there, name), inspect.getattr_static(here, name)
        if isinstance(one, property):
            assert isinstance(other, property), name
            one, other = one.fget, other.fget
        if not inspect.isfunction(one):
            continue  # an attribute of the object
        assert parameters(other) == parameters(one), name
        returned = without_asyncio(inspect.signature(one).return_annotation)
        assert str(inspect.signature(other).return_annotation) == returned, name
        assert not inspect.iscoroutinefunction(other), name


@pytest.mark.parametrize(("there", "here"), PAIRS.items(), ids=lambda each: each.__name__)
def test_what_is_iterated_and_entered_there_is_here(there: type, here: type) -> None:
    for one, other in [("__aiter__", "__iter__"), ("__aenter__", "__enter__"), ("__aexit__", "__exit__")]:
        assert hasattr(here, other) == hasattr(there, one) or issubclass(there, bmq.MessageBatch)
    assert not any(hasattr(here, name) for name in ("__aiter__", "__aenter__", "__await__"))


def test_connect_takes_the_same() -> None:
    assert parameters(bmq.blocking.connect) == parameters(bmq.connect)


@pytest.mark.parametrize("name", bmq.blocking.__all__)
def test_every_name_is_in_the_api_reference(generate: ModuleType, name: str) -> None:
    value = getattr(bmq.blocking, name)
    if isinstance(value, type):
        assert offered(value) <= described(generate.api(), value)
    else:
        assert f"[`{name}`](" in generate.api().pages()["api/blocking.md"]


def test_the_results_are_the_same_classes(queue: bmq.blocking.Queue) -> None:
    ack = queue.post(b"1")
    assert isinstance(ack, bmq.Ack)
    assert isinstance(queue.post_many([b"2"]), bmq.PostReport)
    assert isinstance(queue.stats(), bmq.QueueStats)
    assert dataclasses.is_dataclass(queue.session.stats())
    assert isinstance(queue.session.close(), bmq.CloseReport)
