# SPDX-License-Identifier: Apache-2.0
# The rows of a table take any arguments: pyright cannot know those of a lambda in a row.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
"""openQueue, configureStream and closeQueue: good, odd and wrong members, in every order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import deepcopy
from typing import Any

from bmq.wire.control import (
    CloseQueue,
    ConfigureQueueStream,
    ConfigureStream,
    OpenQueueResponse,
    QueueStreamParameters,
    StreamParameters,
)
from conformance.bench import Bench
from conformance.case import Cases, Level, check, fail
from conformance.peer import NO_ANSWER, Peer, handle, open_request, subscription

__all__ = ["GROUP", "JSON_ONLY"]

GROUP = Cases(3, "Requests", domains=("priority",))

_M, _S, _O = Level.MUST, Level.SHOULD, Level.OBSERVED

_OPENED, _CONFIGURED, _CLOSED = "openQueueResponse", "configureStreamResponse", "closeQueueResponse"
_INVALID = "E_INVALID_ARGUMENT 0"
_IGNORED = NO_ANSWER

#: The value of a member that is left out.
_ABSENT = object()

#: Numbers of cases whose request has no form in BER: absent and unknown members, values of another type or width.
JSON_ONLY: set[str] = set()


def _changed(request: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A request with other values of members; a new member of a member has a dotted name."""
    made = deepcopy(request)
    for name, value in changes.items():
        parent, _, last = name.rpartition(".")
        place = made[parent] if parent else _place(made, last) or made
        if value is _ABSENT:
            del place[last]
        else:
            place[last] = value
    return made


def _place(within: Any, name: str) -> dict[str, Any] | None:
    """The object that has a member of this name."""
    if isinstance(within, dict) and name in within:
        return within
    values = within.values() if isinstance(within, dict) else within if isinstance(within, list) else ()
    return next((found for each in values if (found := _place(each, name)) is not None), None)


def _described(changes: dict[str, Any]) -> str:
    words: list[str] = []
    for name, value in changes.items():
        text = "" if value is _ABSENT else repr(value)
        last = name.rpartition(".")[2]
        words.append(f"{last} {text[:50]}{'...' * (len(text) >= 50)}" if text else f"without {last}")
    return ", ".join(words)


def _open_json(uri: str) -> dict[str, Any]:
    return {
        "handleParameters": {
            "uri": uri, "qId": 0, "flags": 6, "readCount": 1, "writeCount": 1, "adminCount": 0,
        }
    }  # fmt: skip


def _configure_json() -> dict[str, Any]:
    consumer = {
        "maxUnconfirmedMessages": 10,
        "maxUnconfirmedBytes": 1000,
        "consumerPriority": 0,
        "consumerPriorityCount": 1,
    }
    entry = {"sId": 1, "expression": {"version": "E_UNDEFINED", "text": ""}, "consumers": [consumer]}
    return {"qId": 0, "streamParameters": {"appId": "__default", "subscriptions": [entry]}}


def _add(
    check: Callable[..., Awaitable[object]],
    request: str,
    good: str,
    rows: list[tuple[str, str, Level, str, dict[str, Any], str]],
) -> None:
    """Add a case for each changed request: number, statement, level, title, changes, reaction."""
    for number, statement, level, title, changes, reaction in rows:
        odd = any(v is _ABSENT or v in ("0", "10") or name.endswith("colour") for name, v in changes.items())
        if odd or reaction == _IGNORED:
            JSON_ONLY.add(number)
        sends = f"{request} with {_described(changes) or good}"
        GROUP.reactions(check, [(number, statement, level, title, sends, reaction, changes)])


# ---- 3.1 members of openQueue


async def _open(bench: Bench, changes: dict[str, Any], reaction: str) -> None:
    peer = await bench.client()
    request = _changed(_open_json(bench.uri()), changes)
    if "foo" in str(changes):
        request["handleParameters"]["uri"] += "?id=foo"
    peer.send_json({"rId": 77, "openQueue": request})
    found = await peer.reaction(77, reaction)
    # A reaction without a code stands for each code of the category.
    check(found.partition(" ")[0] if found.startswith(f"{reaction} ") else found, reaction, "reaction")


