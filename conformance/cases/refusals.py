# SPDX-License-Identifier: Apache-2.0
"""The status of each refused request: category, code and text, as users read them in the log of a client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bmq.wire.control.messages import (
    ClientLanguage,
    CloseQueue,
    ConfigureStream,
    ControlBody,
    Status,
    StreamParameters,
)
from conformance.bench import Bench
from conformance.case import Cases, Check, Level, check, fail
from conformance.peer import handle, open_request, subscription

__all__ = ["GROUP"]

GROUP = Cases(9, "Refusals")

_NO_QUEUE = "No queue with specified Id"
_NOT_FANOUT = "AppId should not be specified when opening a non-fanout queue"
_BAD_PRIORITY = "Attempting to configure stream with invalid priority."
_QUEUE = "priority"

_Make = Callable[[str], ControlBody]


def _opened(**changes: Any) -> _Make:
    return lambda uri: open_request(uri, **changes)


def _of_app(app: str, **how: Any) -> _Make:
    return lambda uri: open_request(f"{uri}?id={app}", sub_id=1, **how)


def _streamed(priority: int, count: int) -> _Make:
    parameters = StreamParameters(subscriptions=(subscription(1, priority=priority, count=count),))
    return lambda uri: ConfigureStream(q_id=0, stream_parameters=parameters)


#: Number, what is refused, kind of the domain, request from the URI of a new queue, category, code, a part of the
#: text, statement.
_REFUSED: list[tuple[int, str, str, _Make, str, int, str, str]] = [
    (1, "openQueue in an unknown domain", _QUEUE, lambda uri: open_request("bmq://no.such.domain/q"),
     "E_UNKNOWN", -1, "Domain file '", "7.4"),
    (2, "openQueue with another scheme", _QUEUE, lambda uri: open_request("tcp://bmq.test.mem.priority/q"),
     "E_REFUSED", 0, 'Invalid scheme: uri must start with "bmq://"', "7.2"),
    (3, "a reader of a fanout queue without an application", "fanout", _opened(write=False),
     "E_UNKNOWN", -1, "Reader of a fanout queue requires an appId to be specified.", "7.21"),
    (4, "an application of a priority queue", _QUEUE, _of_app("foo", write=False),
     "E_UNKNOWN", -1, _NOT_FANOUT, "7.22"),
    (5, "an application of a broadcast queue", "broadcast", _of_app("foo", write=False),
     "E_UNKNOWN", -1, _NOT_FANOUT, "7.22"),
    (6, "a producer with an application", "fanout", _of_app("foo", read=False),
     "E_INVALID_ARGUMENT", 0, "AppId should not be specified in the URI if queue is opened in write mode", "7.22"),
    (7, "openQueue with counts of 0", _QUEUE, _opened(read_count=0, write_count=0),
     "E_INVALID_ARGUMENT", 0, "At least one of ([read|write]) Count must be >0", "7.12"),
    (8, "openQueue with adminCount 1", _QUEUE, _opened(admin_count=1),
     "E_INVALID_ARGUMENT", 0, "adminCount must be 0", "7.12"),
    (9, "readCount without the flag READ", _QUEUE, _opened(flags=4),
     "E_INVALID_ARGUMENT", 0, "Read flag and readCount must both be set accordingly", "7.12"),
    (10, "writeCount without the flag WRITE", _QUEUE, _opened(flags=2),
     "E_INVALID_ARGUMENT", 0, "Write flag and writeCount must both be set accordingly", "7.12"),
    (11, "a reserved queue id", _QUEUE, _opened(q_id=4_294_967_290),
     "E_INVALID_ARGUMENT", 0, "qId must not be set from the reserved queue ids range", "7.7"),
    (12, "configureStream of an unknown queue", "", lambda uri: ConfigureStream(
        q_id=77, stream_parameters=StreamParameters(subscriptions=())),
     "E_UNKNOWN", 0, _NO_QUEUE, "8.6"),
    (13, "closeQueue of an unknown queue", "", lambda uri: CloseQueue(
        handle_parameters=handle(uri, 77), is_final=True),
     "E_UNKNOWN", 0, _NO_QUEUE, "15.4"),
]  # fmt: skip

#: The same, after openQueue with qId 0.
_REFUSED_LATER: list[tuple[int, str, _Make, str, int, str, str]] = [
    (14, "the queue id of another queue", lambda uri: open_request(uri + "-other"),
     "E_INVALID_ARGUMENT", -1, "", "7.5"),
    (15, "closeQueue with counts of 0", lambda uri: CloseQueue(
        handle_parameters=handle(uri, read_count=0, write_count=0), is_final=False),
     "E_INVALID_ARGUMENT", 0, "", "15.4"),
    (16, "the invalid priority with a count", _streamed(-(2**31), 1),
     "E_UNKNOWN", -1, _BAD_PRIORITY, "8.16"),
    (17, "a priority with a count of 0", _streamed(0, 0),
     "E_UNKNOWN", -1, _BAD_PRIORITY, "8.16"),
]  # fmt: skip


def _contains(status: Status, category: str, code: int, text: str) -> None:
    check((status.category.name, status.code), (category, code), "category and code")
    if text not in status.message:
        raise fail(f"the text {text!r}", status.message)


def _refused_check(kind: str, make: _Make, category: str, code: int, text: str, later: bool) -> Check:
    async def run(bench: Bench) -> None:
        peer, uri = await bench.client(), bench.uri(kind or "priority")
        if later:
            await peer.open(uri)
        _contains(await peer.refused(make(uri)), category, code, text)

    return run


def _add(
    number: int,
    what: str,
    kind: str,
    make: _Make,
    category: str,
    code: int,
    text: str,
    statement: str,
    later: bool,
) -> None:
    GROUP.case(
        f"9.1.{number}",
        f"Status of a refusal: {what}",
        sends=what,
        expects=f"the status {category} {code}" + (f" with the text {text!r}" if text else ""),
        statement=statement,
        level=Level.OBSERVED,
        domains=(kind,) if kind else (),
    )(_refused_check(kind, make, category, code, text, later))


for _number, _what, _kind, _make, _category, _code, _text, _where in _REFUSED:
    _add(_number, _what, _kind, _make, _category, _code, _text, _where, later=False)
for _number, _what, _make, _category, _code, _text, _where in _REFUSED_LATER:
    _add(_number, _what, _QUEUE, _make, _category, _code, _text, _where, later=True)


# ---- 9.2 before the session


@GROUP.case(
    "9.2.1",
    "Status of a refusal: an outdated C++ client",
    sends="a clientIdentity with E_CPP and sdkVersion 1",
    expects="E_NOT_SUPPORTED with the text 'Client is using an unsupported version of libbmq'",
    statement="4.14",
    level=Level.OBSERVED,
)
async def _outdated(bench: Bench) -> None:
    peer = await bench.dial()
    response = await peer.negotiate(sdk_language=ClientLanguage.E_CPP, sdk_version=1)
    text = "Client is using an unsupported version of libbmq"
    _contains(response.result, "E_NOT_SUPPORTED", response.result.code, text)


@GROUP.case(
    "9.2.2",
    "Status of a refusal: an unknown mechanism of authentication",
    sends="authenticationRequest with the mechanism NO_SUCH",
    expects="the status E_REFUSED -2",
    statement="5.5",
    level=Level.OBSERVED,
)
async def _mechanism(bench: Bench) -> None:
    peer = await bench.dial()
    status = (await peer.authenticate("NO_SUCH", b"x")).status
    check((status.category.name, status.code), ("E_REFUSED", -2), "category and code")


# ---- 9.3 acknowledgements


@GROUP.case(
    "9.3.1",
    "The status of a post to a queue opened for reading is 5",
    sends="a PUT to a queue opened for reading",
    expects="an ACK with the status 5",
    statement="10.23",
    level=Level.OBSERVED,
    domains=(_QUEUE,),
)
async def _reading(bench: Bench) -> None:
    peer, _ = await bench.queue(write=False)
    peer.post(b"x")
    check((await peer.ack()).status, 5, "status")
