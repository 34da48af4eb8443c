# SPDX-License-Identifier: Apache-2.0
"""The client core and its connection: handshake, authentication, heartbeats, hostile bytes."""

from __future__ import annotations

import pytest

from bmq.errors import (
    AuthenticationError,
    ConfigureQueueError,
    ConnectionFailed,
    NegotiationError,
    OpenQueueError,
    ProtocolError,
    RequestError,
    RequestTimeout,
    SessionClosed,
    StatusCategory,
)
from bmq.protocol.client.core import CoreOptions, SessionState
from bmq.protocol.client.events import (
    ConnectionLost,
    Disconnected,
    QueueReopenFailed,
    StateRestored,
)
from bmq.protocol.client.handshake import Credentials
from bmq.wire.constants import EventType
from bmq.wire.control import (
    ClientIdentity,
    ClientType,
    CloseQueueResponse,
    Codec,
    ControlMessage,
    DisconnectResponse,
    Status,
)
from bmq.wire.control_event import encode_event
from bmq.wire.event import pack_event_header, pack_schema_event
from tests.protocol.bench import WRITE, Bench, ScriptedBroker, connected
from tests.sweeps import sweep

BASIC = Credentials("BASIC", b"ann:secret")


@pytest.mark.statement("4.1")
def test_a_client_introduces_itself_and_is_connected_when_the_broker_agrees() -> None:
    bench = Bench()
    bench.open_channel()
    assert bench.broker.log == ["clientIdentity"]
    assert bench.state is SessionState.STARTING
    bench.send(ScriptedBroker.welcome())
    assert bench.state is SessionState.STARTED
    assert bench.names == ["Connected"]
    assert bench.core.new_properties
    bench.begin_open("bmq://d/q")
    assert bench.answer_all() == ["OpenQueue", "ConfigureStream"]


def test_credentials_come_before_the_identity() -> None:
    bench = Bench()
    bench.open_channel(BASIC)
    assert bench.broker.log == ["authenticationRequest"]
    assert (bench.broker.credentials[0].mechanism, bench.broker.credentials[0].data) == (
        "BASIC",
        b"ann:secret",
    )
    bench.send(ScriptedBroker.admit())
    assert bench.broker.log == ["authenticationRequest", "clientIdentity"]
    bench.send(ScriptedBroker.welcome())
    assert bench.state is SessionState.STARTED


def test_refused_credentials_close_the_connection_with_the_brokers_reason() -> None:
    bench = Bench()
    bench.open_channel(BASIC)
    bench.send(ScriptedBroker.admit(category=StatusCategory.E_REFUSED))
    (error,) = bench.failures
    assert isinstance(error, AuthenticationError)
    assert "wrong password" in str(error)
    assert "secret" not in str(error)
    assert not error.retryable


@pytest.mark.statement("4.1")
def test_a_refused_negotiation_closes_the_connection_with_the_brokers_reason() -> None:
    bench = Bench()
    bench.open_channel()
    bench.send(ScriptedBroker.welcome(category=StatusCategory.E_NOT_SUPPORTED))
    (error,) = bench.failures
    assert isinstance(error, NegotiationError)
    assert "go away" in str(error)
    assert "E_NOT_SUPPORTED" in str(error)
    assert bench.state is SessionState.STARTING


@sweep(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes(64),
        b"\xff" * 64,
        pack_event_header(8, EventType.ACK),
        pack_event_header(12, EventType.CONTROL) + b"nope",
        encode_event(ClientIdentity(client_type=ClientType.E_TCPCLIENT), Codec.JSON),
    ],
)
@sweep("credentials", [None, BASIC])
def test_other_server_is_a_retryable_connection_failure(
    garbage: bytes, credentials: Credentials | None
) -> None:
    bench = Bench()
    bench.open_channel(credentials)
    bench.send(garbage)
    (error,) = bench.failures
    assert isinstance(error, ConnectionFailed)
    assert error.retryable
    # No more input of this connection is read.
    bench.send(ScriptedBroker.welcome())
    assert bench.names == []
    bench.lose()
    bench.connect()
    assert bench.names == ["Connected"]


def test_garbage_on_a_live_connection_is_a_protocol_error_and_the_session_survives() -> None:
    bench = Bench()
    bench.connect()
    bench.send(b"nope" * 3)
    (error,) = bench.failures
    assert isinstance(error, ProtocolError)
    bench.lose(str(error))
    assert isinstance(bench.happened[-1], ConnectionLost)
    bench.connect()
    assert isinstance(bench.happened[-1], StateRestored)


def test_oversized_event_is_refused_before_buffering() -> None:
    bench = Bench(CoreOptions(max_incoming_event=1000))
    bench.connect()
    bench.send(pack_event_header(1004, EventType.PUSH))
    (error,) = bench.failures
    assert isinstance(error, ProtocolError)
    assert "1,004 bytes exceeds the limit of 1,000" in str(error)


