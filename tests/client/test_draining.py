# SPDX-License-Identifier: Apache-2.0
"""Messages that do not match a filter are confirmed by their properties alone."""

from __future__ import annotations

import tracemalloc

import pytest

import bmq
from bmq.wire.message import join_application_data, read_properties, split_application_data
from bmq.wire.properties import encode_properties
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/drained"
PAYLOAD = bytes(30_000_000)


@pytest.mark.parametrize("new", [True, False], ids=["new properties", "old properties"])
def test_reading_properties_inflates_no_payload(new: bool) -> None:
    area = encode_properties({"x": 1, "name": "n" * 2000}, new=new)
    data, compression = join_application_data(PAYLOAD, area, new=new, compression=1)
    assert len(data) < 100_000
    tracemalloc.start()
    try:
        properties = read_properties(data, int(new), compression)
        assert dict(properties) == {"x": 1, "name": "n" * 2000}
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    whole, payload = split_application_data(data, has_properties=True, schema_id=int(new), compression=1)
    assert (dict(whole), payload) == (dict(properties), PAYLOAD)


@pytest.mark.parametrize("size", [0, 3, 6, 20])
def test_properties_that_are_cut_short_are_malformed(size: int) -> None:
    area = encode_properties({"x": 1, "name": "n" * 2000}, new=False)
    data, _ = join_application_data(bytes(5000), area[:size], new=False, compression=1)
    with pytest.raises(bmq.ProtocolError):
        dict(read_properties(data, 0, 1))
    with pytest.raises(bmq.ProtocolError):
        read_properties(b"no zlib", 0, 1)
    with pytest.raises(bmq.ProtocolError):
        read_properties(area, 1, 7)


async def test_discarded_messages_are_not_decompressed() -> None:
    uri = f"{URI}-inflated"
    async with (
        bmq.broker.Broker(port=0) as broker,
        bmq.connect(broker.uri, compression=bmq.Compression.ZLIB) as producing,
        bmq.connect(broker.uri) as consuming,
    ):
        producer = await producing.open_queue(uri, write=True)
        for _ in range(3):
            await producer.post(PAYLOAD, properties={"x": 2})
        await producer.post(b"last", properties={"x": 1})
        queue = await consuming.open_queue(uri, read=True)
        tracemalloc.start()
        try:
            async with queue.subscribe("exists(x) && x == 1", discard_unmatched=True) as consumer:
                assert (await consumer.receive(20)).data == b"last"
                await eventually(lambda: len(broker._hub.node.queues[uri].store) == 1)
                assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()
