# SPDX-License-Identifier: Apache-2.0
"""The recorded clients' bytes go in; the output equals the recorded broker's answers.

The identity of the broker and the folder of its domains are settings: answers are compared byte for byte.
Legitimate differences: GUIDs created by the broker for a client without GUIDs; the number of messages in an
event, and the order of ACK and PUSH between two answers; the times of heartbeats. The choice among equal
consumers for the first message is unspecified; the recorded broker uses the order of opening, like ours. The
last data before a cut did not reach the recorded client: there the recording is only a prefix.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, NoReturn

from bmq.broker._domain import DomainSource, Refused
from bmq.broker._settings import Authentication, BrokerSettings
from bmq.broker.domain_config import builtin_domains
from bmq.errors import ProtocolError, StatusCategory
from bmq.wire.ack import decode_acks
from bmq.wire.constants import EventType
from bmq.wire.control import BrokerResponse, MessageKind
from bmq.wire.control_event import decode_event
from bmq.wire.event import read_event
from bmq.wire.push import decode_pushes
from tests.broker.core import Core, CoreClient
from tests.sweeps import sweep
from tests.transcripts import DIRECTORY, RECORDINGS

#: Connections that were cut while the broker was sending.
CUT = {("official-reconnect", 1)}
#: Connections of clients without GUIDs.
LEGACY = {("json-old", 3)}


class RecordedDomains(DomainSource):
    """Built-in domains, with the recorded broker's words for others: they name the broker's folder."""

    def _read(self, name: str) -> NoReturn:
        text = f"Domain file '/etc/local/bmq/domains/{name}.json' doesn't exist"
        raise Refused(StatusCategory.E_UNKNOWN, text, -1)


class Conversation:
    """The output of a broker on one connection: answers, with pushes and acknowledgements between them."""

    def __init__(self, *, legacy: bool) -> None:
        self.legacy = legacy
        self.sections: list[dict[str, list[Any]]] = [{"push": [], "ack": []}]
        self.answers: list[bytes] = []

    def add(self, data: bytes) -> None:
        event = read_event(data)
        if event.type == EventType.PUSH:
            self.sections[-1]["push"] += decode_pushes(data, event.body)
        elif event.type == EventType.ACK:
            for ack in decode_acks(data, event.body):
                self.sections[-1]["ack"].append(ack._replace(guid=b"") if self.legacy else ack)
        elif event.type != EventType.HEARTBEAT_REQ:
            self.answers.append(data)
            self.sections.append({"push": [], "ack": []})


def replay(recording: str) -> tuple[dict[int, Conversation], dict[int, Conversation]]:
    """Return the outputs of the recorded broker and of ours, by connection."""
    entries = [json.loads(line) for line in (DIRECTORY / f"{recording}.jsonl").read_text().splitlines()]
    said: list[BrokerResponse] = []
    for entry in entries:
        if entry["dir"] == "b2c" and entry.get("type") == EventType.CONTROL:
            with suppress(ProtocolError):  # an answer of another kind
                message = decode_event(read_event(bytes.fromhex(entry["hex"])), MessageKind.NEGOTIATION)
                assert isinstance(message, BrokerResponse)
                said.append(message)
    first = said[0].broker_identity
    settings = BrokerSettings(
        process_name=first.process_name,
        pid=first.pid,
        host_name=first.host_name,
        heartbeat_interval_ms=said[0].heartbeat_interval_ms,
        max_missed_heartbeats=said[0].max_missed_heartbeats,
        authentication=Authentication({"user": "secret"}, anonymous=True),
    )
    core = Core(settings=settings)
    core.node.source = RecordedDomains(builtin_domains())
    theirs: dict[int, Conversation] = {}
    ours: dict[int, Conversation] = {}
    peers: dict[int, CoreClient] = {}
    session_ids = iter([m.broker_identity.session_id for m in said])
    negotiated: set[int] = set()
    over: set[int] = set()
    for entry in entries:
        number = entry["conn"]
        core.now = entry["t"]
        if number not in peers:
            peers[number] = core.connect()
            legacy = (recording, number) in LEGACY
            theirs[number], ours[number] = Conversation(legacy=legacy), Conversation(legacy=legacy)
        session = peers[number].session
        if entry.get("eof"):
            if number not in over:
                over.add(number)
                # Who closes the connection is part of the answer.
                assert session.closed is (entry["dir"] == "b2c"), f"connection {number}"
                session.channel_down(core.now)
        elif entry["dir"] == "b2c":
            theirs[number].add(bytes.fromhex(entry["hex"]))
        else:
            data = bytes.fromhex(entry["hex"])
            if entry["type"] == EventType.CONTROL and number not in negotiated:
                negotiated.add(number)
                refused = b"E_PYTHON" in data or b'"clientType":"E_UNKNOWN"' in data
                session.session_id = 0 if refused else next(session_ids)
            session.receive(data, core.now)
        for each, peer in peers.items():
            for event in peer.receive():
                ours[each].add(event.data)
    return theirs, ours


@sweep("recording", RECORDINGS)
def test_answers_equal_the_recorded_answers(recording: str) -> None:
    theirs, ours = replay(recording)
    assert theirs.keys() == ours.keys()
    for number, expected in theirs.items():
        actual = ours[number]
        assert actual.answers == expected.answers, f"connection {number}"
        if (recording, number) in CUT:
            last, ours_last = expected.sections.pop(), actual.sections.pop()
            for kind, items in last.items():
                assert ours_last[kind][: len(items)] == items
        assert actual.sections == expected.sections, f"connection {number}"
    assert sum(len(c.answers) for c in theirs.values()) > 2