WRONG_ANSWERS = {
    "closeQueueResponse": CloseQueueResponse(),
    "a status of success": Status(),
    "a message that this version does not know": None,
}


@sweep("words", WRONG_ANSWERS)
@pytest.mark.statement("4.33")
def test_an_answer_of_another_kind_is_an_error_of_its_request_alone(words: str) -> None:
    bench = connected()
    other = bench.open("bmq://d/other")
    bench.begin_open("bmq://d/q")
    request = bench.broker.requests.popleft()
    bench.send(encode_event(ControlMessage(r_id=request.r_id, body=WRONG_ANSWERS[words]), Codec.JSON))
    (error,) = bench.completed["bmq://d/q"]
    assert isinstance(error, OpenQueueError)
    assert "openQueue" in str(error)
    assert words in str(error)
    assert error.category is StatusCategory.E_UNKNOWN
    assert bench.failures == []
    bench.post(other, 1)
    assert bench.ack_all() == [1]
    # The broker may have opened the queue: another open is possible.
    bench.open("bmq://d/q", token="again")
    assert bench.completed["again"] == [None]


@sweep("words", WRONG_ANSWERS)
@sweep("step", ["configure", "reconfigure", "close", "reopen"])
def test_a_wrong_answer_to_any_request_leaves_the_connection(words: str, step: str) -> None:
    bench = connected()
    other = bench.open("bmq://d/other", WRITE)
    if step == "configure":
        bench.begin_open("bmq://d/q")
        bench.answer()
    else:
        queue = bench.open("bmq://d/q")
        if step == "reconfigure":
            bench.configure(queue, "x == 1")
        elif step == "close":
            bench.core.close_queue(queue, "close", bench.now, bench.now + 60, at_once=True)
            bench.pump()
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


# heartbeats


def test_heartbeats_of_the_broker_are_answered_once_a_turn() -> None:
    bench = Bench()
    bench.connect()
    bench.send(Bench.pulse() * 1000)
    assert bench.broker.log.count("HEARTBEAT_RSP") == 1


def test_a_silent_broker_is_probed_and_then_given_up() -> None:
    bench = Bench()
    bench.connect(interval_ms=3000, max_missed=2)
    bench.wait(3.0)
    assert bench.broker.log.count("HEARTBEAT_REQ") == 1
    bench.wait(3.0)
    assert bench.broker.log.count("HEARTBEAT_REQ") == 2
    assert bench.failures == []
    bench.wait(3.0)
    (error,) = bench.failures
    assert isinstance(error, ConnectionFailed)
    assert "silent" in str(error)


def test_any_byte_keeps_a_broker_alive() -> None:
    bench = Bench()
    bench.connect(interval_ms=3000, max_missed=1)
    # A large event, one piece every two seconds.
    bench.send(pack_event_header(100_000, EventType.PUSH))
    for _ in range(20):
        bench.wait(2.0)
        bench.send(b"x")
    assert bench.failures == []
    assert "HEARTBEAT_REQ" not in bench.broker.log


@pytest.mark.parametrize("max_missed", [0, 1])
def test_paused_reading_ignores_silence_and_sends_heartbeats(max_missed: int) -> None:
    bench = Bench()
    bench.connect(interval_ms=3000, max_missed=max_missed)
    bench.core.pause_reading(True, bench.now)
    bench.wait(20.5)
    assert bench.failures == []
    # Unsolicited answers count as life, and need no reply that would stay unread.
    assert set(bench.broker.log) == {"clientIdentity", "HEARTBEAT_RSP"}
    assert bench.broker.log.count("HEARTBEAT_RSP") == 20
    bench.lose()
    bench.wait(10)
    bench.connect(interval_ms=3000, max_missed=max_missed)
    bench.wait(5.5)
    assert bench.broker.log.count("HEARTBEAT_RSP") == 5  # reading is still paused
    bench.core.pause_reading(False, bench.now)
    bench.wait(12.0)
    assert bench.broker.log.count("HEARTBEAT_RSP") == 5
    assert len(bench.failures) == max_missed


# renewing credentials


def authenticated(lifetime_ms: int | None) -> Bench:
    bench = Bench()
    bench.open_channel(BASIC)
    bench.send(ScriptedBroker.admit(lifetime_ms=lifetime_ms))
    bench.send(ScriptedBroker.welcome())
    return bench


def test_credentials_are_asked_for_before_their_lifetime_ends() -> None:
    bench = authenticated(600_000)
    bench.wait(539)
    assert bench.renewals == 0
    bench.wait(2)
    assert bench.renewals == 1
    bench.core.reauthenticate(Credentials("BASIC", b"ann:newer"), bench.now)
    bench.pump()
    assert bench.broker.credentials[-1].data == b"ann:newer"
    bench.send(ScriptedBroker.admit(lifetime_ms=600_000))
    bench.wait(500)
    assert bench.failures == []
    assert bench.renewals == 1


