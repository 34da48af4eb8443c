# SPDX-License-Identifier: Apache-2.0
"""``publish_to``: the results of handlers are posted, and acknowledged before the input is confirmed."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

import bmq
from bmq.conventions import derived_guid
from tests.waiting import eventually

NewUri = Callable[..., str]
Connect = Callable[..., Awaitable[bmq.Session]]


@dataclass
class Order:
    number: Annotated[int, bmq.Property]
    lines: Annotated[int, bmq.Property] = 1


@dataclass
class Invoice:
    order: Annotated[int, bmq.Property]
    line: int = 0


class Bench:
    """An app with an input queue and two output queues."""

    def __init__(self, broker: Any, session: bmq.Session, new_uri: NewUri) -> None:
        self.broker = broker
        self.session = session
        self.input = new_uri()
        self.output, self.other, self.dead = (f"{self.input}.{name}" for name in ("out", "other", "dead"))
        self.failures: list[bmq.workers.Failure] = []
        self.app = self.new_app()

    def new_app(self) -> bmq.App:
        return bmq.App(self.broker.uri, grace=1, on_error=self.failures.append)

    def consumer(self, **options: Any) -> Callable[[Any], Any]:
        """Register a handler of the input, with results for the output."""
        return lambda function: self.app.consumer(self.input, **options)(
            self.app.publish_to(self.output)(function)
        )

    def batch_consumer(self, **options: Any) -> Callable[[Any], Any]:
        """Register a handler of batches of the input, with results for the output."""
        return lambda function: self.app.batch_consumer(self.input, max_wait=5, **options)(
            self.app.publish_to(self.output)(function)
        )

    async def post(self, *orders: Order) -> list[str]:
        queue = await self.session.open_output(self.input)
        return [(await queue.typed(Order).post(each)).guid for each in orders]

    async def received(self, count: int, uri: str | None = None) -> list[bmq.TypedMessage[Invoice]]:
        """Return the messages of an output queue, which has no more than these."""
        queue = await self.session.open_queue(uri or self.output, read=True)
        found = [await queue.typed(Invoice).receive(timeout=20) for _ in range(count)]
        for each in found:
            each.confirm()
        await queue.close()
        assert self.stored(uri or self.output) == 0
        return found

    async def finished(self) -> None:
        """Wait until every input is confirmed."""
        await eventually(lambda: self.stored(self.input) == 0)

    def guid(self, of: str, number: int = 1) -> str:
        """The GUID of the output of a number, of an input of this GUID."""
        return derived_guid(of, self.input, self.output, "output", str(number))

    def stored(self, uri: str) -> int:
        queues: dict[str, Any] = self.broker.queues
        return len(queues[uri]) if uri in queues else 0


@pytest.fixture
def bench(bmq_broker: Any, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri) -> Bench:
    return Bench(bmq_broker, bmq_session, bmq_new_queue_uri)


QUICK = bmq.Backoff(0.01, retries=3)


async def test_a_result_is_posted_with_its_type_properties_and_a_derived_guid(bench: Bench) -> None:
    @bench.app.consumer(bench.input)
    @bench.app.publish_to(bench.output, properties={"source": "billing"}, key=lambda invoice: invoice.order)
    @bench.app.publish_to(bench.other, codec="application/msgpack")
    async def bill(order: Order) -> Invoice | None:
        return Invoice(order.number) if order.number else None

    assert await bill(Order(3)) == Invoice(3)
    async with bench.app:
        first, _, last = await bench.post(Order(1), Order(0), Order(2))
        found = await bench.received(2)
        others = await bench.received(2, bench.other)
    assert [each.value for each in found] == [each.value for each in others] == [Invoice(1), Invoice(2)]
    assert found[0].properties["order"] == 1
    assert found[0].properties["source"] == "billing"
    assert "bmq_bucket" in found[0].properties
    assert others[0].properties["bmq_content_type"] == "application/msgpack"
    assert [each.guid for each in found] == [bench.guid(first), bench.guid(last)]
    await bench.finished()


async def test_a_generator_posts_several_results_each_once_after_a_failure(bench: Bench) -> None:
    @bench.consumer(retry=QUICK)
    async def bill(order: Order, attempt: bmq.Attempt) -> AsyncIterator[Invoice | bmq.PutMessage | None]:
        for line in range(order.lines):
            yield Invoice(order.number, line) if line != 1 else None
            await asyncio.sleep(0)
        if attempt.number == 1:
            raise OSError("not now")
        yield bmq.PutMessage(b'{"order": 9, "line": 9}', {"own": True}, guid="F" * 32)

    async with bench.app:
        (guid,) = await bench.post(Order(1, lines=3))
        found = await bench.received(3)
    assert [each.value for each in found] == [Invoice(1, 0), Invoice(1, 2), Invoice(9, 9)]
    assert [each.guid for each in found] == [bench.guid(guid, 1), bench.guid(guid, 3), "F" * 32]
    assert dict(found[2].properties) == {"own": True}


async def test_a_handler_in_a_thread_and_bytes_are_published(bench: Bench) -> None:
    threads: list[int] = []

    @bench.consumer()
    def bill(order: Order, message: bmq.Message) -> bytes:
        threads.append(threading.get_ident())
        return b'{"order": %d}' % order.number

    async with bench.app:
        await bench.post(Order(1))
        (found,) = await bench.received(1)
    assert found.value == Invoice(1)
    assert threads[0] != threading.get_ident()


async def test_outputs_are_acknowledged_before_the_input_is_confirmed(bench: Bench) -> None:
    log: list[str] = []

    class Log(bmq.Interceptor):
        def on_post(self, queue: bmq.Queue, posts: Any) -> None:
            log.extend("post" for _ in posts)

        def on_ack(self, context: Any, outcome: Any) -> None:
            log.append("ack")

        def on_confirm(self, consumer: bmq.Consumer, messages: Any) -> None:
            log.append("confirm")

    app = bmq.App(bench.broker.uri, interceptors=[Log()])

    @app.consumer(bench.input)
    @app.publish_to(bench.output)
    async def bill(order: Order) -> AsyncIterator[Invoice]:
        yield Invoice(order.number)
        yield Invoice(order.number, 1)

    await bench.post(Order(1))
    bench.broker.faults.delay_acks(0.3)
    async with app:
        await eventually(lambda: bench.stored(bench.output) == 2)
        assert bench.stored(bench.input) == 1
        await bench.finished()
    assert list(dict.fromkeys(log)) == ["post", "ack", "confirm"]
    assert log.count("post") == 2
    assert log.index("confirm") == len(log) - 1


async def test_a_refused_output_fails_the_attempt_and_is_retried(bench: Bench) -> None:
    calls: list[int] = []

    @bench.app.consumer(bench.input, retry=QUICK)
    @bench.app.publish_to(bench.output)
    @bench.app.publish_to(bench.other)
    async def bill(order: Order, attempt: bmq.Attempt) -> Invoice:
        calls.append(attempt.number)
        return Invoice(order.number)

    await bench.post(Order(1))
    bench.broker.faults.nack(bmq.AckStatus.LIMIT_MESSAGES, 2)
    async with bench.app:
        assert (await bench.received(1))[0].value == Invoice(1)
        assert (await bench.received(1, bench.other))[0].value == Invoice(1)
        await bench.finished()
    assert calls == [1, 2, 3]
    assert [(type(each.error), each.attempt) for each in bench.failures] == [
        (bmq.PostError, 1),
        (bmq.PostError, 2),
    ]


async def test_outputs_after_durable_retries_have_the_guid_of_the_original(bench: Bench) -> None:
    @bench.consumer(retry=bmq.Backoff(0.05, retries=2, durable=True))
    async def bill(order: Order, attempt: bmq.Attempt) -> Invoice:
        if attempt.number == 1:
            raise OSError("not now")
        return Invoice(order.number)

    async with bench.app:
        (guid,) = await bench.post(Order(1))
        (found,) = await bench.received(1)
    assert found.guid == bench.guid(guid)


async def test_a_result_of_another_type_is_given_up_with_the_reason(bench: Bench) -> None:
    @bench.consumer(retry=bmq.NoRetry("discard"))
    async def bill(order: Order) -> Invoice:
        return order  # type: ignore[return-value]

    async with bench.app:
        await bench.post(Order(1))
        await eventually(lambda: len(bench.failures) == 1)
    assert str(bench.failures[0].error) == "a value must be Invoice, not Order"
    assert bench.stored(bench.output) == 0


async def test_the_result_of_an_undecodable_hook_is_not_published(bench: Bench) -> None:
    hooked: list[str] = []

    async def cannot(message: bmq.Message, error: bmq.Undecodable) -> str:
        hooked.append(str(error))
        return "not an output"

    @bench.consumer(undecodable=cannot)
    async def bill(order: Order) -> AsyncIterator[Invoice]:
        yield Invoice(order.number)

    async with bench.app:
        await (await bench.session.open_output(bench.input)).post(b"no order")
        await eventually(lambda: bool(hooked) and bench.stored(bench.input) == 0)
    assert bench.stored(bench.output) == 0
    assert bench.failures == []


async def test_a_batch_returns_one_result_for_each_message(bench: Bench) -> None:
    calls: list[int] = []

    @bench.batch_consumer(max_messages=4, retry=QUICK)
    async def bill(orders: list[Order]) -> list[Invoice | Exception | None]:
        calls.append(len(orders))
        found: list[Invoice | Exception | None] = []
        for order in orders:
            if order.number == 3 and len(calls) == 1:
                found.append(OSError("not now"))
            else:
                found.append(Invoice(order.number) if order.number != 2 else None)
        return found

    guids = await bench.post(*map(Order, range(4)))
    async with bench.app:
        found = await bench.received(3)
        await bench.finished()
    assert calls == [4, 1]
    assert [each.value.order for each in found] == [0, 1, 3]
    assert [each.guid for each in found] == [bench.guid(guids[n]) for n in (0, 1, 3)]
    assert [str(each.error) for each in bench.failures] == ["not now"]


async def test_only_messages_with_refused_outputs_are_repeated_in_a_batch(bench: Bench) -> None:
    calls: list[list[int]] = []

    @bench.batch_consumer(max_messages=4, retry=QUICK)
    async def bill(orders: list[Order]) -> list[Invoice | None]:
        calls.append([order.number for order in orders])
        return [Invoice(order.number) if order.number else None for order in orders]

    await bench.post(*map(Order, range(4)))
    bench.broker.faults.nack(bmq.AckStatus.LIMIT_MESSAGES, 2)
    async with bench.app:
        await bench.finished()
    assert calls == [[0, 1, 2, 3], [1, 2]]
    assert sorted(each.value.order for each in await bench.received(3)) == [1, 2, 3]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([], "bill must return a list with one result for each of the 2 messages of the batch"),
        (None, "bill must return a list with one result"),
        (bmq.PartlyFailed({0: OSError("x")}), "bill has raised PartlyFailed, which would lose the results"),
    ],
)
async def test_a_batch_with_missing_results_stays_in_the_queue(
    bench: Bench, result: Any, message: str
) -> None:
    @bench.batch_consumer(max_messages=2)
    async def bill(orders: list[Order]) -> list[Invoice]:
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[no-any-return]

    await bench.post(Order(1), Order(2))
    async with bench.app:
        await eventually(lambda: len(bench.failures) == 2)
    assert str(bench.failures[0].error).startswith(message)
    assert (bench.stored(bench.input), bench.stored(bench.output)) == (2, 0)


async def test_an_attempt_that_times_out_while_posting_is_retried_with_the_same_guid(bench: Bench) -> None:
    @bench.consumer(timeout=0.2, retry=bmq.Backoff(0.01, retries=100))
    async def bill(order: Order) -> Invoice:
        return Invoice(order.number)

    await bench.post(Order(1))
    bench.broker.faults.delay_acks(0.5)
    async with bench.app:
        await eventually(lambda: bool(bench.failures))
        bench.broker.faults.clear()
        await bench.finished()
        (found,) = await bench.received(1)
    assert found.value == Invoice(1)
    assert {type(each.error) for each in bench.failures} == {TimeoutError}


@pytest.mark.parametrize("steps", range(1, 25, 2))
async def test_a_cancellation_at_any_step_loses_no_output(bench: Bench, steps: int) -> None:
    """The app is cancelled after some turns; the next app finishes, and each output is stored once."""

    def register(app: bmq.App) -> bmq.App:
        @app.consumer(bench.input)
        @app.publish_to(bench.output)
        @app.publish_to(bench.other)
        async def bill(order: Order) -> AsyncIterator[Invoice]:
            started.set()
            yield Invoice(order.number, 1)
            await asyncio.sleep(0)
            yield Invoice(order.number, 2)

        return app

    started = asyncio.Event()
    await bench.post(Order(1))
    running = asyncio.create_task(register(bench.app).run(signals=False))
    await started.wait()
    for _ in range(steps):
        await asyncio.sleep(0)
    running.cancel()
    running.cancel()
    await asyncio.wait([running])
    if bench.stored(bench.input) == 0:
        assert (bench.stored(bench.output), bench.stored(bench.other)) == (2, 2)
    async with register(bench.new_app()):
        await bench.finished()
    for uri in (bench.output, bench.other):
        assert [each.value.line for each in await bench.received(2, uri)] == [1, 2]


async def test_an_app_publishes_to_its_own_input(bench: Bench) -> None:
    @bench.app.consumer(bench.input, expression="lines > 0")
    @bench.app.publish_to(bench.input)
    async def shorten(order: Order, message: bmq.Message) -> bmq.PutMessage | None:
        left = order.lines - 1
        return bmq.PutMessage(b'{"number": 1, "lines": %d}' % left, {"lines": left}) if left else None

    async with bench.app:
        queue = await bench.session.open_output(bench.input)
        await queue.post(b'{"number": 1, "lines": 3}', properties={"lines": 3})
        await eventually(lambda: bench.app.session.stats().confirmed == 3)
    assert bench.stored(bench.input) == 0
