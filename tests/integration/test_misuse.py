# SPDX-License-Identifier: Apache-2.0
"""Misuse raises an error with a helpful text, before anything is sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import bmq
from bmq.client.limits import ConsumerLimits
from tests.integration.steps import Connect, NewUri


@pytest.fixture
async def queue(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)


@pytest.mark.statement("4.9")
async def test_posting_to_a_queue_opened_for_reading(bmq_session: bmq.Session, bmq_queue_uri: str) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True)
    with pytest.raises(bmq.UsageError, match=r"not opened for writing: open_queue\(\.\.\., write=True\)"):
        await queue.post(b"x")
    with pytest.raises(bmq.UsageError, match="not opened for writing"):
        queue.post_nowait(b"x")


async def test_reading_from_a_queue_opened_for_writing(bmq_session: bmq.Session, bmq_queue_uri: str) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, write=True)
    expected = r"not opened for reading"
    with pytest.raises(bmq.UsageError, match=expected):
        await queue.receive()
    with pytest.raises(bmq.UsageError, match=expected):
        async for _ in queue:
            pass
    with pytest.raises(bmq.UsageError, match=expected):
        queue.subscribe("x == 1")
    with pytest.raises(bmq.UsageError, match=expected):
        await queue.configure(priority=1)


@pytest.mark.statement("4.8")
async def test_an_empty_payload_is_refused(queue: bmq.Queue) -> None:
    with pytest.raises(bmq.InvalidPayload, match="empty"):
        await queue.post(b"")


async def test_a_payload_over_64_mib(queue: bmq.Queue) -> None:
    with pytest.raises(bmq.InvalidPayload, match="64 MiB"):
        await queue.post(bytes(64 * 1024 * 1024 + 1))


@pytest.mark.parametrize("payload", ["text", 42, None, ["list"]])
async def test_payload_other_than_bytes_is_refused(queue: bmq.Queue, payload: object) -> None:
    with pytest.raises(bmq.InvalidPayload, match=f"bytes, not {type(payload).__name__}"):
        await queue.post(payload)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        ({"": 1}, "1 to 4095"),
        ({"_private": 1}, "must start with an ASCII letter or digit"),
        ({"é": 1}, "must start with an ASCII letter or digit"),
        ({"x" * 4096: 1}, "1 to 4095"),
        ({1: 1}, "a property name must be a str, not int"),
        (["x"], r"properties must be a mapping of names to values, not .* \(list\)"),
        ({"x": 1.5}, "not float"),
        ({"x": None}, "not NoneType"),
        ({"x": 2**63}, "does not fit"),
        ({"x": bmq.PropertyValue(bmq.PropertyType.SHORT, 2**15)}, "does not fit SHORT"),
        ({f"p{n}": n for n in range(256)}, "256 properties; a message has at most 255"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_properties_that_are_not_legal(
    queue: bmq.Queue, properties: dict[str, int], sentence: str
) -> None:
    with pytest.raises(bmq.InvalidProperty, match=sentence):
        await queue.post(b"x", properties=properties)


@pytest.mark.parametrize("tags", ["urgent", [1], [None]])
async def test_invalid_tags_are_refused(queue: bmq.Queue, tags: list[str]) -> None:
    with pytest.raises(bmq.UsageError, match="tag"):
        await queue.post(b"x", tags=tags)


@pytest.mark.parametrize("selector", [5, b"x == 1", ["x == 1"]])
async def test_invalid_expression_type_is_refused(queue: bmq.Queue, selector: str) -> None:
    with pytest.raises(
        bmq.UsageError, match=rf"messages must be selected by .*, not by .*\({type(selector).__name__}\)"
    ):
        queue.subscribe(selector)


async def test_missing_result_is_named_at_the_timeout(queue: bmq.Queue) -> None:
    sentence = f"no message of {queue.uri} arrived within 0.01 s"
    for waiting in (queue.receive, queue.receive_many):
        with pytest.raises(bmq.TimedOut) as caught:
            await waiting(timeout=0.01)
        assert str(caught.value) == sentence
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.retryable
        with pytest.raises(
            bmq.UsageError, match="timeout must be a number of seconds, at least 0, or None, not 'x'"
        ):
            await waiting(timeout="x")  # type: ignore[arg-type]


async def test_refused_payload_is_not_sent(queue: bmq.Queue) -> None:
    for payload in (b"", "text"):
        with pytest.raises(bmq.InvalidPayload):
            await queue.post(payload)  # type: ignore[arg-type]
    assert queue.unacked == 0
    await queue.post(b"good")
    assert (await queue.receive(timeout=20)).data == b"good"


async def test_opening_a_uri_twice_is_an_error(bmq_session: bmq.Session, queue: bmq.Queue) -> None:
    with pytest.raises(bmq.StateError, match=f"{queue.uri} is already open"):
        await bmq_session.open_queue(queue.uri, read=True)


@pytest.mark.statement("7.3")
async def test_open_without_a_side_is_refused(bmq_session: bmq.Session, bmq_queue_uri: str) -> None:
    with pytest.raises(bmq.UsageError, match="read=True, write=True, or both"):
        await bmq_session.open_queue(bmq_queue_uri)


async def test_writing_with_an_app_id(bmq_session: bmq.Session, bmq_new_queue_uri: NewUri) -> None:
    uri = bmq_new_queue_uri("bmq.test.mem.fanout")
    with pytest.raises(bmq.UsageError, match="opened for writing only"):
        await bmq_session.open_queue(f"{uri}?id=foo", read=True, write=True)


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("orders", 'must start with "bmq://"'),
        ("bmq://bmq.test.mem.priority", "the queue name is missing"),
        ("bmq://bmq.test.mem.priority/", "the queue name is missing"),
        ("bmq:///orders", "the domain is missing"),
        ("bmq://bmq.test.mem.priority/or ders", "the queue name 'or ders'"),
        ("bmq://bmq.test.mem.fanout/orders?app=foo", r"the only possible query is \?id=APPID"),
    ],
)
async def test_invalid_queue_uris_are_refused(bmq_session: bmq.Session, uri: str, sentence: str) -> None:
    with pytest.raises(bmq.InvalidURI, match=sentence):
        await bmq_session.open_queue(uri, read=True)


@pytest.mark.statement("4.9")
async def test_a_closed_queue_refuses_calls(queue: bmq.Queue) -> None:
    consumer = queue.subscribe("x == 1")
    await queue.close()
    sentence = f"{queue.uri}.* closed"
    with pytest.raises(bmq.QueueClosed, match=sentence):
        await queue.post(b"x")
    with pytest.raises(bmq.QueueClosed, match=sentence):
        queue.post_nowait(b"x")
    with pytest.raises(bmq.QueueClosed, match=sentence):
        await queue.configure(priority=1)
    with pytest.raises(bmq.QueueClosed):
        await consumer.open()
    with pytest.raises(bmq.QueueClosed):
        await queue.receive()


async def test_a_closed_session_refuses_calls(bmq_connect: Connect, bmq_queue_uri: str) -> None:
    session = await bmq_connect()
    queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
    await session.close()
    await session.close()
    with pytest.raises(bmq.StateError, match="closed"):
        await queue.post(b"x")
    with pytest.raises(bmq.SessionClosed, match="the session is closed"):
        await session.open_queue(bmq_queue_uri, read=True)
    assert session.state is bmq.SessionState.CLOSED


#: Nothing is rounded, and a truth value is no number.
ODD_NUMBERS: tuple[Any, ...] = (3.9, True, "3", b"3", [3], float("nan"), 2**63)
ODD = [
    *(
        (name, each)
        for name in ("max_unconfirmed_messages", "max_unconfirmed_bytes")
        for each in (*ODD_NUMBERS, -1)
    ),
    *(("priority", each) for each in (*ODD_NUMBERS, 2**31, -(2**31))),
    *(
        (name, each)
        for name in ("read", "write", "suspends_on_bad_host_health")
        for each in (1, 0, "yes", None)
    ),
]


@pytest.mark.parametrize(("name", "value"), ODD, ids=str)
@pytest.mark.statement("7.3")
async def test_an_odd_value_is_an_error_that_names_it_and_changes_nothing(
    bmq_session: bmq.Session, bmq_queue_uri: str, name: str, value: Any
) -> None:
    with pytest.raises(bmq.UsageError, match=f"^{name} must be .*, not ") as caught:
        await bmq_session.open_queue(bmq_queue_uri, **{"read": True, name: value})
    assert repr(value) in str(caught.value)
    assert bmq_session.queues == []
    if name in ConsumerLimits.__annotations__:
        queue = await bmq_session.open_queue(bmq_queue_uri, read=True)
        for call in (queue.subscribe, queue.configure):
            with pytest.raises(bmq.UsageError, match=f"^{name} must be "):
                await call(**{name: value})


#: Calls on a queue that is open for reading, for writing, or in another state than the call needs.
OUT_OF_TURN: dict[str, tuple[str, Callable[[bmq.Queue], Any]]] = {
    "post on a reader": ("reader", lambda queue: queue.post(b"x")),
    "post_nowait on a reader": ("reader", lambda queue: queue.post_nowait(b"x")),
    "post_many on a reader": ("reader", lambda queue: queue.post_many([b"x"])),
    "receive on a writer": ("writer", lambda queue: queue.receive(timeout=5)),
    "receive_nowait on a writer": ("writer", lambda queue: queue.receive_nowait()),
    "a loop over a writer": ("writer", lambda queue: anext(aiter(queue))),
    "subscribe on a writer": ("writer", lambda queue: queue.subscribe()),
    "configure on a writer": ("writer", lambda queue: queue.configure(priority=1)),
    "group on a writer": ("writer", lambda queue: queue.group("key")),
    "receive without a default": ("bare reader", lambda queue: queue.receive(timeout=5)),
    "open again": ("reader", lambda queue: queue.session.open_queue(queue.uri, read=True)),
    "post after close": ("closed", lambda queue: queue.post(b"x")),
    "post_nowait after close": ("closed", lambda queue: queue.post_nowait(b"x")),
    "receive after close": ("closed", lambda queue: queue.receive(timeout=5)),
    "configure after close": ("closed", lambda queue: queue.configure(priority=1)),
    "subscribe after close": ("closed", lambda queue: queue.subscribe().open()),
    "open after the session's end": ("ended", lambda queue: queue.session.open_queue(queue.uri, read=True)),
    "post after the session's end": ("ended", lambda queue: queue.post(b"x")),
}


@pytest.mark.parametrize("call", OUT_OF_TURN)
@pytest.mark.statement("7.3")
async def test_a_call_out_of_turn_is_an_error_of_that_call(
    bmq_connect: Connect, bmq_queue_uri: str, call: str
) -> None:
    """The error is of a kind for mistakes of programs, and comes at once; everything else works on."""
    where, function = OUT_OF_TURN[call]
    session = await bmq_connect()
    queue = await session.open_queue(
        bmq_queue_uri,
        read=where != "writer",
        write=where in ("writer", "closed", "ended"),
        default_subscription=False if where == "bare reader" else None,
    )
    if where in ("closed", "ended"):
        await (queue if where == "closed" else session).close()

    async def misuse() -> None:
        result = function(queue)
        if inspect.isawaitable(result):
            await result

    with pytest.raises((bmq.UsageError, bmq.StateError)):
        await misuse()
    if where != "ended":
        other = await session.open_queue(f"{bmq_queue_uri}-other", read=True, write=True)
        await other.post(b"still at work")
        assert (await other.receive(timeout=20)).data == b"still at work"


async def test_invalid_broker_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)
    with pytest.raises(bmq.InvalidURI, match=r"tcp://HOST\[:PORT\]"):
        bmq.connect("localhost:30114")


async def test_unknown_option_is_refused() -> None:
    with pytest.raises(bmq.UsageError, match="no argument conect_timeout: did you mean connect_timeout"):
        bmq.connect("tcp://localhost", conect_timeout=1)


async def test_unreachable_address_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)
    with pytest.raises(bmq.ConnectionFailed) as caught:
        await bmq.connect("tcp://127.0.0.1:1", connect_timeout=5)
    assert caught.value.retryable