_add(_open, "openQueue", "flags 6 and both counts 1", [
    ("3.1.1", "7.13", _M, "A queue opens for reading and writing", {}, _OPENED),
    ("3.1.2", "7.13", _M, "A queue opens for reading", {"flags": 2, "writeCount": 0}, _OPENED),
    ("3.1.3", "7.13", _M, "A queue opens for writing", {"flags": 4, "readCount": 0}, _OPENED),
    ("3.1.4", "7.13", _M, "The flag ACK is accepted", {"flags": 14}, _OPENED),
    ("3.1.5", "7.12", _M, "Counts without flags are refused", {"flags": 0}, _INVALID),
    ("3.1.6", "7.12", _M, "Flags without counts are refused", {"readCount": 0, "writeCount": 0}, _INVALID),
    ("3.1.7", "7.12", _M, "The flag READ without readCount is refused", {"readCount": 0}, _INVALID),
    ("3.1.8", "7.12", _M, "The flag WRITE without writeCount is refused", {"writeCount": 0}, _INVALID),
    ("3.1.9", "7.12", _M, "readCount without the flag READ is refused", {"flags": 4}, _INVALID),
    ("3.1.10", "7.12", _M, "writeCount without the flag WRITE is refused", {"flags": 2}, _INVALID),
    ("3.1.11", "7.12", _M, "adminCount 1 is refused", {"adminCount": 1}, "E_INVALID_ARGUMENT"),
    ("3.1.12", "7.15", _O, "readCount 2 is accepted", {"readCount": 2}, _OPENED),
    ("3.1.13", "7.15", _O, "writeCount 2 is accepted", {"writeCount": 2}, _OPENED),
    ("3.1.14", "7.15", _O, "A negative readCount is refused", {"readCount": -1}, _INVALID),
    ("3.1.15", "7.15", _O, "A negative writeCount is refused", {"writeCount": -1}, _INVALID),
    ("3.1.16", "7.15", _O, "An unknown flag is accepted", {"flags": 6 | 64}, _OPENED),
    ("3.1.17", "7.15", _O, "The flag ADMIN without adminCount is refused", {"flags": 7}, "E_INVALID_ARGUMENT -1"),
    ("3.1.18", "7.7", _M, "A reserved queue id is refused", {"qId": 4_294_967_290}, _INVALID),
    ("3.1.19", "7.7", _M, "A large queue id is accepted", {"qId": 2_000_000_000}, _OPENED),
    ("3.1.20", "7.8", _O, "A queue id above 31 bits is accepted", {"qId": 3_000_000_000}, _OPENED),
    ("3.1.21", "7.8", _O, "A queue id above 32 bits is ignored", {"qId": 2**33}, _IGNORED),
    ("3.1.22", "7.8", _O, "A negative queue id is ignored", {"qId": -1}, _IGNORED),
    ("3.1.23", "3.13", _O, "A number in quotes is accepted as the queue id", {"qId": "0"}, _OPENED),
    ("3.1.24", "7.8", _O, "A request without a queue id opens qId 0", {"qId": _ABSENT}, _OPENED),
    ("3.1.25", "7.3", _O, "A request without a URI is refused", {"uri": _ABSENT}, "E_REFUSED 0"),
    ("3.1.26", "7.2", _M, "An empty URI is refused", {"uri": ""}, "E_REFUSED 0"),
    ("3.1.27", "7.2", _M, "A URI with another scheme is refused", {"uri": "tcp://a.b/q"}, "E_REFUSED 0"),
    ("3.1.28", "7.2", _M, "A URI without a queue is refused", {"uri": "bmq://bmq.test.mem.priority"}, "E_REFUSED 0"),
    ("3.1.29", "7.3", _O, "A URI with a space is refused", {"uri": "bmq://bmq.test.mem.priority/a b"}, "E_REFUSED 0"),
    ("3.1.30", "7.3", _O, "A URI with a path is refused", {"uri": "bmq://bmq.test.mem.priority/a/b"}, "E_REFUSED 0"),
    ("3.1.31", "3.11", _O, "A number instead of the URI is ignored", {"uri": 7}, _IGNORED),
    ("3.1.32", "7.4", _M, "An unknown domain is refused", {"uri": "bmq://no.such.domain/q"}, "E_UNKNOWN -1"),
    ("3.1.33", "7.15", _O, "A request without flags is refused", {"flags": _ABSENT}, _INVALID),
    ("3.1.34", "7.15", _O, "A request without counts is refused", {"readCount": _ABSENT, "writeCount": _ABSENT}, _INVALID),
    ("3.1.35", "7.14", _S, "adminCount is optional", {"adminCount": _ABSENT}, _OPENED),
    ("3.1.36", "3.11", _O, "Null instead of a member is ignored", {"qId": None}, _IGNORED),
    ("3.1.37", "3.9", _M, "An unknown member is skipped", {"handleParameters.colour": {"a": [1, 2]}}, _OPENED),
    ("3.1.38", "7.3", _O, "A request without handleParameters is refused", {"handleParameters": _ABSENT}, "E_REFUSED 0"),
    ("3.1.39", "3.11", _O, "A text instead of handleParameters is ignored", {"handleParameters": "none"}, _IGNORED),
    ("3.1.40", "7.22", _M, "The default appId is accepted", {"handleParameters.subIdInfo": {"subId": 0, "appId": "__default"}}, _OPENED),
    ("3.1.41", "7.22", _M, "An application on a priority queue is refused", {"flags": 2, "writeCount": 0, "handleParameters.subIdInfo": {"subId": 1, "appId": "foo"}},
     "E_UNKNOWN -1"),
])  # fmt: skip


