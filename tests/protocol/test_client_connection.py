# SPDX-License-Identifier: Apache-2.0
"""The client core and its connection: handshake, authentication, heartbeats, hostile bytes."""

from __future__ import annotations

import pytest

from bmq.errors import (
    ConfigureQueueError,
    OpenQueueError,
    ProtocolError,
    RequestError,
    RequestTimeout,
    StatusCategory,
)
from bmq.protocol.client.events import QueueReopenFailed
from bmq.protocol.client.handshake import Credentials
from bmq.wire.constants import EventType
from bmq.wire.control import CloseQueueResponse, Codec, ControlMessage, DisconnectResponse, Status
from bmq.wire.control_event import encode_event
from bmq.wire.event import pack_schema_event
from tests.protocol.bench import WRITE, Bench, ScriptedBroker, connected
from tests.sweeps import sweep

BASIC = Credentials("BASIC", b"ann:secret")


WRONG_ANSWERS = {
    "closeQueueResponse": CloseQueueResponse(),
    "a status of success": Status(),
    "a message that this version does not know": None,
}


@sweep("words", WRONG_ANSWERS)
@sweep("step", ["open", "configure", "reconfigure", "close", "reopen"])
@pytest.mark.statement("4.33")
def test_an_answer_of_another_kind_is_an_error_of_its_request_alone(words: str, step: str) -> None:
    bench = connected()
    other = bench.open("bmq://d/other", WRITE)
    if step in ("open", "configure"):
        bench.begin_open("bmq://d/q")
        if step == "configure":
            bench.answer()
    else:
        queue = bench.open("bmq://d/q")
        if step == "reconfigure":
            bench.configure(queue, "x == 1")
        elif step == "close":
            bench.close(queue, at_once=True)
        else:
            bench.lose()
            bench.connect()
            bench.answer_queue(other)
    request = bench.broker.requests.popleft()
    body = WRONG_ANSWERS[words]
    if step == "close" and isinstance(body, CloseQueueResponse):
        body = DisconnectResponse()
    bench.send(encode_event(ControlMessage(r_id=request.r_id, body=body), Codec.JSON))
    failures = [error for errors in bench.completed.values() for error in errors if error is not None]
    failures += [event.error for event in bench.happened if isinstance(event, QueueReopenFailed)]
    (error,) = failures
    assert isinstance(error, RequestError)
    assert bench.failures == []
    bench.answer_all()
    bench.post(other, 1)
    assert bench.ack_all() == [1]
    if step == "open":
        assert isinstance(error, OpenQueueError)
        assert "openQueue" in str(error)
        assert words in str(error)
        assert error.category is StatusCategory.E_UNKNOWN
        # The broker may have opened the queue: another open is possible.
        bench.open("bmq://d/q", token="again")


def test_an_answer_that_cannot_be_read_fails_its_request_with_the_reason() -> None:
    bench = connected()
    bench.begin_open("bmq://d/q")
    request = bench.broker.requests.popleft()
    body = b'{"rId":%d,"openQueueResponse":{"deduplicationTimeMs":"soon"}}' % request.r_id
    bench.send(pack_schema_event(EventType.CONTROL, Codec.JSON, body))
    (error,) = bench.completed["bmq://d/q"]
    assert isinstance(error, OpenQueueError)
    assert "deduplicationTimeMs" in str(error)
    assert isinstance(error.__cause__, ProtocolError)
    assert bench.failures == []


def test_a_request_that_times_out_names_the_message_that_could_not_be_read() -> None:
    bench = connected()
    bench.begin_open("bmq://d/q", timeout=10)
    bench.send(pack_schema_event(EventType.CONTROL, 5, b"what"))
    bench.wait(10)
    (error,) = bench.completed["bmq://d/q"]
    assert isinstance(error, RequestTimeout)
    assert isinstance(error.__cause__, ProtocolError)
    assert "codec" in str(error)


