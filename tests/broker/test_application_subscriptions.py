# SPDX-License-Identifier: Apache-2.0
"""Application subscriptions: expressions in the domain file, evaluated when a message is posted."""

from __future__ import annotations

import pytest

from bmq.broker.domain_config import AppSubscription
from bmq.wire.control import Status, StatusCategory
from tests.broker.core import FANOUT, PRIORITY, Core, CoreClient, domain, subscription
from tests.sweeps import sweep
from tests.transcripts import probes


def producer(core: Core, uri: str) -> CoreClient:
    peer = core.client()
    peer.open(uri, write=True)
    return peer


@pytest.mark.statement("1.25")
def test_the_last_entry_of_an_application_counts() -> None:
    core = Core(
        domain(
            "bmq.test.mem.fanout",
            subscriptions=(AppSubscription("foo", "x == 1"), AppSubscription("foo", "x == 2")),
        )
    )
    sender, reader = producer(core, FANOUT), core.client()
    reader.consume(f"{FANOUT}?id=foo")
    for x in (1, 2):
        sender.put(b"%d" % x, properties={"x": x})
    assert reader.payloads == [b"2"]


def test_an_invalid_subscription_refuses_the_open() -> None:
    core = Core(domain(subscriptions=(AppSubscription("", "x >"),)))
    answer = core.client().open(PRIORITY, write=True)
    assert isinstance(answer, Status)
    assert (answer.category, answer.code) == (StatusCategory.E_REFUSED, -10)


@sweep("text, properties, matched", probes()["expressions"])
def test_expressions_behave_as_measured(
    text: str, properties: dict[str, list[object]], matched: bool
) -> None:
    """Every measured expression, as a consumer's subscription on messages with the same properties."""
    from bmq.wire.constants import PropertyType
    from bmq.wire.properties import PropertyValue

    def value(kind: int, raw: str) -> PropertyValue:
        content = bytes.fromhex(raw)
        match PropertyType(kind):
            case PropertyType.BOOL:
                return PropertyValue(PropertyType.BOOL, content == b"\1")
            case PropertyType.STRING:
                return PropertyValue(PropertyType.STRING, content.decode())
            case PropertyType.CHAR | PropertyType.BINARY as kind_:
                return PropertyValue(kind_, content)
            case kind_:
                return PropertyValue(kind_, int.from_bytes(content, "big", signed=True))

    core = Core()
    sender, reader = producer(core, PRIORITY), core.client()
    reader.open(PRIORITY, read=True)
    reader.configure(subscription(1, text))
    typed = {name: value(kind, raw) for name, (kind, raw) in properties.items()}  # type: ignore[arg-type]
    sender.put(b"m", properties=typed)
    assert bool(reader.pushes) is matched
