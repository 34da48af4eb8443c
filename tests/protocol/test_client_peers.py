# SPDX-License-Identifier: Apache-2.0
"""The client core and its peer: answers, credentials, brokers of the past and the future, hostile bytes."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.errors import (
    AckStatus,
    ConfigureQueueError,
    ConnectionFailed,
    OpenQueueError,
    ProtocolError,
    RequestError,
    RequestTimeout,
    StatusCategory,
)
from bmq.protocol.client.core import CoreOptions, SessionState
from bmq.protocol.client.events import QueueReopenFailed
from bmq.protocol.client.handshake import Credentials
from bmq.wire.constants import ACK_STATUS_FROM_WIRE, EventType
from bmq.wire.control import (
    AdminCommandResponse,
    CloseQueueResponse,
    Codec,
    ControlMessage,
    DisconnectResponse,
    Status,
)
from bmq.wire.control_event import encode_event
from bmq.wire.event import pack_event_header, pack_schema_event
from tests.extras import with_tables
from tests.fakes.newer import edited, longer_header, with_new_enumerators, with_new_members
from tests.protocol.bench import READ, WRITE, Bench, ScriptedBroker, connected, guid
from tests.sweeps import sweep


def session() -> tuple[Bench, Any, Any]:
    bench = Bench(CoreOptions(repeat_after=0))
    bench.connect()
    return bench, bench.open("bmq://d/read", READ), bench.open("bmq://d/write", WRITE)


EDITS: dict[str, Any] = {
    "new members": with_new_members,
    "new enumerators": with_new_enumerators,
    "new enumerators by number": lambda document: with_new_enumerators(document, 4242),
    "both": lambda document: with_new_members(with_new_enumerators(document)),
}


@sweep("edit", EDITS)
@sweep("words", [2, 3, 7, 255])
@pytest.mark.statement("3.17", "8.3")
def test_a_session_survives_answers_of_a_newer_broker(edit: str, words: int) -> None:
    """From credentials and negotiation through a reconnect to the end, with every answer changed."""

    def newer(event: bytes) -> bytes:
        return longer_header(edited(event, EDITS[edit]), words)

    bench = Bench(CoreOptions(repeat_after=0))

    def answer_all() -> None:
        while bench.broker.requests:
            bench.send(newer(bench.broker.accept(bench.broker.requests.popleft())))

    def connect() -> None:
        bench.open_channel(Credentials.basic("ann", "secret"))
        bench.send(newer(ScriptedBroker.admit(lifetime_ms=600_000)))
        bench.send(newer(ScriptedBroker.welcome()))
        answer_all()

    connect()
    app = bench.begin_open("bmq://d/fanout?id=foo", READ, subscriptions=["x == 1", "y == 2"])
    queue = bench.begin_open("bmq://d/q", READ | WRITE)
    answer_all()
    bench.configure(queue, "x > 3", "x < 0", token="configured")
    answer_all()
    bench.push(queue, 1)
    bench.post(queue, 1)
    bench.lose()
    connect()
    assert bench.ack_all() == [1]
    bench.push(queue, 2)
    bench.wait(570)
    assert bench.renewals == 1
    bench.core.reauthenticate(Credentials.basic("ann", "secret"), bench.now)
    bench.pump()
    bench.send(newer(ScriptedBroker.admit(lifetime_ms=600_000)))
    bench.wait(100)
    for each in (app, queue):
        bench.close(each, token=f"close {each.uri}")
    answer_all()
    bench.core.stop("stop", bench.now, bench.now + 10)
    bench.pump()
    answer_all()
    assert [error for error in bench.failures if error is not None] == []
    assert bench.numbers_received == [1, 2]
    assert {token: errors for token, errors in bench.completed.items() if errors != [None]} == {}
    assert bench.state is SessionState.CLOSED
    for what in set(bench.skipped):
        assert "sinceNextYear" in what or "E_NEXT_YEAR" in what or "4242" in what


@pytest.mark.parametrize("credentials", [None, Credentials.basic("ann", "secret")])
def test_unknown_input_during_the_handshake_is_skipped(credentials: Credentials | None) -> None:
    bench = Bench()
    bench.open_channel(credentials)
    for kind in (0, *range(16, 64)):
        bench.send(pack_event_header(12, kind) + b"next")
    new = {"nextYearsMessage": {"x": 1}}
    if credentials is not None:
        bench.send(edited(ScriptedBroker.admit(), lambda _: new))
        bench.send(ScriptedBroker.admit())
    bench.send(edited(ScriptedBroker.welcome(), lambda _: new))
    assert bench.failures == []
    assert bench.state is SessionState.STARTING
    bench.send(ScriptedBroker.welcome())
    assert bench.state is SessionState.STARTED
    assert {f"events of type {kind}" for kind in (0, 16, 63)} <= set(bench.skipped)


@sweep("body", [None, DisconnectResponse(), Status(message="no"), AdminCommandResponse()])
@sweep("codec", Codec)
@sweep("credentials", [None, Credentials.basic("ann", "secret")])
@pytest.mark.statement("4.32")
def test_a_control_message_in_answer_to_the_handshake_is_refused_at_once(
    body: Any, codec: Codec, credentials: Credentials | None
) -> None:
    bench = Bench()
    bench.open_channel(credentials)
    bench.send(encode_event(ControlMessage(r_id=1, body=body), codec))
    (error,) = bench.failures
    assert isinstance(error, ConnectionFailed)
    assert "does not behave like a BlazingMQ broker" in str(error)


@sweep("status", range(16))
@sweep("how", ["alone", "together", "as an event"])
def test_an_unknown_status_of_an_ack_is_unknown_and_kept_as_a_number(status: int, how: str) -> None:
    bench, _, writer = session()
    if how == "as an event":
        bench.post_event(writer, 1)
    elif how == "together":
        bench.post_many(writer, 1)
    else:
        bench.post(writer, 1)
    ack = bytearray(bench.broker.ack(bench.broker.puts))
    ack[12] = ack[12] & 0xF0 | status
    strange: dict[bytes, int] = {}
    bench.core.receive(bytes(ack), bench.now)
    for event in bench.core.events():
        strange.update(getattr(event, "strange", None) or {})
        bench._note(event)
    (outcome,) = next(iter(bench.outcomes.values()))
    assert outcome is ACK_STATUS_FROM_WIRE[status]
    assert list(strange.values()) == ([status] if status in {3, 4, *range(8, 16)} else [])
    assert len(bench.skipped) == len(strange)
    assert bench.failures == []


@sweep(
    "broken",
    {
        "the fragment bit": b"\x80\x00\x00\x08\x44\x02\x00\x00",
        "no length": bytes(8),
        "a length of 7": b"\x00\x00\x00\x07\x44\x02\x00\x00",
        "another version of the protocol": b"\x00\x00\x00\x08\x84\x02\x00\x00",
    }.items(),
    ids=lambda each: each[0],
)
@pytest.mark.statement("3.14", "3.17")
def test_only_lost_framing_ends_the_connection(broken: tuple[str, bytes]) -> None:
    bench, _, _ = session()
    bench.send(broken[1])
    (error,) = bench.failures
    assert isinstance(error, ProtocolError)


def with_words(message: bytes, words: int) -> bytes:
    """A PUSH message with another ``messageWords``."""
    return words.to_bytes(4, "big") + message[4:]


#: Bodies with an end that cannot be read, by event type: the name, and the part behind a readable beginning.
PUSH_TAILS: dict[str, Any] = {
    "a message longer than its event": lambda message: with_words(message, 1000),
    "a message of no words": lambda message: with_words(message, 0),
    "stray bytes": lambda _: b"\0\0\0\x09\0\0",
    "bytes too few for a length": lambda _: b"\0\0\0",
    "half a header": lambda message: message[:12],
}
ACK_BODIES = {
    "an item of no words": b"\x10\0\0\0" + bytes(24),
    "items shorter than an acknowledgement": b"\x15\0\0\0" + bytes(20),
    "a header of no words": b"\x06\0\0\0" + bytes(24),
    "a header longer than its event": b"\xf6\0\0\0" + bytes(24),
    "no header": b"\x16\0",
    "half an ack": b"\x16\0\0\0" + bytes(4),
}
WHOLE_EVENTS = {
    "no header words": b"\x00\x00\x00\x08\x44\x00\x00\x00",
    "a header longer than its event": b"\x00\x00\x00\x08\x44\x03\x00\x00",
    "a control message of no codec": pack_event_header(12, EventType.CONTROL, 0xE0) + b"{}\2\2",
    "a control message that is no JSON": pack_event_header(12, EventType.CONTROL, 0x20) + b"nope",
}


@sweep("name", [*PUSH_TAILS, *ACK_BODIES, *WHOLE_EVENTS])
@sweep("columns", [False, *with_tables(True)])
@pytest.mark.statement("3.17", "4.23")
def test_an_event_of_the_right_length_is_skipped_from_its_unreadable_byte(name: str, columns: bool) -> None:
    """The readable beginning counts, and so does every event before and behind it."""
    bench, reader, writer = session()
    if columns:
        from bmq.arrow.push import read_push_columns

        bench.core.read_columns = read_push_columns
    (s_id,) = bench.broker.s_ids[reader.q_id]
    bench.post(writer, 1, 2)
    acks = [bench.broker.ack([put]) for put in bench.broker.puts]
    one, two, three = (bench.broker.push(reader.q_id, [(guid(n), b"%d" % n)], (s_id,)) for n in (1, 2, 3))
    received = [1, 3]
    if name in PUSH_TAILS:
        body = two[8:] + PUSH_TAILS[name](three[8:])
        bad = pack_event_header(8 + len(body), EventType.PUSH) + body
        received = [1, 2, 3]
    elif name in ACK_BODIES:
        body = ACK_BODIES[name]
        bad = pack_event_header(8 + len(body), EventType.ACK) + body
    else:
        bad = WHOLE_EVENTS[name]
    bench.send(one + acks[0] + bad + three + acks[1])
    assert bench.failures == []
    assert [int(push.data) for _, push in bench.received] == received
    assert bench.outcomes == {1: [AckStatus.SUCCESS], 2: [AckStatus.SUCCESS]}
    assert len(bench.skipped) == 1
    # A broker delivers the same message again and again: one text, and so one warning.
    for _ in range(20):
        bench.send(bad)
    assert len(set(bench.skipped)) == 1
    bench.post(writer, 3)
    assert bench.ack_all()[-1] == 3


def test_the_complete_acknowledgements_of_a_cut_event_count() -> None:
    for post in (Bench.post, Bench.post_many, Bench.post_event):
        bench, _, writer = session()
        post(bench, writer, 1, 2, 3)
        event = bench.broker.ack(bench.broker.puts)[:-6]
        bench.send(pack_event_header(len(event), EventType.ACK) + event[8:])
        assert sum(map(len, bench.outcomes.values())) == 2
        assert bench.failures == []
        assert bench.skipped == ["the unreadable part of an event of type 5 (AckMessage)"]


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


@sweep(
    "bad, reason",
    [(pack_schema_event(EventType.CONTROL, 5, b"what"), "codec"), (b"\xff" * 8, "fragmented events")],
)
def test_a_request_that_times_out_names_what_could_not_be_read(bad: bytes, reason: str) -> None:
    bench = connected()
    bench.begin_open("bmq://d/q", timeout=10)
    bench.send(bad)
    if bench.failures:
        bench.lose("fragmented")
    bench.wait(10)
    (error,) = bench.completed["bmq://d/q"]
    assert isinstance(error, RequestTimeout)
    assert isinstance(error.__cause__, ProtocolError)
    assert reason in str(error)


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
