# SPDX-License-Identifier: Apache-2.0
# The rows of a table take any arguments: pyright cannot know those of a lambda in a row.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
"""The status of each refused request: category, code and text, as users read them in the log of a client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bmq.wire.control import (
    ClientLanguage,
    CloseQueue,
    ConfigureStream,
    ControlBody,
    Status,
    StreamParameters,
)
from conformance.bench import Bench
from conformance.case import Cases, Level, check, fail
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


#: Number, statement, what is refused, kind of the domain, request from the URI of a new queue, category and code
#: of the status, a part of its text, whether the queue is open as qId 0 before.
_REFUSED: list[tuple[Any, ...]] = [
    ("9.1.1", "7.4", "openQueue in an unknown domain", _QUEUE, lambda uri: open_request("bmq://no.such.domain/q"), "E_UNKNOWN", -1, "Domain file '"),
    ("9.1.2", "7.2", "openQueue with another scheme", _QUEUE, lambda uri: open_request("tcp://bmq.test.mem.priority/q"), "E_REFUSED", 0,
     'Invalid scheme: uri must start with "bmq://"'),
    ("9.1.3", "7.21", "a reader of a fanout queue without an application", "fanout", _opened(write=False), "E_UNKNOWN", -1,
     "Reader of a fanout queue requires an appId to be specified."),
    ("9.1.4", "7.22", "an application of a priority queue", _QUEUE, _of_app("foo", write=False), "E_UNKNOWN", -1, _NOT_FANOUT),
    ("9.1.5", "7.22", "an application of a broadcast queue", "broadcast", _of_app("foo", write=False), "E_UNKNOWN", -1, _NOT_FANOUT),
    ("9.1.6", "7.22", "a producer with an application", "fanout", _of_app("foo", read=False), "E_INVALID_ARGUMENT", 0,
     "AppId should not be specified in the URI if queue is opened in write mode"),
    ("9.1.7", "7.12", "openQueue with counts of 0", _QUEUE, _opened(read_count=0, write_count=0), "E_INVALID_ARGUMENT", 0,
     "At least one of ([read|write]) Count must be >0"),
    ("9.1.8", "7.12", "openQueue with adminCount 1", _QUEUE, _opened(admin_count=1), "E_INVALID_ARGUMENT", 0, "adminCount must be 0"),
    ("9.1.9", "7.12", "readCount without the flag READ", _QUEUE, _opened(flags=4), "E_INVALID_ARGUMENT", 0, "Read flag and readCount must both be set accordingly"),
    ("9.1.10", "7.12", "writeCount without the flag WRITE", _QUEUE, _opened(flags=2), "E_INVALID_ARGUMENT", 0, "Write flag and writeCount must both be set accordingly"),
    ("9.1.11", "7.7", "a reserved queue id", _QUEUE, _opened(q_id=4_294_967_290), "E_INVALID_ARGUMENT", 0, "qId must not be set from the reserved queue ids range"),
    ("9.1.12", "8.6", "configureStream of an unknown queue", "", lambda uri: ConfigureStream( q_id=77, stream_parameters=StreamParameters(subscriptions=())), "E_UNKNOWN",
     0, _NO_QUEUE),
    ("9.1.13", "15.4", "closeQueue of an unknown queue", "", lambda uri: CloseQueue( handle_parameters=handle(uri, 77), is_final=True), "E_UNKNOWN", 0, _NO_QUEUE),
    ("9.1.14", "7.5", "the queue id of another queue", _QUEUE, lambda uri: open_request(uri + "-other"), "E_INVALID_ARGUMENT", -1, "", True),
    ("9.1.15", "15.4", "closeQueue with counts of 0", _QUEUE, lambda uri: CloseQueue( handle_parameters=handle(uri, read_count=0, write_count=0), is_final=False),
     "E_INVALID_ARGUMENT", 0, "", True),
    ("9.1.16", "8.16", "the invalid priority with a count", _QUEUE, _streamed(-(2**31), 1), "E_UNKNOWN", -1, _BAD_PRIORITY, True),
    ("9.1.17", "8.16", "a priority with a count of 0", _QUEUE, _streamed(0, 0), "E_UNKNOWN", -1, _BAD_PRIORITY, True),
]  # fmt: skip


def _contains(status: Status, category: str, code: int, text: str) -> None:
    check((status.category.name, status.code), (category, code), "category and code")
    if text not in status.message:
        raise fail(f"the text {text!r}", status.message)


async def _refused(
    bench: Bench, kind: str, make: _Make, category: str, code: int, text: str, later: bool = False
) -> None:
    peer, uri = await bench.client(), bench.uri(kind or "priority")
    if later:
        await peer.open(uri)
    _contains(await peer.refused(make(uri)), category, code, text)


for _number, _statement, _what, _kind, _make, _category, _code, _text, *_later in _REFUSED:
    GROUP.add(
        _number,
        _statement,
        Level.OBSERVED,
        f"Status of a refusal: {_what}",
        _what,
        f"the status {_category} {_code}" + (f" with the text {_text!r}" if _text else ""),
        _refused,
        *(_kind, _make, _category, _code, _text, *_later),
        domains=(_kind,) if _kind else (),
    )


# ---- 9.2 before the session


@GROUP.case("9.2.1", "4.14", Level.OBSERVED)
async def _outdated(bench: Bench) -> None:
    """Status of a refusal: an outdated C++ client.

    Sends: a clientIdentity with E_CPP and sdkVersion 1.
    Expects: E_NOT_SUPPORTED with the text 'Client is using an unsupported version of libbmq'.
    """
    peer = await bench.dial()
    response = await peer.negotiate(sdk_language=ClientLanguage.E_CPP, sdk_version=1)
    text = "Client is using an unsupported version of libbmq"
    _contains(response.result, "E_NOT_SUPPORTED", response.result.code, text)


@GROUP.case("9.2.2", "5.5", Level.OBSERVED)
async def _mechanism(bench: Bench) -> None:
    """Status of a refusal: an unknown mechanism of authentication.

    Sends: authenticationRequest with the mechanism NO_SUCH.
    Expects: the status E_REFUSED -2.
    """
    peer = await bench.dial()
    status = (await peer.authenticate("NO_SUCH", b"x")).status
    check((status.category.name, status.code), ("E_REFUSED", -2), "category and code")


# ---- 9.3 acknowledgements


@GROUP.case("9.3.1", "10.23", Level.OBSERVED, domains=(_QUEUE,))
async def _reading(bench: Bench) -> None:
    """The status of a post to a queue opened for reading is 5.

    Sends: a PUT to a queue opened for reading.
    Expects: an ACK with the status 5.
    """
    peer, _ = await bench.queue(write=False)
    peer.post(b"x")
    check((await peer.ack()).status, 5, "status")
