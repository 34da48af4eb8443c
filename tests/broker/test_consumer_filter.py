# SPDX-License-Identifier: Apache-2.0
"""The embedded broker's filter before each delivery, as Pulsar's proposal describes it; off by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bmq.broker import FilteredConsumer, TagConsumerFilter
from bmq.broker._consumer_filter import ConsumerFilter
from tests.broker.core import BROADCAST, FANOUT, PRIORITY, Core, CoreClient, domain
from tests.sweeps import sweep

MESSAGES: dict[str, dict[str, Any]] = {
    "urgent": {"tag0": "urgent", "tag1": "compressed"},
    "half": {"tag0": "urgent", "tag1": "uncompressed"},
    "one": {"tag0": "urgent"},
    "mixed_up": {"priority": "urgent", "mytag": "compressed"},
    "none": {},
}
URGENT = TagConsumerFilter({"": {"anytag": "urgent"}})


def filtered(consumer_filter: ConsumerFilter | None, base: str = "bmq.test.mem.priority") -> Core:
    return Core(domain(base, consumer_filter=consumer_filter))


def post(sender: CoreClient, *names: str) -> None:
    for name in names or MESSAGES:
        sender.put(name.encode(), properties=MESSAGES[name])


def received(reader: CoreClient) -> list[str]:
    return [payload.decode() for payload in reader.payloads]


@pytest.mark.statement("5.3", "5.4", "5.5", "5.7", "5.8", "5.12")
@sweep(
    "metadata, passing",
    [
        ({"anytag1": "urgent", "anytag2": "compressed"}, ["urgent", "half", "one"]),
        ({"alltag1": "urgent", "alltag2": "compressed"}, ["urgent"]),
        ({"anytag": "urgent", "alltagX": "uncompressed"}, ["half"]),
        ({"anytag1": "compressed", "alltag1": "compressed"}, ["urgent"]),  # overlap is allowed
        ({"anytag1": "late"}, []),
        ({"Anytag1": "late", "name": "worker", "tag0": "late"}, list(MESSAGES)),
        ({}, list(MESSAGES)),
        (None, list(MESSAGES)),  # no filter
    ],
)
def test_tags_as_in_the_proposal(metadata: dict[str, str] | None, passing: list[str]) -> None:
    """Any keys that begin with tag, and any number of values; what does not match is gone."""
    core = filtered(None if metadata is None else TagConsumerFilter({"": metadata}))
    reader = core.consumer()
    post(core.producer())
    assert received(reader) == passing
    assert core.stored() == len(passing)


@pytest.mark.statement("5.8")
def test_each_application_is_filtered_separately() -> None:
    core = filtered(TagConsumerFilter({"foo": {"anytag": "urgent"}}), "bmq.test.mem.fanout")
    foo, bar = core.consumer(f"{FANOUT}?id=foo"), core.consumer(f"{FANOUT}?id=bar")
    post(core.producer(FANOUT), "urgent", "none", "one")
    assert received(foo) == ["urgent", "one"]
    assert received(bar) == ["urgent", "none", "one"]


@pytest.mark.statement("5.8")
def test_any_function_with_the_consumer_as_argument_is_a_filter() -> None:
    asked: list[FilteredConsumer] = []

    def small(consumer: FilteredConsumer, properties: Mapping[str, Any]) -> bool:
        asked.append(consumer)
        return properties["size"] < 10

    core = filtered(small)
    sized, rest = core.consumer(text="size > 0"), core.consumer(text="size <= 0")
    sender = core.producer()
    for size in (5, 50, 6, 0):
        sender.put(b"%d" % size, properties={"size": size})
    assert (received(sized), received(rest)) == (["5", "6"], ["0"])
    assert [each.expression for each in asked] == ["size > 0"] * 3 + ["size <= 0"]
    assert {(each.queue, each.app_id) for each in asked} == {(PRIORITY, "")}
    assert all("test" in each.client for each in asked)


def test_filter_is_called_before_redelivery_and_can_be_changed() -> None:
    core = filtered(None)
    first, sender = core.consumer(), core.producer()
    post(sender, "urgent", "none")
    assert received(first) == ["urgent", "none"]
    core.node.configure(core.node.domains["bmq.test.mem.priority"], domain(consumer_filter=URGENT))
    first.disconnect()
    assert received(core.consumer()) == ["urgent"]
    assert core.stored() == 1


def test_broadcast_messages_are_filtered() -> None:
    core = filtered(URGENT, "bmq.test.mem.broadcast")
    reader = core.consumer(BROADCAST)
    post(core.producer(BROADCAST))
    assert received(reader) == ["urgent", "half", "one"]


def test_a_failing_filter_passes_the_message_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def broken(consumer: FilteredConsumer, properties: Mapping[str, Any]) -> bool:
        raise LookupError("no such tag")

    core = filtered(broken)
    reader = core.consumer()
    post(core.producer(), "none")
    assert received(reader) == ["none"]
    assert f"the consumer filter of {PRIORITY} failed" in caplog.text