# ---- 3.2 answers to openQueue


async def _mode(bench: Bench, kind: str, flags: int) -> None:
    peer = await bench.client()
    reply = await peer.open(bench.uri(kind), read=False)
    check(reply.routing_configuration.flags, flags, "routingConfiguration.flags")


for _number, (_kind, _flags) in enumerate((("priority", 2), ("fanout", 10), ("broadcast", 7)), 1):
    GROUP.add(
        f"3.2.{_number}",
        "7.16",
        _M,
        f"The answer has the mode of a {_kind} domain",
        f"openQueue in a {_kind} domain",
        f"routingConfiguration flags {_flags}",
        _mode,
        *(_kind, _flags),
        domains=(_kind,),
    )


@GROUP.case("3.2.4", "7.17")
async def _deduplication(bench: Bench) -> None:
    """The answer has the deduplication time.

    Sends: openQueue.
    Expects: deduplicationTimeMs above 0.
    """
    peer = await bench.client()
    reply = await peer.open(bench.uri())
    if reply.deduplication_time_ms <= 0:
        raise fail("a time above 0", reply.deduplication_time_ms)


@GROUP.case("3.2.5", "7.16")
async def _original(bench: Bench) -> None:
    """The answer repeats the request.

    Sends: openQueue with qId 7.
    Expects: originalRequest with the same handleParameters.
    """
    peer = await bench.client()
    request = open_request(bench.uri(), 7)
    reply = await peer.open(request.handle_parameters.uri, 7)
    check(reply.original_request.handle_parameters.uri, request.handle_parameters.uri, "uri")
    check(reply.original_request.handle_parameters.q_id, 7, "qId")


@GROUP.case("3.2.6", "3.26", domains=())
async def _refusal_text(bench: Bench) -> None:
    """A refusal has a text.

    Sends: openQueue in an unknown domain.
    Expects: a status with a message.
    """
    peer = await bench.client()
    if not (await peer.refused(open_request("bmq://no.such.domain/q"))).message:
        raise fail("a message", "none")


@GROUP.case("3.2.7", "7.9")
async def _free_number(bench: Bench) -> None:
    """A refused queue leaves its number free.

    Sends: openQueue in an unknown domain, then another with the same qId.
    Expects: the second queue opens.
    """
    peer = await bench.client()
    await peer.refused(open_request("bmq://no.such.domain/q", 3))
    await peer.open(bench.uri(), 3)


@GROUP.case("3.2.8", "3.24")
async def _many_requests(bench: Bench) -> None:
    """Many requests are answered by their numbers.

    Sends: 20 openQueue in one write.
    Expects: an answer to each rId, with its own qId.
    """
    peer = await bench.client()
    asked = {peer.request(open_request(bench.uri(), q_id)): q_id for q_id in range(20)}
    for r_id, q_id in asked.items():
        reply = await peer.answer(r_id)
        if not isinstance(reply, OpenQueueResponse):
            raise fail("an openQueueResponse", reply)
        check(reply.original_request.handle_parameters.q_id, q_id, "qId")


@GROUP.case("3.2.9", "3.31", _O, domains=())
async def _same_number(bench: Bench) -> None:
    """A number of a request may repeat after its answer.

    Sends: two requests with the same rId, one after the other.
    Expects: an answer to each.
    """
    peer = await bench.client()
    for _ in range(2):
        peer.send_json(
            {"rId": 500, "configureStream": {"qId": 99, "streamParameters": {"subscriptions": []}}}
        )
        await peer.answer(500)