@sweep("lifetime, due", [(600.0, 540.0), (20.0, 15.0), (10.0, 5.0), (4.0, 2.0)])
def test_credentials_are_renewed_in_good_time(lifetime: float, due: float) -> None:
    bench = authenticated(int(lifetime * 1000))
    bench.wait(due - 0.01)
    assert bench.renewals == 0
    bench.wait(0.02)
    assert bench.renewals == 1
    bench.wait(lifetime - due - 0.02)
    assert bench.failures == []
    bench.wait(0.02)
    assert len(bench.failures) == 1


def test_unavailable_credentials_are_requested_again_in_time() -> None:
    bench = authenticated(600_000)
    asked: list[float] = []
    while not bench.failures:
        bench.wait(0.5)
        if bench.renewals > len(asked):
            asked.append(bench.now)
            bench.core.reauthenticate(None, bench.now)
    assert 5 < len(asked) < 20


def test_a_refused_renewal_closes_the_connection() -> None:
    bench = authenticated(10_000)
    bench.wait(9)
    bench.core.reauthenticate(BASIC, bench.now)
    bench.send(ScriptedBroker.admit(category=StatusCategory.E_REFUSED))
    assert isinstance(bench.failures[0], AuthenticationError)


def test_renewal_is_forgotten_with_the_connection() -> None:
    bench = authenticated(10_000)
    bench.lose()
    bench.wait(20)
    assert bench.renewals == 0
    bench.core.reauthenticate(BASIC, bench.now)  # too late for a renewal
    bench.pump()


# stopping


def test_stop_disconnects_and_ends() -> None:
    bench = Bench()
    bench.connect()
    bench.core.stop("stop", bench.now, bench.now + 30)
    bench.pump()
    assert bench.broker.log[-1] == "Disconnect"
    assert bench.state is SessionState.CLOSING
    bench.answer()
    assert bench.state is SessionState.CLOSED
    assert bench.completed == {"stop": [None]}
    assert bench.happened[-1] == Disconnected("")
    assert bench.failures == [None]  # close the connection; no error occurred


@sweep("how", ["timeout", "lost", "failed"])
def test_stop_ends_with_any_broker(how: str) -> None:
    bench = Bench()
    bench.connect()
    bench.core.stop("stop", bench.now, bench.now + 30)
    bench.pump()
    if how == "timeout":
        bench.wait(30)
    elif how == "lost":
        bench.lose()
    else:
        bench.core.give_up("", bench.now)
        bench.pump()
    assert bench.state is SessionState.CLOSED
    assert bench.completed == {"stop": [None]}
    assert bench.happened[-1] == Disconnected("")


@sweep("moment", ["before", "handshake", "reconnecting", "reconnecting handshake"])
def test_stop_without_a_connection_ends_at_once(moment: str) -> None:
    bench = Bench()
    if moment.startswith("reconnecting"):
        bench.connect()
        bench.lose()
    if moment.endswith("handshake"):
        bench.open_channel()
    bench.core.stop("stop", bench.now, bench.now + 30)
    bench.pump()
    assert bench.state is SessionState.CLOSED
    assert bench.completed == {"stop": [None]}
    if bench.up:
        bench.send(ScriptedBroker.welcome())  # too late
        bench.lose()
    assert bench.happened[-1] == Disconnected("")
    with pytest.raises(SessionClosed):
        bench.core.channel_opened(bench.core.handshake(), bench.now)


def test_giving_up_ends_all_calls_with_the_reason() -> None:
    bench = Bench()
    bench.connect()
    queue = bench.open("bmq://d/q")
    bench.post(queue, 1)
    waiting = bench.begin_open("bmq://d/other")
    bench.lose()
    bench.core.give_up("tried long enough", bench.now)
    bench.pump()
    assert bench.happened[-1] == Disconnected("tried long enough")
    assert [status.name for status in bench.outcomes[1]] == ["CANCELED"]
    (error,) = bench.completed["bmq://d/other"]
    assert isinstance(error, ConnectionFailed)
    assert "tried long enough" in str(error)
    assert waiting.state.name == queue.state.name == "CLOSED"
    assert bench.core.next_deadline() is None


def test_a_heartbeat_that_was_not_answered_in_time_is_not_answered_on_the_next_connection() -> None:
    bench = connected()
    # The answer arrives, and the connection is lost in the same turn.
    bench.core.receive(bench.pulse(), bench.now)
    bench.lose()
    bench.open_channel()
    assert bench.broker.log == ["clientIdentity"]
