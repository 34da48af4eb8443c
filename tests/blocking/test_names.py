# SPDX-License-Identifier: Apache-2.0
"""``bmq.blocking`` has the names, the arguments and the types of the asyncio API."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import pytest

import bmq
import bmq.arrow
import bmq.groups
from scripts import unasync
from tests.programs.test_docs import generate as generate
from tests.surface import current
from tests.test_surface import described, offered
from tests.test_surface import reference as reference

PAIRS = {
    bmq.Session: bmq.blocking.Session,
    bmq.Queue: bmq.blocking.Queue,
    bmq.Consumer: bmq.blocking.Consumer,
    bmq.Message: bmq.blocking.Message,
    bmq.MessageBatch: bmq.blocking.MessageBatch,
    bmq.TypedQueue: bmq.blocking.TypedQueue,
    bmq.typed.TypedConsumer: bmq.blocking.TypedConsumer,
    bmq.TypedMessage: bmq.blocking.TypedMessage,
    bmq.typed.TypedBatch: bmq.blocking.TypedBatch,
    bmq.typed.TypedGroup: bmq.blocking.TypedGroup,
    bmq.groups.Group: bmq.blocking.Group,
    bmq.arrow.Tables: bmq.blocking.Tables,
}


def without_asyncio(annotation: object) -> str:
    """Return the form of an annotation in this package."""
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
    assert current(here) == current(there)
    for name in current(there):
        one, other = inspect.getattr_static(there, name), inspect.getattr_static(here, name)
        if isinstance(one, property):
            assert isinstance(other, property), name
            one, other = one.fget, other.fget
        if not inspect.isfunction(one):
            continue  # an attribute of the object
        assert parameters(other) == parameters(one), name
        returned = without_asyncio(inspect.signature(one).return_annotation)
        returned = "Self" if returned == there.__name__ else returned
        assert str(inspect.signature(other).return_annotation) == returned, name
        assert not inspect.iscoroutinefunction(other), name


@pytest.mark.parametrize(("there", "here"), PAIRS.items(), ids=lambda each: each.__name__)
def test_blocking_classes_have_the_same_iterators_and_context_managers(there: type, here: type) -> None:
    for one, other in [("__aiter__", "__iter__"), ("__aenter__", "__enter__"), ("__aexit__", "__exit__")]:
        assert hasattr(here, other) == hasattr(there, one) or issubclass(there, bmq.MessageBatch)
    assert not any(hasattr(here, name) for name in ("__aiter__", "__aenter__", "__await__"))


#: For each typed class: the class for messages, the attribute with its object, and the names available only
#: through this attribute, because they have no values.
TYPED = {
    bmq.TypedQueue: (
        bmq.Queue,
        "queue",
        {
            *("close", "closed", "confirm", "readable", "consumers", "state", "unacked", "unclaimed"),
            *("delay_queue_uri", "writable"),
            # columns and encoded messages have no values
            *("encode_table", "post_encoded", "post_table", "tables"),
            "typed",
        },
    ),
    bmq.typed.TypedConsumer: (
        bmq.Consumer,
        "consumer",
        {"buffered", "closed", "expression", "expressions", "options", "paused", "wait"},
    ),
    bmq.typed.TypedGroup: (
        bmq.groups.Group,
        "group",
        {"bucket_of", "closed", "fence", "holds", "owned", "unconfirmed"},
    ),
}


@pytest.mark.parametrize("typed", TYPED, ids=lambda each: each.__name__)
def test_a_typed_class_has_the_names_and_arguments_of_its_messages(typed: Any) -> None:
    plain, _, elsewhere = TYPED[typed]
    assert current(typed) == current(plain) - elsewhere
    assert elsewhere <= current(plain)
    for name in current(typed):
        one, other = inspect.getattr_static(plain, name), inspect.getattr_static(typed, name)
        if isinstance(one, property):
            assert isinstance(other, property), name
            continue
        values = {"payload": "value", "items": "values"}
        expected = [(values.get(each, each), kind) for each, kind, _, _ in parameters(one)]
        # A request has an additional argument: the type of the reply's value.
        found = [each for each in parameters(other) if each[0] != "reply"]
        assert [(each, kind) for each, kind, _, _ in found] == expected, name
        assert (len(found) < len(parameters(other))) == (name == "request")
        first = [each for each, _, _, _ in parameters(one)[:2]]
        for mine, its in zip(found, parameters(one), strict=True):
            if its[0] in first and its[0] in values:
                continue  # a value instead of bytes
            assert (mine[2] in (its[2], ()), mine[3]) == (True, its[3]), (name, mine[0])
        assert inspect.iscoroutinefunction(other) == inspect.iscoroutinefunction(one), name


@pytest.mark.parametrize("name", unasync.GENERATED)
def test_generated_modules_are_up_to_date(name: str) -> None:
    present = (unasync.PACKAGE / "blocking" / name).read_text(encoding="utf-8")
    assert present == unasync.GENERATED[name](), "python -m scripts.unasync"


def test_connect_takes_the_arguments_of_asyncio() -> None:
    assert parameters(bmq.blocking.connect) == parameters(bmq.connect)


@pytest.mark.parametrize("name", bmq.blocking.__all__)
def test_every_name_is_in_the_api_reference(reference: Any, name: str) -> None:
    value = getattr(bmq.blocking, name)
    if isinstance(value, type):
        assert offered(value) <= described(reference, value)
    else:
        assert f"[`{name}`](" in reference.pages()["api/blocking.md"]


def test_results_have_the_classes_of_asyncio(queue: bmq.blocking.Queue) -> None:
    ack = queue.post(b"1")
    assert isinstance(ack, bmq.Ack)
    assert isinstance(queue.post_many([b"2"]), bmq.PostReport)
    assert isinstance(queue.stats(), bmq.stats.QueueStats)
    assert dataclasses.is_dataclass(queue.session.stats())
    assert isinstance(queue.session.close(), bmq.CloseReport)