# ---- 3.3 members of configureStream

_BAD_PRIORITY = "E_UNKNOWN -1"


async def _configure(bench: Bench, changes: dict[str, Any], reaction: str) -> None:
    peer, _ = await bench.queue()
    peer.send_json({"rId": 77, "configureStream": _changed(_configure_json(), changes)})
    check(await peer.reaction(77, reaction), reaction, "reaction")


_add(_configure, "configureStream", "one subscription", [
    ("3.3.1", "8.3", _M, "A stream is configured", {}, _CONFIGURED),
    ("3.3.2", "8.5", _M, "A stream is deconfigured", {"subscriptions": []}, _CONFIGURED),
    ("3.3.3", "8.10", _S, "appId is optional", {"appId": _ABSENT}, _CONFIGURED),
    ("3.3.4", "8.6", _M, "An unknown queue is refused", {"qId": 55}, "E_UNKNOWN 0"),
    ("3.3.5", "8.11", _O, "A request without streamParameters is answered", {"streamParameters": _ABSENT}, _CONFIGURED),
    ("3.3.6", "8.11", _O, "A request without subscriptions is answered", {"subscriptions": _ABSENT}, _CONFIGURED),
    ("3.3.7", "3.11", _O, "A text instead of subscriptions is ignored", {"subscriptions": "all"}, _IGNORED),
    ("3.3.8", "3.9", _M, "An unknown member is skipped", {"streamParameters.colour": [1]}, _CONFIGURED),
    ("3.3.9", "8.16", _M, "The invalid priority with a count is refused", {"consumerPriority": -(2**31)}, _BAD_PRIORITY),
    ("3.3.10", "8.16", _M, "A priority with a count of 0 is refused", {"consumerPriorityCount": 0}, _BAD_PRIORITY),
    ("3.3.11", "8.16", _M, "The highest priority is accepted", {"consumerPriority": 2**31 - 1}, _CONFIGURED),
    ("3.3.12", "8.16", _M, "The lowest priority is accepted", {"consumerPriority": -(2**31) + 1}, _CONFIGURED),
    ("3.3.13", "3.12", _O, "A priority beyond 32 bits is ignored", {"consumerPriority": 2**31}, _IGNORED),
    ("3.3.14", "8.21", _M, "A limit of 0 messages is accepted", {"maxUnconfirmedMessages": 0}, _CONFIGURED),
    ("3.3.15", "8.21", _M, "A limit of 0 bytes is accepted", {"maxUnconfirmedBytes": 0}, _CONFIGURED),
    ("3.3.16", "8.11", _O, "A negative limit is accepted", {"maxUnconfirmedMessages": -1}, _CONFIGURED),
    ("3.3.17", "8.25", _M, "The largest limit is accepted", {"maxUnconfirmedBytes": 2**63 - 1}, _CONFIGURED),
    ("3.3.18", "3.12", _O, "A limit beyond 64 bits is ignored", {"maxUnconfirmedBytes": 2**63}, _IGNORED),
    ("3.3.19", "8.11", _O, "A subscription without an expression is accepted", {"expression": _ABSENT}, _CONFIGURED),
    ("3.3.20", "8.11", _O, "A subscription without consumers is accepted", {"consumers": []}, _CONFIGURED),
    ("3.3.21", "8.11", _O, "A subscription without sId is accepted", {"sId": _ABSENT}, _CONFIGURED),
    ("3.3.22", "8.11", _O, "The largest sId is accepted", {"sId": 2**32 - 1}, _CONFIGURED),
    ("3.3.23", "3.12", _O, "An sId beyond 32 bits is ignored", {"sId": 2**32}, _IGNORED),
    ("3.3.24", "3.12", _O, "An unknown version of the language is ignored", {"expression": {"version": "E_VERSION_9", "text": "x > 0"}}, _IGNORED),
    ("3.3.25", "9.5", _O, "An expression with a mistake is accepted", {"expression": {"version": "E_VERSION_1", "text": "x >"}}, _CONFIGURED),
    ("3.3.26", "9.5", _O, "An empty expression is accepted", {"expression": {"version": "E_VERSION_1", "text": ""}}, _CONFIGURED),
    ("3.3.27", "9.5", _O, "An expression of 10,000 characters is accepted", {"expression": {"version": "E_VERSION_1", "text": "x > 0" + " " * 9_995}}, _CONFIGURED),
    ("3.3.28", "3.13", _O, "A number in quotes is accepted as a limit", {"maxUnconfirmedMessages": "10"}, _CONFIGURED),
    ("3.3.29", "8.6", _M, "An application that is not open is refused", {"appId": "foo"}, "E_UNKNOWN 0"),
])  # fmt: skip


