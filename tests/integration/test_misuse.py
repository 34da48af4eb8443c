# SPDX-License-Identifier: Apache-2.0
"""Misuse raises an error with a helpful text, before anything is sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import bmq
from bmq.client.keywords import ConsumerLimits
from tests.integration.steps import Connect, NewUri
from tests.sweeps import sweep


@pytest.fixture
async def queue(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)


async def test_an_illegal_post_is_refused_and_not_sent(queue: bmq.Queue) -> None:
    illegal: list[tuple[Any, dict[str, Any], type[bmq.Error], str]] = [
        *((payload, {}, bmq.InvalidPayload, "bytes, not") for payload in ("text", 42, None, ["list"])),
        (b"", {}, bmq.InvalidPayload, "empty"),
        (bytes(64 * 1024 * 1024 + 1), {}, bmq.InvalidPayload, "64 MiB"),
        (b"x", {"properties": {"": 1}}, bmq.InvalidProperty, "1 to 4095"),
        (b"x", {"properties": ["x"]}, bmq.InvalidProperty, "must be a mapping"),
        (b"x", {"properties": {"x": 1.5}}, bmq.InvalidProperty, "not float"),
        (b"x", {"properties": {"x": 2**63}}, bmq.InvalidProperty, "does not fit"),
        (b"x", {"properties": {f"p{n}": n for n in range(256)}}, bmq.InvalidProperty, "at most 255"),
        *((b"x", {"tags": tags}, bmq.UsageError, "tag") for tags in ("urgent", [1], [None])),
    ]
    for payload, options, error, says in illegal:
        with pytest.raises(error, match=says):
            await queue.post(payload, **options)
    assert queue.unacked == 0
    await queue.post(bytearray(b"good"))
    await queue.post(memoryview(b"also good"))
    assert [(await queue.receive(timeout=20)).data for _ in range(2)] == [b"good", b"also good"]


@pytest.mark.statement("7.3")
async def test_an_illegal_open_is_refused(bmq_session: bmq.Session, bmq_new_queue_uri: NewUri) -> None:
    fanout = bmq_new_queue_uri("bmq.test.mem.fanout")
    illegal: list[tuple[str, dict[str, Any], type[bmq.Error], str]] = [
        (fanout, {}, bmq.UsageError, "read=True, write=True, or both"),
        (f"{fanout}?id=foo", {"read": True, "write": True}, bmq.UsageError, "opened for writing only"),
        (fanout, {"write": True, "subscriptions": ["x == 1"]}, bmq.UsageError, "opened for writing only"),
        (f"{fanout}?id=foo", {"read": True, "subscriptions": "x == 1"}, bmq.UsageError, "must be a list"),
        (f"{fanout}?id=foo", {"read": True, "subscriptions": ["x =="]}, bmq.InvalidExpression, "x =="),
        ("bmq:///orders", {"read": True}, bmq.InvalidURI, "the domain is missing"),
    ]
    for uri, options, error, says in illegal:
        with pytest.raises(error, match=says):
            await bmq_session.open_queue(uri, **options)
    assert bmq_session.queues == []
    with pytest.raises(bmq.UsageError, match="no argument conect_timeout: did you mean connect_timeout"):
        bmq.connect("tcp://localhost", conect_timeout=1)


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


#: Nothing is rounded, and a truth value is no number.
ODD_NUMBERS: tuple[Any, ...] = (3.9, True, "3", b"3", [3], float("nan"), 2**63)
ODD: dict[str, tuple[Any, ...]] = {
    "max_unconfirmed_messages": (*ODD_NUMBERS, -1),
    "max_unconfirmed_bytes": (*ODD_NUMBERS, -1),
    "priority": (*ODD_NUMBERS, 2**31, -(2**31)),
    "read": (1, 0, "yes", None),
    "write": (1, 0, "yes", None),
    "suspends_on_bad_host_health": (1, 0, "yes", None),
}


@sweep("name, value", [(name, value) for name, values in ODD.items() for value in values])
@pytest.mark.statement("7.3")
async def test_an_odd_value_is_an_error_that_names_it_and_changes_nothing(
    bmq_session: bmq.Session, queue: bmq.Queue, name: str, value: Any
) -> None:
    with pytest.raises(bmq.UsageError, match=f"^{name} must be .*, not ") as caught:
        await bmq_session.open_queue(f"{queue.uri}-other", **{"read": True, name: value})
    assert repr(value) in str(caught.value)
    assert bmq_session.queues == [queue]
    if name in ConsumerLimits.__annotations__:
        for call in (queue.subscribe, queue.configure):
            with pytest.raises(bmq.UsageError, match=f"^{name} must be "):
                await call(**{name: value})


#: Calls on a queue that is open for reading, for writing, or in another state than the call needs.
OUT_OF_TURN: list[tuple[str, Callable[[bmq.Queue], Any]]] = [
    ("reader", lambda queue: queue.post(b"x")),
    ("reader", lambda queue: queue.post_nowait(b"x")),
    ("reader", lambda queue: queue.post_many([b"x"])),
    ("reader", lambda queue: queue.session.open_queue(queue.uri, read=True)),
    ("writer", lambda queue: queue.receive(timeout=5)),
    ("writer", lambda queue: queue.receive_nowait()),
    ("writer", lambda queue: anext(aiter(queue))),
    ("writer", lambda queue: queue.subscribe()),
    ("writer", lambda queue: queue.configure(priority=1)),
    ("writer", lambda queue: queue.group("key")),
    ("bare reader", lambda queue: queue.receive(timeout=5)),
    ("closed", lambda queue: queue.post(b"x")),
    ("closed", lambda queue: queue.post_nowait(b"x")),
    ("closed", lambda queue: queue.receive(timeout=5)),
    ("closed", lambda queue: queue.configure(priority=1)),
    ("closed", lambda queue: queue.subscribe().open()),
    ("ended", lambda queue: queue.session.open_queue(queue.uri, read=True)),
    ("ended", lambda queue: queue.post(b"x")),
]


@pytest.mark.parametrize("where", ["reader", "writer", "bare reader", "closed", "ended"])
@pytest.mark.statement("4.9", "7.3")
async def test_a_call_out_of_turn_is_an_error_of_that_call(
    bmq_connect: Connect, bmq_queue_uri: str, where: str
) -> None:
    """The error is of a kind for mistakes of programs, and comes at once; everything else works on."""
    session = await bmq_connect()
    queue = await session.open_queue(
        bmq_queue_uri,
        read=where != "writer",
        write=where in ("writer", "closed", "ended"),
        default_subscription=False if where == "bare reader" else None,
    )
    if where in ("closed", "ended"):
        await (queue if where == "closed" else session).close()

    async def misuse(call: Callable[[bmq.Queue], Any]) -> None:
        result = call(queue)
        if inspect.isawaitable(result):
            await result

    for call in [call for state, call in OUT_OF_TURN if state == where]:
        with pytest.raises((bmq.UsageError, bmq.StateError)):
            await misuse(call)
    if where != "ended":
        other = await session.open_queue(f"{bmq_queue_uri}-other", read=True, write=True)
        await other.post(b"still at work")
        assert (await other.receive(timeout=20)).data == b"still at work"


@sweep("selector", [5, b"x == 1", ["x == 1"]])
async def test_invalid_expression_type_is_refused(queue: bmq.Queue, selector: str) -> None:
    with pytest.raises(
        bmq.UsageError, match=rf"messages must be selected by .*, not by .*\({type(selector).__name__}\)"
    ):
        queue.subscribe(selector)
