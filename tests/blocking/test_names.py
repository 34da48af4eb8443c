# SPDX-License-Identifier: Apache-2.0
"""``bmq.blocking`` has the names, the arguments and the types of the asyncio API."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import bmq
import bmq.arrow
import bmq.groups
from scripts import unasync
from tests.programs.test_docs import generate as generate
from tests.programs.test_surface import described, offered
from tests.programs.test_surface import reference as reference
from tests.surface import current
from tests.sweeps import sweep

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
    return [
        (
            each.name,
            each.kind,
            getattr(each.default, "__self__", each.default),
            without_asyncio(each.annotation),
        )
        for each in inspect.signature(function).parameters.values()
    ]


@sweep("there, here", PAIRS.items(), ids=lambda each: each.__name__)
def test_names_arguments_and_types_are_the_same(there: Any, here: Any) -> None:
    assert current(here) == current(there)
    for one, other in [("__aiter__", "__iter__"), ("__aenter__", "__enter__"), ("__aexit__", "__exit__")]:
        assert hasattr(here, other) == hasattr(there, one) or issubclass(there, bmq.MessageBatch)
        assert not hasattr(here, one)
    assert not hasattr(here, "__await__")
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


@sweep("name", unasync.GENERATED)
def test_generated_modules_are_up_to_date(name: str) -> None:
    present = (unasync.PACKAGE / "blocking" / name).read_text(encoding="utf-8")
    assert present == unasync.GENERATED[name](), "python -m scripts.unasync"


@pytest.mark.parametrize("name", bmq.blocking.__all__)
def test_every_name_is_in_the_api_reference(reference: Any, name: str) -> None:
    value = getattr(bmq.blocking, name)
    if isinstance(value, type):
        assert offered(value) <= described(reference, value)
    else:
        assert f"[`{name}`](" in reference.pages()["api/blocking.md"]
