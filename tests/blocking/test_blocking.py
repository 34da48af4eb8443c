# SPDX-License-Identifier: Apache-2.0
"""Posting and receiving without asyncio, as in a script."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

import bmq
from bmq.testing import BackgroundBroker
from tests.sweeps import sweep


@pytest.mark.statement("7.4")
def test_posted_message_is_received(queue: bmq.blocking.Queue) -> None:
    ack = queue.post(b"one", properties={"Number": 1}, tags=["new"])
    for message in queue:
        with message:
            assert (message.data, message.properties["Number"], message.tags) == (b"one", 1, {"new"})
            assert (message.guid, message.queue_uri) == (ack.guid, queue.uri)
            assert message.age >= 0
            assert not message.stale
            message.context["seen"] = True
            assert message.context == {"seen": True}
        break
    assert message.confirmed
    queue.flush()
    stats = queue.stats()
    assert (stats.acknowledged, stats.received, stats.confirmed) == (1, 1, 1)


def test_failed_messages_are_not_confirmed(session: bmq.blocking.Session, bmq_queue_uri: str) -> None:
    writer = session.open_queue(bmq_queue_uri, write=True)
    writer.post(b"1")
    with session.open_queue(bmq_queue_uri, read=True) as reader:
        message = reader.receive(timeout=10)
        with pytest.raises(ZeroDivisionError), message:
            raise ZeroDivisionError
        assert not message.confirmed
    with session.open_queue(bmq_queue_uri, read=True) as reader:
        again = reader.receive(timeout=10)
        assert again.guid == message.guid
        again.confirm()


def some(queue: bmq.blocking.Queue, count: int) -> list[bytes]:
    received: list[bytes] = []
    for batch in queue.batches(500):
        received += [message.data for message in batch]
        batch.confirm()
        if len(received) >= count:
            break
    return received


def test_post_many_posts_all_items(queue: bmq.blocking.Queue) -> None:
    """Items come from a list, or from a generator; the generator runs in this thread."""
    threads: set[int] = set()

    def payloads() -> Iterator[bytes]:
        for number in range(3000):
            threads.add(threading.get_ident())
            yield b"%d" % number

    assert queue.post_many([b"a", bmq.PutMessage(b"b", {"x": 1})]).acknowledged == 2
    report = queue.post_many(payloads())
    assert (report.posted, report.acknowledged, report.bytes) == (3000, 3000, 10_890)
    assert threads == {threading.get_ident()}
    assert some(queue, 3002) == [b"a", b"b", *(b"%d" % number for number in range(3000))]


def test_slow_generator_delays_no_post(queue: bmq.blocking.Queue) -> None:
    """Yielded items are posted while the generator waits, here for these messages."""

    def items() -> Iterator[bytes]:
        for number in range(3):
            yield b"%d a" % number
            yield b"%d b" % number
            received = [queue.receive(timeout=10).data for _ in range(2)]
            assert received == [b"%d a" % number, b"%d b" % number]

    assert queue.post_many(items()).acknowledged == 6
    assert queue.post_many(items(), rate=1000).acknowledged == 6


def test_illegal_item_ends_the_call_and_preceding_items_are_posted(queue: bmq.blocking.Queue) -> None:
    with pytest.raises(bmq.InvalidPayload, match="a payload must be bytes, not str"):
        queue.post_many(item for item in [b"1", b"2", "three", b"4"])  # type: ignore[misc]
    with pytest.raises(ZeroDivisionError):
        queue.post_many(b"%d" % (6 // (2 - number)) for number in range(5))
    queue.flush()
    assert [queue.receive(timeout=10).data for _ in range(4)] == [b"1", b"2", b"3", b"6"]
    assert queue.receive_nowait() is None


def test_failures_have_the_index_of_the_item(session: bmq.blocking.Session, bmq_queue_uri: str) -> None:
    queue = session.open_queue(bmq_queue_uri, write=True)

    def items() -> Iterator[bytes]:
        for number in range(1200):
            if number == 900:
                with suppress(bmq.RequestTimeout):
                    queue.close(timeout=0)
            yield b"x"

    with pytest.raises(bmq.QueueClosed) as closed:
        queue.post_many(items())
    report: bmq.PostReport = closed.value.report  # type: ignore[attr-defined]
    assert report.posted <= 900
    assert [each.index for each in report.failures] == [*range(report.acknowledged, report.posted)]


def test_post_nowait_returns_a_future(queue: bmq.blocking.Queue) -> None:
    pending = [queue.post_nowait(b"%d" % number, properties={"n": number}) for number in range(2000)]
    seen: list[Any] = []
    pending[-1].add_done_callback(seen.append)
    assert len({each.result(timeout=10).guid for each in pending}) == 2000
    assert pending[0].exception() is None
    queue.flush()
    assert seen == [pending[-1]]
    assert not pending[0].cancel()
    assert queue.post_nowait(bytes(100_000), tags=["large"], key="k").result(timeout=10)
    assert queue.post(b"last")
    assert some(queue, 2002) == [*(b"%d" % number for number in range(2000)), bytes(100_000), b"last"]


@sweep(
    "arguments, error",
    [
        ({"payload": b""}, bmq.InvalidPayload),
        ({"payload": "text"}, bmq.InvalidPayload),
        ({"payload": b"x", "properties": {"": 1}}, bmq.InvalidProperty),
        ({"payload": b"x", "properties": {"a": object()}}, bmq.InvalidProperty),
        ({"payload": b"x", "guid": "not one"}, bmq.UsageError),
        ({"payload": b"x", "compression": "zip"}, bmq.UsageError),
    ],
)
def test_illegal_arguments_raise_at_once(
    queue: bmq.blocking.Queue, arguments: dict[str, Any], error: type[Exception]
) -> None:
    for post in (queue.post, queue.post_nowait):
        with pytest.raises(error):
            post(**arguments)
    assert queue.unacked == 0


def test_a_full_window_is_an_error_of_post_nowait_alone(broker: str, bmq_queue_uri: str) -> None:
    with bmq.blocking.connect(broker, max_unacked_messages=2) as session:
        queue = session.open_queue(bmq_queue_uri, write=True)
        posted: list[bmq.blocking.PostFuture] = []
        with pytest.raises(bmq.BufferFull, match="waits for room"):  # two posts precede an acknowledgement
            posted.extend(queue.post_nowait(b"x") for _ in iter(int, 1))
        assert queue.post(b"waits for room")
        queue.flush()
        assert queue.stats().acknowledged == len(posted) + 1


def test_a_post_that_fails_and_is_forgotten_is_logged(
    bmq_background_broker: BackgroundBroker, bmq_queue_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    with bmq.blocking.connect(bmq_background_broker.uri) as session:
        queue = session.open_queue(bmq_queue_uri, write=True)
        bmq_background_broker.call(lambda broker: broker.faults.nack(bmq.AckStatus.LIMIT_MESSAGES, 2))
        asked, forgotten = queue.post_nowait(b"1"), queue.post_nowait(b"2")
        queue.flush()
        with pytest.raises(bmq.PostError, match="has reached its limit of messages"):
            asked.result()
        assert not caplog.records
        del asked, forgotten
        (record,) = caplog.records
        assert "its outcome was never retrieved: message" in record.getMessage()


def test_every_way_to_receive_returns_the_messages(queue: bmq.blocking.Queue) -> None:
    assert queue.receive_nowait() is None
    with pytest.raises(bmq.TimedOut, match=r"no message of bmq://.* arrived within 0.05 s"):
        queue.receive(timeout=0.05)
    with pytest.raises(bmq.UsageError, match="timeout must be a number"):
        queue.receive(timeout="soon")  # type: ignore[arg-type]
    queue.post_many([b"%d" % number for number in range(6)])
    first = queue.receive(timeout=10)
    assert first.data == b"0"
    assert isinstance(first.consumer, bmq.blocking.Consumer)
    first.consumer.put_back([first])
    assert first.consumer.buffered == 6
    batch = queue.receive_many(2, timeout=10)
    assert [message.data for message in batch] == [b"0", b"1"]
    with batch:
        assert batch[0].data == b"0"
        assert len(batch[:1]) == 1
    assert all(message.confirmed for message in batch)
    third = queue.receive_nowait()
    assert third is not None
    assert third.data == b"2"
    queue.confirm(third, queue.receive(timeout=10).guid)
    assert third.confirmed
    (subscription,) = queue.consumers
    subscription.pause()
    assert subscription.paused
    subscription.resume()
    assert [message.data for message in queue.receive_many(timeout=10)] == [b"4", b"5"]


def test_subscriptions_select_messages(session: bmq.blocking.Session, bmq_queue_uri: str) -> None:
    queue = session.open_queue(
        bmq_queue_uri, read=True, write=True, subscriptions=['kind == "a"'], default_subscription=False
    )
    (given,) = queue.consumers
    assert given.expressions == ['kind == "a"']
    with queue.subscribe('kind == "b"', priority=3) as made:
        queue.post_many([bmq.PutMessage(kind.encode(), {"kind": kind}) for kind in "abcab"])
        assert [given.receive(timeout=10).data for _ in range(2)] == [b"a", b"a"]
        for count, message in enumerate(made, 1):
            assert message.data == b"b"
            assert message.consumer is made
            message.confirm()
            if count == 2:
                break
        made.configure('kind == "c"')
        assert made.receive(timeout=10).data == b"c"
        assert made.stats().received == 3
    assert made.closed
    assert list(made) == []
    with pytest.raises(bmq.QueueClosed):
        made.receive()
    with pytest.raises(bmq.UsageError, match="default_subscription=False"):
        queue.receive()
    with pytest.raises(bmq.InvalidExpression):
        queue.subscribe("kind ==")


def test_messages_prefetched_by_a_loop_go_to_the_next_consumer(queue: bmq.blocking.Queue) -> None:
    queue.post_many([b"%d" % number for number in range(10)])
    with queue.subscribe() as first:
        for message in first:
            assert message.data == b"0"
            message.confirm()
            break
    with queue.subscribe() as second:
        assert [second.receive(timeout=10).data for _ in range(9)] == [b"%d" % n for n in range(1, 10)]


@dataclass
class Order:
    customer: Annotated[int, bmq.Property]
    item: str


def test_typed_queues_carry_values(queue: bmq.blocking.Queue) -> None:
    orders = queue.typed(Order)
    orders.post(Order(1, "tea"), properties={"Urgent": True})
    assert orders.post_nowait(Order(2, "milk")).result(timeout=10)
    assert orders.post_many(Order(number, "cup") for number in range(3, 6)).acknowledged == 3
    with pytest.raises(bmq.InvalidPayload):
        orders.post("no order")  # type: ignore[arg-type]
    with orders.subscribe("customer == 2") as two:
        assert two.receive(timeout=10).value == Order(2, "milk")
    with pytest.raises(bmq.InvalidExpression):
        orders.subscribe('customer == "two"')
    first = orders.receive(timeout=10)
    assert (first.value, first.properties["Urgent"]) == (Order(1, "tea"), True)
    for message in orders:
        with message:
            if message.value.customer == 5:
                break


def test_a_group_receives_its_buckets(broker: str, bmq_queue_uri: str) -> None:
    loaded: list[int] = []
    with bmq.blocking.connect(broker) as session:
        queue = session.open_queue(bmq_queue_uri, read=True, write=True, default_subscription=False)

        def load(bucket: int) -> None:
            assert queue.stats().posted == 20  # a hook may use the session: hooks run in a separate thread
            loaded.append(bucket)

        queue.post_many([bmq.PutMessage(b"%d" % number, key=str(number)) for number in range(20)])
        with queue.group(buckets=4, on_assigned=load) as group:
            for count, message in enumerate(group, 1):
                with message:
                    assert group.bucket_of(message) in loaded
                if count == 20:
                    break
            assert group.owned == set(loaded)
            assert group.receive_nowait() is None
            with pytest.raises(bmq.TimedOut):
                group.receive(timeout=0.01)
        assert group.closed
        assert list(group) == []


def test_session_events_and_options(broker: str) -> None:
    told: list[Any] = []
    with bmq.blocking.connect(broker, on_event=told.append, process_name="script") as session:
        assert session.options.process_name == "script"
        assert session.health().ready
        assert session.fileno() > 0
        assert session.address == broker
        events = session.events()
    assert isinstance(list(events)[-1], bmq.events.Disconnected)
    assert isinstance(told[-1], bmq.events.Disconnected)
    assert session.fileno() == -1


def test_a_typed_request_returns_a_value_or_raises_the_problem(
    session: bmq.blocking.Session, bmq_queue_uri: str, in_thread: Callable[[Callable[[], object]], Any]
) -> None:
    asked = session.open_queue(bmq_queue_uri, read=True)
    numbers = session.open_queue(bmq_queue_uri, write=True).typed(list[int])
    failed = {"bmq_error": "urn:test:odd: not even", "bmq_content_type": "application/problem+json"}

    def answer() -> None:
        for data, properties in ((b'{"a": 42}', {}), (b'{"type": "urn:test:odd", "title": "Odd"}', failed)):
            with asked.receive(timeout=10) as request:
                replies = session.open_output(str(request.properties["bmq_reply_to"]))
                replies.post(data, properties={"bmq_request": request.guid, **properties})

    in_thread(answer)
    assert numbers.request([6, 7], reply=dict[str, int], timeout=10) == {"a": 42}
    with pytest.raises(bmq.RequestFailed) as caught:
        numbers.request([3], reply=dict[str, int], timeout=10)
    assert (caught.value.type, caught.value.title) == ("urn:test:odd", "Odd")


def test_a_table_is_posted_and_received(queue: bmq.blocking.Queue) -> None:
    import polars as pl
    import pyarrow as pa

    table = pl.DataFrame({"value": ["a", "b"], "number": [1, 2]})
    assert queue.post_table(table, properties=["number"]).acknowledged == 2
    assert queue.post_encoded(queue.encode_table(table)).acknowledged == 2
    with queue.tables(properties={"number": pa.int64()}, max_rows=3) as tables:
        assert tables.schema.names == ["value", "number"]
        rows = tables.receive(timeout=10).num_rows
        while rows < 4:
            batch = next(iter(tables))
            rows += batch.num_rows
        assert batch["value"][-1].as_py() == b"b"
        assert (tables.unconfirmed, tables.confirm(1), tables.confirm(), tables.unconfirmed) == (4, 1, 3, 0)
        queue.post(b"c", properties={"number": 3})
        assert tables.receive(timeout=10).num_rows == 1
        tables.release()
        assert (tables.unconfirmed, tables.confirm()) == (0, 0)
    assert tables.closed
    assert list(tables) == []


def test_a_slow_credentials_function_is_awaited(broker: str) -> None:
    asked: list[str] = []

    def credentials() -> bmq.Credentials:
        asked.append(threading.current_thread().name)
        return bmq.Credentials.anonymous()

    with bmq.blocking.connect(broker, credentials=credentials):
        assert asked
        assert "bmq" not in asked


USES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "close": lambda session, *_: session.close(),
    "open": lambda session, queue, _: session.open_queue(queue.uri, read=True),
    "output": lambda session, *_: session.open_output("bmq://bmq.test.mem.priority/other"),
    "post": lambda _, queue, __: queue.post(b"x"),
    "post_nowait": lambda _, queue, __: queue.post_nowait(b"x"),
    "post_many": lambda _, queue, __: queue.post_many([b"x"]),
    "post_many generator": lambda _, queue, __: queue.post_many(iter([b"x"])),
    "flush": lambda _, queue, __: queue.flush(),
    "receive": lambda _, queue, __: queue.receive(),
    "receive_nowait": lambda _, queue, __: queue.receive_nowait(),
    "receive_many": lambda _, queue, __: queue.receive_many(),
    "configure": lambda _, queue, __: queue.configure(priority=3),
    "subscribe": lambda _, queue, __: queue.subscribe("x == 1").open(),
    "queue.close": lambda _, queue, __: queue.close(),
    "confirm": lambda _, __, message: message.confirm(),
    "stats": lambda session, queue, _: (type(session.stats()), type(queue.stats())),
    "state": lambda session, queue, _: (session.state, queue.state, session.queues, queue.closed),
}


async def test_use_after_closing_raises_as_in_asyncio(broker: str, bmq_queue_uri: str) -> None:
    async with bmq.connect(broker) as session:
        queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
        await queue.post(b"1")
        message = await queue.receive(timeout=10)
    with bmq.blocking.connect(broker) as other:
        blocking = other.open_queue(bmq_queue_uri, read=True, write=True)
        its_message = blocking.receive(timeout=10)  # the message was never confirmed

    async def said(use: Callable[[Any, Any, Any], Any], *objects: Any) -> Any:
        try:
            result = use(*objects)
            return await result if hasattr(result, "__await__") else result
        except bmq.Error as error:
            return type(error), str(error)

    for name, use in USES.items():
        there, here = await said(use, session, queue, message), await said(use, other, blocking, its_message)
        assert there == here, name
    with bmq.blocking.connect(broker) as again:
        again.open_queue(bmq_queue_uri, read=True).receive(timeout=10).confirm()


def test_closing_ends_loops(queue: bmq.blocking.Queue, in_thread: Callable[[Any], Any]) -> None:
    queue.post_many([b"1", b"2", b"3"])
    seen: list[bytes] = []
    first = threading.Event()

    def consume() -> None:
        for message in queue:
            seen.append(message.data)
            message.confirm()
            first.set()

    thread = in_thread(consume)
    assert first.wait(10)
    queue.session.close()
    thread.join(10)
    assert not thread.is_alive()
    assert list(queue) == []


def test_closing_waits_for_threads_that_handle(
    session: bmq.blocking.Session, bmq_queue_uri: str, in_thread: Callable[[Any], Any]
) -> None:
    queue = session.open_queue(bmq_queue_uri, read=True, write=True)
    queue.post_many([b"1", b"2"])
    inside, go = threading.Event(), threading.Event()
    posted: list[bmq.Ack] = []

    def handle() -> None:
        with queue.receive(timeout=10):
            inside.set()
            assert go.wait(10)
            posted.append(queue.post(b"while it closes"))

    def let_go() -> None:
        while not queue.closed:
            threading.Event().wait(0.001)
        go.set()

    with queue.receive(timeout=10):  # messages of the closing thread are not awaited
        in_thread(handle)
        assert inside.wait(10)
        in_thread(let_go)
        assert session.close().clean
    assert posted
    assert session.state is bmq.SessionState.CLOSED