def test_unknown_status_category_is_a_refusal_with_its_name() -> None:
    for written, named in ((b'"E_BUSY"', "E_BUSY"), (b"77", "77")):
        bench = connected()
        bench.begin_open("bmq://d/q")
        r_id = bench.broker.requests.popleft().r_id
        body = b'{"rId":%d,"status":{"category":%s,"code":7,"message":"come again"}}' % (r_id, written)
        bench.send(pack_schema_event(EventType.CONTROL, Codec.JSON, body))
        (error,) = bench.completed["bmq://d/q"]
        assert isinstance(error, OpenQueueError)
        assert (error.category, error.code) == (StatusCategory.E_UNKNOWN, 7)
        assert error.broker_message.endswith(": come again")
        assert named in str(error)
        assert bench.failures == []
        assert len(bench.skipped) == 1


def test_a_lost_connection_is_the_cause_of_a_request_that_times_out() -> None:
    bench = connected()
    bench.begin_open("bmq://d/q", timeout=10)
    bench.send(b"\xff" * 8)
    bench.lose("fragmented")
    bench.wait(10)
    (error,) = bench.completed["bmq://d/q"]
    assert isinstance(error, RequestTimeout)
    assert isinstance(error.__cause__, ProtocolError)
    assert "fragmented events" in str(error)


def test_trouble_is_forgotten_a_minute_after_a_connection_came() -> None:
    bench = connected()
    bench.lose("cut")
    assert "cut" in str(bench.core.trouble)
    bench.wait(1000)
    assert "cut" in str(bench.core.trouble)
    bench.connect(max_missed=1)
    assert "cut" in str(bench.core.trouble)
    bench.send(bench.pulse())
    bench.now += 61
    bench.send(bench.pulse())
    assert bench.core.trouble is None
    bench.core.stop("stop", bench.now, bench.now + 1)
    bench.pump()
    bench.answer_all()
    assert bench.core.trouble is None


def test_old_broker_receives_no_unsupported_requests() -> None:
    for wanted in (["x == 1"], ["", ""], ["", "x == 1"]):
        bench = Bench()
        bench.connect(features="PROTOCOL_ENCODING:JSON")
        bench.begin_open("bmq://d/q", subscriptions=wanted)
        bench.answer_all()
        bench.wait(0)
        bench.answer_all()
        (error,) = bench.completed["bmq://d/q"]
        assert isinstance(error, ConfigureQueueError)
        assert error.category is StatusCategory.E_NOT_SUPPORTED
        assert "SUBSCRIPTIONS:CONFIGURE_STREAM" in str(error)
        assert bench.broker.log == ["clientIdentity", "OpenQueue", "CloseQueue"]
        # An open queue keeps its state.
        queue = bench.open("bmq://d/q", token="again")
        bench.configure(queue, *wanted, token="more")
        bench.wait(0)
        (error,) = bench.completed["more"]
        assert isinstance(error, ConfigureQueueError)
        assert "ConfigureStream" not in bench.broker.log
        assert bench.failures == []
        assert [sub.expression for sub in queue.subscriptions.committed] == [""]


def test_heartbeats_of_the_broker_are_answered_once_a_turn() -> None:
    bench = Bench()
    bench.connect()
    bench.send(Bench.pulse() * 1000)
    assert bench.broker.log.count("HEARTBEAT_RSP") == 1


def authenticated(lifetime_ms: int | None) -> Bench:
    bench = Bench()
    bench.open_channel(BASIC)
    bench.send(ScriptedBroker.admit(lifetime_ms=lifetime_ms))
    bench.send(ScriptedBroker.welcome())
    return bench


def test_unavailable_credentials_are_requested_again_in_time() -> None:
    bench = authenticated(600_000)
    asked: list[float] = []
    while not bench.failures:
        bench.wait(0.5)
        if bench.renewals > len(asked):
            asked.append(bench.now)
            bench.core.reauthenticate(None, bench.now)
    assert 5 < len(asked) < 20


def test_renewal_is_forgotten_with_the_connection() -> None:
    bench = authenticated(10_000)
    bench.lose()
    bench.wait(20)
    assert bench.renewals == 0
    bench.core.reauthenticate(BASIC, bench.now)  # too late for a renewal
    bench.pump()


def test_a_heartbeat_that_was_not_answered_in_time_is_not_answered_on_the_next_connection() -> None:
    bench = connected()
    # The answer arrives, and the connection is lost in the same turn.
    bench.core.receive(bench.pulse(), bench.now)
    bench.lose()
    bench.open_channel()
    assert bench.broker.log == ["clientIdentity"]