# ---- 3.4 members of closeQueue


async def _close(bench: Bench, changes: dict[str, Any], reaction: str) -> None:
    peer, uri = await bench.queue()
    request = _changed({**_open_json(uri), "isFinal": True}, changes)
    peer.send_json({"rId": 77, "closeQueue": request})
    check(await peer.reaction(77, reaction), reaction, "reaction")


_add(_close, "closeQueue", "the parameters of the opening", [
    ("3.4.1", "15.3", _M, "A queue is closed", {}, _CLOSED),
    ("3.4.2", "15.4", _M, "An unknown queue is refused", {"qId": 55}, "E_UNKNOWN 0"),
    ("3.4.3", "15.4", _M, "Counts of 0 are refused", {"readCount": 0, "writeCount": 0}, _INVALID),
    ("3.4.4", "15.5", _S, "isFinal is optional", {"isFinal": _ABSENT}, _CLOSED),
    ("3.4.5", "15.6", _O, "isFinal false closes the queue", {"isFinal": False}, _CLOSED),
    ("3.4.6", "3.11", _O, "A text instead of isFinal is ignored", {"isFinal": "yes"}, _IGNORED),
    ("3.4.7", "15.6", _O, "The queue id names the queue, not the URI", {"uri": "bmq://bmq.test.mem.priority/another"}, _CLOSED),
    ("3.4.8", "15.6", _O, "More counts than open are accepted", {"readCount": 2}, _CLOSED),
    ("3.4.9", "15.3", _M, "Only the reader is closed", {"writeCount": 0, "flags": 2}, _CLOSED),
    ("3.4.10", "15.3", _M, "Only the writer is closed", {"readCount": 0, "flags": 4}, _CLOSED),
    ("3.4.11", "3.9", _M, "An unknown member is skipped", {"colour": "blue"}, _CLOSED),
    ("3.4.12", "15.4", _O, "A request without handleParameters is refused", {"handleParameters": _ABSENT}, _INVALID),
    ("3.4.13", "15.6", _O, "A negative count is accepted", {"readCount": -1}, _CLOSED),
])  # fmt: skip


# ---- 3.5 the order of requests


async def _step(peer: Peer, uri: str, step: str, expected: str) -> str:
    """Make a request of one letter, and return its reaction."""
    empty = StreamParameters(subscriptions=())
    body: Any = {
        "o": open_request(uri),
        "r": open_request(uri, write=False),
        "w": open_request(uri, read=False),
        "c": ConfigureStream(q_id=0, stream_parameters=StreamParameters(subscriptions=(subscription(1),))),
        "d": ConfigureStream(q_id=0, stream_parameters=empty),
        "x": CloseQueue(handle_parameters=handle(uri), is_final=True),
        "y": CloseQueue(handle_parameters=handle(uri, write=False), is_final=False),
        "z": CloseQueue(handle_parameters=handle(uri, read=False), is_final=True),
    }[step]
    return await peer.reaction(peer.request(body), expected)


_STEPS = {
    "o": "open", "r": "open for reading", "w": "open for writing", "c": "configure", "d": "deconfigure",
    "x": "close", "y": "close the reader", "z": "close the writer",
}  # fmt: skip

_G = {"O": _OPENED, "C": _CONFIGURED, "X": _CLOSED, "U": "E_UNKNOWN 0", "I": "E_INVALID_ARGUMENT 0",
      "J": "E_INVALID_ARGUMENT -1"}  # fmt: skip

