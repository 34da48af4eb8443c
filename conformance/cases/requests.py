# SPDX-License-Identifier: Apache-2.0
"""openQueue, configureStream and closeQueue: good, odd and wrong members, in every order."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from bmq.wire.control.messages import (
    CloseQueue,
    ConfigureQueueStream,
    ConfigureStream,
    OpenQueueResponse,
    QueueStreamParameters,
    StreamParameters,
)
from conformance.bench import Bench
from conformance.case import Cases, Check, Level, check, fail
from conformance.peer import NO_ANSWER, Peer, handle, open_request, subscription

__all__ = ["GROUP", "JSON_ONLY"]

GROUP = Cases(3, "Requests", domains=("priority",))

_M, _S, _O = Level.MUST, Level.SHOULD, Level.OBSERVED

_OPENED, _CONFIGURED, _CLOSED = "openQueueResponse", "configureStreamResponse", "closeQueueResponse"
_INVALID = "E_INVALID_ARGUMENT 0"
_IGNORED = NO_ANSWER

#: A member of a request, by its path: ``("handleParameters", "qId")``. The value ``_ABSENT`` leaves it out.
_Change = tuple[tuple[str | int, ...], Any]
_ABSENT = object()

#: Numbers of cases whose request has no form in BER: absent and unknown members, values of another type or width.
JSON_ONLY: set[str] = set()


def _changed(request: dict[str, Any], changes: tuple[_Change, ...]) -> dict[str, Any]:
    made = deepcopy(request)
    for path, value in changes:
        place: Any = made
        for step in path[:-1]:
            place = place[step]
        if value is _ABSENT:
            del place[path[-1]]
        else:
            place[path[-1]] = value
    return made


def _described(changes: tuple[_Change, ...]) -> str:
    words: list[str] = []
    for path, value in changes:
        name = str(path[-1])
        text = repr(value)
        words.append(
            f"without {name}"
            if value is _ABSENT
            else f"{name} {text if len(text) < 50 else text[:50] + '...'}"
        )
    return ", ".join(words)


def _meaning(reaction: str) -> str:
    if reaction == "closed":
        return "the connection is closed"
    if reaction == _IGNORED:
        return "no answer; the session works"
    return f"the status {reaction}" if reaction.startswith("E_") else f"{reaction[0].lower()}{reaction[1:]}"


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


#: Number, statement, title, level, changes of a good request, reaction.
_Row = tuple[int, str, str, Level, tuple[_Change, ...], str]


def _add(
    section: str, request: str, good: str, rows: list[_Row], make: Callable[[tuple[_Change, ...], str], Check]
) -> None:
    """Add a case for each changed request."""
    for number, statement, title, level, changes, reaction in rows:
        odd = any(value is _ABSENT or value in ("0", "10") or path[-1] == "colour" for path, value in changes)
        if odd or reaction == _IGNORED:
            JSON_ONLY.add(f"{section}.{number}")
        GROUP.case(
            f"{section}.{number}",
            title,
            sends=f"{request} with {_described(changes) or good}",
            expects=_meaning(reaction),
            statement=statement,
            level=level,
        )(make(changes, reaction))


# ---- 3.1 members of openQueue

_HP = "handleParameters"

_OPENS: list[_Row] = [
    (1, "7.13", "A queue opens for reading and writing", _M, (), _OPENED),
    (2, "7.13", "A queue opens for reading", _M, (((_HP, "flags"), 2), ((_HP, "writeCount"), 0)), _OPENED),
    (3, "7.13", "A queue opens for writing", _M, (((_HP, "flags"), 4), ((_HP, "readCount"), 0)), _OPENED),
    (4, "7.13", "The flag ACK is accepted", _M, (((_HP, "flags"), 14),), _OPENED),
    (5, "7.12", "Counts without flags are refused", _M, (((_HP, "flags"), 0),), _INVALID),
    (6, "7.12", "Flags without counts are refused", _M, (((_HP, "readCount"), 0), ((_HP, "writeCount"), 0)), _INVALID),
    (7, "7.12", "The flag READ without readCount is refused", _M, (((_HP, "readCount"), 0),), _INVALID),
    (8, "7.12", "The flag WRITE without writeCount is refused", _M, (((_HP, "writeCount"), 0),), _INVALID),
    (9, "7.12", "readCount without the flag READ is refused", _M, (((_HP, "flags"), 4),), _INVALID),
    (10, "7.12", "writeCount without the flag WRITE is refused", _M, (((_HP, "flags"), 2),), _INVALID),
    (11, "7.12", "adminCount 1 is refused", _M, (((_HP, "adminCount"), 1),), "E_INVALID_ARGUMENT"),
    (12, "7.15", "readCount 2 is accepted", _O, (((_HP, "readCount"), 2),), _OPENED),
    (13, "7.15", "writeCount 2 is accepted", _O, (((_HP, "writeCount"), 2),), _OPENED),
    (14, "7.15", "A negative readCount is refused", _O, (((_HP, "readCount"), -1),), _INVALID),
    (15, "7.15", "A negative writeCount is refused", _O, (((_HP, "writeCount"), -1),), _INVALID),
    (16, "7.15", "An unknown flag is accepted", _O, (((_HP, "flags"), 6 | 64),), _OPENED),
    (17, "7.15", "The flag ADMIN without adminCount is refused", _O, (((_HP, "flags"), 7),), "E_INVALID_ARGUMENT -1"),
    (18, "7.7", "A reserved queue id is refused", _M, (((_HP, "qId"), 4_294_967_290),), _INVALID),
    (19, "7.7", "A large queue id is accepted", _M, (((_HP, "qId"), 2_000_000_000),), _OPENED),
    (20, "7.8", "A queue id above 31 bits is accepted", _O, (((_HP, "qId"), 3_000_000_000),), _OPENED),
    (21, "7.8", "A queue id above 32 bits is ignored", _O, (((_HP, "qId"), 2**33),), _IGNORED),
    (22, "7.8", "A negative queue id is ignored", _O, (((_HP, "qId"), -1),), _IGNORED),
    (23, "3.13", "A number in quotes is accepted as the queue id", _O, (((_HP, "qId"), "0"),), _OPENED),
    (24, "7.8", "A request without a queue id opens qId 0", _O, (((_HP, "qId"), _ABSENT),), _OPENED),
    (25, "7.3", "A request without a URI is refused", _O, (((_HP, "uri"), _ABSENT),), "E_REFUSED 0"),
    (26, "7.2", "An empty URI is refused", _M, (((_HP, "uri"), ""),), "E_REFUSED 0"),
    (27, "7.2", "A URI with another scheme is refused", _M, (((_HP, "uri"), "tcp://a.b/q"),), "E_REFUSED 0"),
    (28, "7.2", "A URI without a queue is refused", _M, (((_HP, "uri"), "bmq://bmq.test.mem.priority"),), "E_REFUSED 0"),
    (29, "7.3", "A URI with a space is refused", _O, (((_HP, "uri"), "bmq://bmq.test.mem.priority/a b"),), "E_REFUSED 0"),
    (30, "7.3", "A URI with a path is refused", _O, (((_HP, "uri"), "bmq://bmq.test.mem.priority/a/b"),), "E_REFUSED 0"),
    (31, "3.11", "A number in place of the URI is ignored", _O, (((_HP, "uri"), 7),), _IGNORED),
    (32, "7.4", "An unknown domain is refused", _M, (((_HP, "uri"), "bmq://no.such.domain/q"),), "E_UNKNOWN -1"),
    (33, "7.15", "A request without flags is refused", _O, (((_HP, "flags"), _ABSENT),), _INVALID),
    (34, "7.15", "A request without counts is refused", _O,
     (((_HP, "readCount"), _ABSENT), ((_HP, "writeCount"), _ABSENT)), _INVALID),
    (35, "7.14", "adminCount is optional", _S, (((_HP, "adminCount"), _ABSENT),), _OPENED),
    (36, "3.11", "Null in place of a member is ignored", _O, (((_HP, "qId"), None),), _IGNORED),
    (37, "3.9", "An unknown member is skipped", _M, (((_HP, "colour"), {"a": [1, 2]}),), _OPENED),
    (38, "7.3", "A request without handleParameters is refused", _O, ((((_HP,)), _ABSENT),), "E_REFUSED 0"),
    (39, "3.11", "A text in place of handleParameters is ignored", _O, ((((_HP,)), "none"),), _IGNORED),
    (40, "7.22", "The default appId is accepted", _M, (((_HP, "subIdInfo"), {"subId": 0, "appId": "__default"}),), _OPENED),
    (41, "7.22", "An application on a priority queue is refused", _M,
     (((_HP, "flags"), 2), ((_HP, "writeCount"), 0), ((_HP, "subIdInfo"), {"subId": 1, "appId": "foo"})), "E_UNKNOWN -1"),
]  # fmt: skip


def _open_check(changes: tuple[_Change, ...], reaction: str) -> Check:
    async def run(bench: Bench) -> None:
        peer = await bench.client()
        request = _changed(_open_json(bench.uri()), changes)
        if "foo" in str(changes):
            request[_HP]["uri"] += "?id=foo"
        peer.send_json({"rId": 77, "openQueue": request})
        found = await peer.reaction(77, reaction)
        # A reaction without a code stands for each code of the category.
        check(found.partition(" ")[0] if found.startswith(f"{reaction} ") else found, reaction, "reaction")

    return run


_add("3.1", "openQueue", "flags 6 and both counts 1", _OPENS, _open_check)


# ---- 3.2 answers to openQueue


def _mode_check(kind: str, flags: int) -> Check:
    async def run(bench: Bench) -> None:
        peer = await bench.client()
        reply = await peer.open(bench.uri(kind), read=False)
        check(reply.routing_configuration.flags, flags, "routingConfiguration.flags")

    return run


for _number, (_kind, _flags) in enumerate((("priority", 2), ("fanout", 10), ("broadcast", 7)), 1):
    GROUP.case(
        f"3.2.{_number}",
        f"The answer has the mode of a {_kind} domain",
        sends=f"openQueue in a {_kind} domain",
        expects=f"routingConfiguration flags {_flags}",
        statement="7.16",
        domains=(_kind,),
    )(_mode_check(_kind, _flags))


@GROUP.case(
    "3.2.4",
    "The answer has the deduplication time",
    sends="openQueue",
    expects="deduplicationTimeMs above 0",
    statement="7.17",
)
async def _deduplication(bench: Bench) -> None:
    peer = await bench.client()
    reply = await peer.open(bench.uri())
    if reply.deduplication_time_ms <= 0:
        raise fail("a time above 0", reply.deduplication_time_ms)


@GROUP.case(
    "3.2.5",
    "The answer repeats the request",
    sends="openQueue with qId 7",
    expects="originalRequest with the same handleParameters",
    statement="7.16",
)
async def _original(bench: Bench) -> None:
    peer = await bench.client()
    request = open_request(bench.uri(), 7)
    reply = await peer.open(request.handle_parameters.uri, 7)
    check(reply.original_request.handle_parameters.uri, request.handle_parameters.uri, "uri")
    check(reply.original_request.handle_parameters.q_id, 7, "qId")


@GROUP.case(
    "3.2.6",
    "A refusal has a text",
    sends="openQueue in an unknown domain",
    expects="a status with a message",
    statement="3.26",
    domains=(),
)
async def _refusal_text(bench: Bench) -> None:
    peer = await bench.client()
    if not (await peer.refused(open_request("bmq://no.such.domain/q"))).message:
        raise fail("a message", "none")


@GROUP.case(
    "3.2.7",
    "A refused queue leaves its number free",
    sends="openQueue in an unknown domain, then another with the same qId",
    expects="the second queue opens",
    statement="7.9",
)
async def _free_number(bench: Bench) -> None:
    peer = await bench.client()
    await peer.refused(open_request("bmq://no.such.domain/q", 3))
    await peer.open(bench.uri(), 3)


@GROUP.case(
    "3.2.8",
    "Many requests are answered by their numbers",
    sends="20 openQueue in one write",
    expects="an answer to each rId, with its own qId",
    statement="3.24",
)
async def _many_requests(bench: Bench) -> None:
    peer = await bench.client()
    asked = {peer.request(open_request(bench.uri(), q_id)): q_id for q_id in range(20)}
    for r_id, q_id in asked.items():
        reply = await peer.answer(r_id)
        if not isinstance(reply, OpenQueueResponse):
            raise fail("an openQueueResponse", reply)
        check(reply.original_request.handle_parameters.q_id, q_id, "qId")


@GROUP.case(
    "3.2.9",
    "A number of a request may repeat after its answer",
    sends="two requests with the same rId, one after the other",
    expects="an answer to each",
    statement="3.31",
    level=_O,
    domains=(),
)
async def _same_number(bench: Bench) -> None:
    peer = await bench.client()
    for _ in range(2):
        peer.send_json(
            {"rId": 500, "configureStream": {"qId": 99, "streamParameters": {"subscriptions": []}}}
        )
        await peer.answer(500)


# ---- 3.3 members of configureStream

_SP = "streamParameters"
_ENTRY: tuple[str | int, ...] = (_SP, "subscriptions", 0)
_CONSUMER: tuple[str | int, ...] = (*_ENTRY, "consumers", 0)
_BAD_PRIORITY = "E_UNKNOWN -1"

_CONFIGURES: list[_Row] = [
    (1, "8.3", "A stream is configured", _M, (), _CONFIGURED),
    (2, "8.5", "A stream is deconfigured", _M, (((_SP, "subscriptions"), []),), _CONFIGURED),
    (3, "8.10", "appId is optional", _S, (((_SP, "appId"), _ABSENT),), _CONFIGURED),
    (4, "8.6", "An unknown queue is refused", _M, ((("qId",), 55),), "E_UNKNOWN 0"),
    (5, "8.11", "A request without streamParameters is answered", _O, ((((_SP,)), _ABSENT),), _CONFIGURED),
    (6, "8.11", "A request without subscriptions is answered", _O, (((_SP, "subscriptions"), _ABSENT),), _CONFIGURED),
    (7, "3.11", "A text in place of subscriptions is ignored", _O, (((_SP, "subscriptions"), "all"),), _IGNORED),
    (8, "3.9", "An unknown member is skipped", _M, (((_SP, "colour"), [1]),), _CONFIGURED),
    (9, "8.16", "The invalid priority with a count is refused", _M, (((*_CONSUMER, "consumerPriority"), -(2**31)),), _BAD_PRIORITY),
    (10, "8.16", "A priority with a count of 0 is refused", _M, (((*_CONSUMER, "consumerPriorityCount"), 0),), _BAD_PRIORITY),
    (11, "8.16", "The highest priority is accepted", _M, (((*_CONSUMER, "consumerPriority"), 2**31 - 1),), _CONFIGURED),
    (12, "8.16", "The lowest priority is accepted", _M, (((*_CONSUMER, "consumerPriority"), -(2**31) + 1),), _CONFIGURED),
    (13, "3.12", "A priority beyond 32 bits is ignored", _O, (((*_CONSUMER, "consumerPriority"), 2**31),), _IGNORED),
    (14, "8.21", "A limit of 0 messages is accepted", _M, (((*_CONSUMER, "maxUnconfirmedMessages"), 0),), _CONFIGURED),
    (15, "8.21", "A limit of 0 bytes is accepted", _M, (((*_CONSUMER, "maxUnconfirmedBytes"), 0),), _CONFIGURED),
    (16, "8.11", "A negative limit is accepted", _O, (((*_CONSUMER, "maxUnconfirmedMessages"), -1),), _CONFIGURED),
    (17, "8.25", "The largest limit is accepted", _M, (((*_CONSUMER, "maxUnconfirmedBytes"), 2**63 - 1),), _CONFIGURED),
    (18, "3.12", "A limit beyond 64 bits is ignored", _O, (((*_CONSUMER, "maxUnconfirmedBytes"), 2**63),), _IGNORED),
    (19, "8.11", "A subscription without an expression is accepted", _O, (((*_ENTRY, "expression"), _ABSENT),), _CONFIGURED),
    (20, "8.11", "A subscription without consumers is accepted", _O, (((*_ENTRY, "consumers"), []),), _CONFIGURED),
    (21, "8.11", "A subscription without sId is accepted", _O, (((*_ENTRY, "sId"), _ABSENT),), _CONFIGURED),
    (22, "8.11", "The largest sId is accepted", _O, (((*_ENTRY, "sId"), 2**32 - 1),), _CONFIGURED),
    (23, "3.12", "An sId beyond 32 bits is ignored", _O, (((*_ENTRY, "sId"), 2**32),), _IGNORED),
    (24, "3.12", "An unknown version of the language is ignored", _O,
     (((*_ENTRY, "expression"), {"version": "E_VERSION_9", "text": "x > 0"}),), _IGNORED),
    (25, "9.5", "An expression with a mistake is accepted", _O,
     (((*_ENTRY, "expression"), {"version": "E_VERSION_1", "text": "x >"}),), _CONFIGURED),
    (26, "9.5", "An empty expression is accepted", _O,
     (((*_ENTRY, "expression"), {"version": "E_VERSION_1", "text": ""}),), _CONFIGURED),
    (27, "9.5", "An expression of 10,000 characters is accepted", _O,
     (((*_ENTRY, "expression"), {"version": "E_VERSION_1", "text": "x > 0" + " " * 9_995}),), _CONFIGURED),
    (28, "3.13", "A number in quotes is accepted as a limit", _O, (((*_CONSUMER, "maxUnconfirmedMessages"), "10"),), _CONFIGURED),
    (29, "8.6", "An application that is not open is refused", _M, (((_SP, "appId"), "foo"),), "E_UNKNOWN 0"),
]  # fmt: skip


def _configure_check(changes: tuple[_Change, ...], reaction: str) -> Check:
    async def run(bench: Bench) -> None:
        peer, _ = await bench.queue()
        peer.send_json({"rId": 77, "configureStream": _changed(_configure_json(), changes)})
        check(await peer.reaction(77, reaction), reaction, "reaction")

    return run


_add("3.3", "configureStream", "one subscription", _CONFIGURES, _configure_check)


# ---- 3.4 members of closeQueue

_CLOSES: list[_Row] = [
    (1, "15.3", "A queue is closed", _M, (), _CLOSED),
    (2, "15.4", "An unknown queue is refused", _M, (((_HP, "qId"), 55),), "E_UNKNOWN 0"),
    (3, "15.4", "Counts of 0 are refused", _M, (((_HP, "readCount"), 0), ((_HP, "writeCount"), 0)), _INVALID),
    (4, "15.5", "isFinal is optional", _S, ((("isFinal",), _ABSENT),), _CLOSED),
    (5, "15.6", "isFinal false closes the queue", _O, ((("isFinal",), False),), _CLOSED),
    (6, "3.11", "A text in place of isFinal is ignored", _O, ((("isFinal",), "yes"),), _IGNORED),
    (7, "15.6", "The queue id names the queue, not the URI", _O, (((_HP, "uri"), "bmq://bmq.test.mem.priority/another"),), _CLOSED),
    (8, "15.6", "More counts than open are accepted", _O, (((_HP, "readCount"), 2),), _CLOSED),
    (9, "15.3", "Only the reader is closed", _M, (((_HP, "writeCount"), 0), ((_HP, "flags"), 2)), _CLOSED),
    (10, "15.3", "Only the writer is closed", _M, (((_HP, "readCount"), 0), ((_HP, "flags"), 4)), _CLOSED),
    (11, "3.9", "An unknown member is skipped", _M, ((("colour",), "blue"),), _CLOSED),
    (12, "15.4", "A request without handleParameters is refused", _O, ((((_HP,)), _ABSENT),), _INVALID),
    (13, "15.6", "A negative count is accepted", _O, (((_HP, "readCount"), -1),), _CLOSED),
]  # fmt: skip


def _close_check(changes: tuple[_Change, ...], reaction: str) -> Check:
    async def run(bench: Bench) -> None:
        peer, uri = await bench.queue()
        request = _changed({**_open_json(uri), "isFinal": True}, changes)
        peer.send_json({"rId": 77, "closeQueue": request})
        check(await peer.reaction(77, reaction), reaction, "reaction")

    return run


_add("3.4", "closeQueue", "the parameters of the opening", _CLOSES, _close_check)


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


def _order_check(steps: str, reactions: str) -> Check:
    async def run(bench: Bench) -> None:
        peer, uri = await bench.client(), bench.uri()
        expected = [_G[each] for each in reactions]
        found = [await _step(peer, uri, *each) for each in zip(steps, expected, strict=True)]
        check(found, expected, "reactions")

    return run


for _number, _statement, _level, _steps, _reactions in _ORDERS:
    _words = ", ".join(_STEPS[each] for each in _steps)
    GROUP.case(
        f"3.5.{_number}",
        f"Order: {_words}",
        sends=f"requests for one queue: {_words}",
        expects=", ".join(_G[each] for each in _reactions),
        statement=_statement,
        level=_level,
    )(_order_check(_steps, _reactions))


@GROUP.case(
    "3.5.20",
    "A queue id of another queue is refused",
    sends="openQueue of two URIs with the same qId",
    expects="E_INVALID_ARGUMENT for the second",
    statement="7.5",
)
async def _taken(bench: Bench) -> None:
    peer, _ = await bench.queue()
    check((await peer.refused(open_request(bench.uri()))).category.name, "E_INVALID_ARGUMENT", "category")


@GROUP.case(
    "3.5.21",
    "A queue with two ids in one session is answered",
    sends="openQueue of one URI with two qIds",
    expects="an answer to each request",
    statement="7.20",
    level=_O,
)
async def _two_ids(bench: Bench) -> None:
    peer, uri = await bench.queue()
    await peer.ask(open_request(uri, 1))
    await peer.barrier()


@GROUP.case(
    "3.5.22",
    "Sessions have their own queue ids",
    sends="openQueue of two URIs with the same qId in two sessions",
    expects="both queues open; each message stays in its queue",
    statement="7.6",
)
async def _own_ids(bench: Bench) -> None:
    one, _ = await bench.queue()
    two, _ = await bench.queue()
    for peer, payload in ((one, b"1"), (two, b"2")):
        await peer.configure(0, subscription(1))
        peer.post(payload)
    check([await one.payloads(1), await two.payloads(1)], [[b"1"], [b"2"]], "payloads")


@GROUP.case(
    "3.5.23",
    "The older configureQueueStream is accepted",
    sends="configureQueueStream with one consumer, and a PUT",
    expects="configureQueueStreamResponse, and the message",
    statement="8.26",
)
async def _older(bench: Bench) -> None:
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


@GROUP.case(
    "3.5.24",
    "Each request is answered, even before the queue is open",
    sends="openQueue, configureStream and closeQueue in one write",
    expects="an answer to each; the broker may refuse the second and the third",
    statement="3.24",
)
async def _pipelined(bench: Bench) -> None:
    peer, uri = await bench.client(), bench.uri()
    numbers = [
        peer.request(open_request(uri)),
        peer.request(ConfigureStream(q_id=0, stream_parameters=StreamParameters(subscriptions=()))),
        peer.request(CloseQueue(handle_parameters=handle(uri), is_final=True)),
    ]
    names = [type(await peer.answer(number)).__name__ for number in numbers]
    check(names[0], "OpenQueueResponse", "answer")
