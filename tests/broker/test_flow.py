# SPDX-License-Identifier: Apache-2.0
"""Flow control of consumers: limits of unconfirmed messages and bytes, and slow readers."""

from __future__ import annotations

import pytest

from bmq.wire.push import decode_pushes
from tests.broker.core import PRIORITY, Core, CoreClient, subscription


def pair(**limits: int) -> tuple[CoreClient, CoreClient]:
    core = Core()
    reader, writer = core.client(), core.client()
    reader.consume(PRIORITY, **limits)
    writer.open(PRIORITY, write=True)
    return reader, writer


@pytest.mark.parametrize(("size", "more"), [(120, 0), (121, 1)])
def test_new_byte_limit_counts_unconfirmed_messages(size: int, more: int) -> None:
    core = Core()
    reader, writer = core.client(), core.client()
    reader.open(PRIORITY, read=True)
    reader.configure(subscription(1, size=1000, messages=2))
    writer.open(PRIORITY, write=True)
    writer.put(*[b"x" * 60] * 4)
    assert len(reader.pushes) == 2
    reader.configure(subscription(1, size=size))
    assert len(reader.pushes) == more


def test_bulk_output_is_divided_into_events_of_a_megabyte() -> None:
    reader, writer = pair()
    payloads = [bytes([number]) * 100_000 for number in range(25)]
    writer.put(*payloads)
    events = reader.receive()
    assert [len(event.data) // 100_000 for event in events] == [11, 11, 3]
    arrived = [push.data for event in events for push in decode_pushes(event.data, event.body)]
    assert [data[:100_000] for data in arrived] == payloads


def test_delivery_resumes_when_both_counters_have_fallen() -> None:
    reader, writer = pair(messages=10, size=100)
    guids = writer.put(b"x" * 90, b"x" * 10, b"z")
    assert len(reader.pushes) == 2
    reader.confirm(guids[1])
    assert reader.pushes == [], "90 bytes left: above 80 % of 100"
    reader.confirm(guids[0])
    assert len(reader.pushes) == 1


def test_any_change_of_consumers_resumes_delivery_below_the_limit() -> None:
    """Above 80 % but below the limit: a configure of somebody else makes room (seen in a real broker)."""
    core = Core()
    reader, writer, other = core.client(), core.client(), core.client()
    reader.consume(PRIORITY, messages=10, priority=1)
    writer.open(PRIORITY, write=True)
    guids = writer.put(*[b"m"] * 20)
    assert len(reader.pushes) == 10
    reader.confirm(guids[0])
    assert len(reader.pushes) == 0
    other.consume(PRIORITY, priority=0)
    assert len(reader.pushes) == 1


def test_a_client_that_does_not_read_gets_no_more_than_the_high_water_mark() -> None:
    core = Core()
    slow, writer = core.connect(high_water=100_000), core.client()
    slow.negotiate()
    slow.consume(PRIORITY, messages=10_000, size=10**9)
    writer.open(PRIORITY, write=True)
    for _ in range(100):
        writer.put(*[b"x" * 1000] * 10)
        writer.receive()
    assert slow.output.size < 110_000
    assert not slow.output.accepting
    delivered = len(slow.pushes)
    assert delivered < 110
    while delivered < 1000:
        # What the transport does when the client has read.
        slow.output.accept(True)
        core.node.deliver(core.now)
        more = len(slow.pushes)
        assert 0 < more < 110
        delivered += more
