# SPDX-License-Identifier: Apache-2.0
"""What Tab completes is what the API page describes: nothing more, nothing less."""

from __future__ import annotations

import enum
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bmq
import bmq.arrow
import bmq.console
import bmq.conventions
import bmq.otel
import bmq.prometheus
import bmq.spark
import bmq.subscriptions
import bmq.taskiq
from bmq.testing import FaultProxy
from tests.programs.test_docs import generate as generate

URI = "bmq://bmq.test.mem.priority/q"
PARTS = (
    bmq,
    bmq.arrow,
    bmq.broker,
    bmq.codecs,
    bmq.console,
    bmq.conventions,
    bmq.delays,
    bmq.groups,
    bmq.otel,
    bmq.prometheus,
    bmq.taskiq,
    bmq.spark,
    bmq.subscriptions,
    bmq.testing,
    bmq.workers,
)
CLASSES = {
    name: value
    for part in PARTS
    for name in part.__all__
    if inspect.isclass(value := getattr(part, name)) and not issubclass(value, enum.Enum | BaseException)
}


@pytest.fixture(scope="module")
def page(generate: ModuleType) -> str:
    text = (Path(__file__).parent.parent / "docs" / "api.md").read_text(encoding="utf-8")
    return "\n" + str(generate.fill(text))


def described(page: str, name: str) -> set[str]:
    """The members of a class that the page has: with a heading, or in the list of attributes."""
    found = re.search(rf"^(##+) {name}$(.*?)(?=^##? |^\1 |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, f"{name} is not on the page"
    members = set(re.findall(rf"^#+ {name}\.(\w+)(?:\(\))?$", page, re.MULTILINE))
    attributes = re.search(r"\*\*Attributes\*\*\n\n(.*?)(?=\n\n|\Z)", found[2], re.DOTALL)
    if attributes:
        members |= set(re.findall(r"^- `(\w+)`:", attributes[1], re.MULTILINE))
    return members


def offered(thing: Any) -> set[str]:
    """The names of a class, or of an object with all it has, that are not those of its bases."""
    cls = thing if inspect.isclass(thing) else type(thing)
    inherited = {name for base in cls.__mro__[1:] for name in dir(base)}
    return {name for name in dir(thing) if not name.startswith("_")} - inherited


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_class_has_what_the_page_describes(page: str, name: str) -> None:
    assert offered(CLASSES[name]) <= described(page, name)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_name_is_on_the_page(page: str, part: ModuleType) -> None:
    errors = set(bmq.errors.__all__)
    for name in part.__all__:
        value = getattr(part, name)
        if name.startswith("_") or inspect.ismodule(value) or name in errors:
            continue
        assert re.search(rf"^##+ {name}$", page, re.MULTILINE), f"{part.__name__}.{name}"


async def test_objects_have_what_the_page_describes(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)
    async with (
        bmq.broker.Broker(clock=bmq.broker.ManualClock()) as broker,
        FaultProxy(broker.uri) as proxy,
        bmq.connect(proxy.uri) as session,
    ):
        queue = await session.open_queue(URI, read=True, write=True)
        ack = await queue.post(b"1")
        await queue.post(b"2")
        async with queue.subscribe() as consumer:
            message = await consumer.receive(timeout=10)
            batch = await consumer.receive_many(timeout=10)
            things = [
                *(session, session.options, session.stats(), session.health(), queue, consumer),
                *(queue.stats(), consumer.stats(), consumer.stats().confirm_seconds, bmq.Interceptor()),
                *(
                    bmq.Post(b"1", {}, ack.guid),
                    bmq.PostOutcome(queue, 1, 1),
                    bmq.Handling([message], "f", 1),
                ),
                *(message, message.properties, batch, ack, broker, broker.clock, proxy, proxy.connections[0]),
                *(bmq.App(broker.uri), bmq.HostHealth(), bmq.Expression("x == 1"), bmq.RoutingTable([])),
                *(bmq.TagFilter(), bmq.CmqTags(), bmq.QueueUri.parse(URI), bmq.Credentials.anonymous()),
                *(bmq.PutMessage(b"1"), bmq.PostReport(), bmq.CloseReport(), bmq.DeadLetter(URI)),
                *(bmq.NoRetry(), bmq.Backoff(every=1), bmq.ExponentialDecay(give_up_after=1)),
            ]
            wrong: dict[str, set[str]] = {}
            for thing in things:
                name = type(thing).__name__
                wrong[name] = offered(thing) ^ described(page, name)
            assert {name: names for name, names in wrong.items() if names} == {}