#: Number, level, steps, reactions.
_ORDERS: list[tuple[int, str, Level, str, str]] = [
    (1, "15.12", _M, "ocx", "OCX"),
    (2, "15.12", _M, "ocdx", "OCCX"),
    (3, "15.12", _M, "ox", "OX"),
    (4, "7.9", _M, "oxo", "OXO"),
    (5, "15.4", _M, "oxx", "OXU"),
    (6, "8.6", _M, "oxc", "OXU"),
    (7, "8.6", _M, "cox", "UOX"),
    (8, "15.4", _M, "xo", "UO"),
    (9, "7.20", _O, "oo", "OO"),
    (10, "7.20", _O, "ooxx", "OOXU"),
    (11, "8.2", _M, "wc", "OC"),
    (12, "8.5", _M, "rcd", "OCC"),
    (13, "7.20", _O, "rw", "OO"),
    (14, "7.20", _O, "rwyz", "OOXX"),
    (15, "8.3", _M, "occc", "OCCC"),
    (16, "8.5", _M, "odd", "OCC"),
    (17, "15.3", _O, "oyz", "OXX"),
    (18, "15.3", _O, "ry", "OX"),
    (19, "7.9", _M, "ocxoc", "OCXOC"),
]  # fmt: skip


async def _order(bench: Bench, steps: str, reactions: str) -> None:
    peer, uri = await bench.client(), bench.uri()
    expected = [_G[each] for each in reactions]
    found = [await _step(peer, uri, *each) for each in zip(steps, expected, strict=True)]
    check(found, expected, "reactions")


for _number, _statement, _level, _steps, _reactions in _ORDERS:
    _words = ", ".join(_STEPS[each] for each in _steps)
    GROUP.add(
        f"3.5.{_number}",
        _statement,
        _level,
        f"Order: {_words}",
        f"requests for one queue: {_words}",
        ", ".join(_G[each] for each in _reactions),
        _order,
        _steps,
        _reactions,
    )


@GROUP.case("3.5.20", "7.5")
async def _taken(bench: Bench) -> None:
    """A queue id of another queue is refused.

    Sends: openQueue of two URIs with the same qId.
    Expects: E_INVALID_ARGUMENT for the second.
    """
    peer, _ = await bench.queue()
    check((await peer.refused(open_request(bench.uri()))).category.name, "E_INVALID_ARGUMENT", "category")


@GROUP.case("3.5.21", "7.20", _O)
async def _two_ids(bench: Bench) -> None:
    """A queue with two ids in one session is answered.

    Sends: openQueue of one URI with two qIds.
    Expects: an answer to each request.
    """
    peer, uri = await bench.queue()
    await peer.ask(open_request(uri, 1))
    await peer.barrier()


@GROUP.case("3.5.22", "7.6")
async def _own_ids(bench: Bench) -> None:
    """Sessions have their own queue ids.

    Sends: openQueue of two URIs with the same qId in two sessions.
    Expects: both queues open; each message stays in its queue.
    """
    one, _ = await bench.queue()
    two, _ = await bench.queue()
    for peer, payload in ((one, b"1"), (two, b"2")):
        await peer.configure(0, subscription(1))
        peer.post(payload)
    check([await one.payloads(1), await two.payloads(1)], [[b"1"], [b"2"]], "payloads")


@GROUP.case("3.5.23", "8.26")
async def _older(bench: Bench) -> None:
    """The older configureQueueStream is accepted.

    Sends: configureQueueStream with one consumer, and a PUT.
    Expects: configureQueueStreamResponse, and the message.
    """
    peer, _ = await bench.queue()
    parameters = QueueStreamParameters(
        max_unconfirmed_messages=10,
        max_unconfirmed_bytes=1000,
        consumer_priority=0,
        consumer_priority_count=1,
    )
    reply = await peer.accepted(ConfigureQueueStream(q_id=0, stream_parameters=parameters))
    check(type(reply).__name__, "ConfigureQueueStreamResponse", "answer")
    peer.post(b"x")
    check(await peer.payloads(1), [b"x"], "payloads")


@GROUP.case("3.5.24", "3.24")
async def _pipelined(bench: Bench) -> None:
    """Each request is answered, even before the queue is open.

    Sends: openQueue, configureStream and closeQueue in one write.
    Expects: an answer to each; the broker may refuse the second and the third.
    """
    peer, uri = await bench.client(), bench.uri()
    numbers = [
        peer.request(open_request(uri)),
        peer.request(ConfigureStream(q_id=0, stream_parameters=StreamParameters(subscriptions=()))),
        peer.request(CloseQueue(handle_parameters=handle(uri), is_final=True)),
    ]
    names = [type(await peer.answer(number)).__name__ for number in numbers]
    check(names[0], "OpenQueueResponse", "answer")
