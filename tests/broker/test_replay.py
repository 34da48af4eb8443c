# SPDX-License-Identifier: Apache-2.0
"""The recorded clients' bytes go in; the output equals the recorded broker's answers.

Legitimate differences:

* process name, process id and session id in the broker's identity: settings of our broker, so that the
  answers can be compared byte for byte;
* the path of the missing file of an unknown domain: the directory is a setting, too;
* GUIDs created by the broker for a client without GUIDs: compared without their bytes;
* the number of messages in an event, and the order of ACK and PUSH: messages are compared in their order
  within their kind, between two answers;
* the time of the broker's heartbeats: compared in number only if the recorded timer began with the
  connection, which never happens; other tests cover heartbeats.

The choice among equal consumers for the first message is unspecified, too; the recorded broker uses the order
of opening, like ours. The last data that the recorded broker sent before a cut did not reach its client:
there the recording is only a prefix.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

from bmq.broker._domain import DomainSource, Refused
from bmq.broker._node import BrokerNode
from bmq.broker._output import BrokerOutput
from bmq.broker._session import BrokerSession
from bmq.broker._settings import Authentication, BrokerSettings
from bmq.broker.domain_config import builtin_domains
from bmq.errors import StatusCategory
from bmq.protocol.framing import Framer
from bmq.wire.ack import decode_acks
from bmq.wire.constants import EventType
from bmq.wire.control import BrokerResponse, MessageKind
from bmq.wire.control_event import decode_event
from bmq.wire.event import read_event
from bmq.wire.guid import GuidGenerator
from bmq.wire.push import decode_pushes
from tests.sweeps import sweep
from tests.transcripts import DIRECTORY, RECORDINGS

#: GUIDs that the broker made end in the id of the generator that the test gave it, or in the recorded one's.
OUR_CLIENT_ID = b"broker"
#: Connections that were cut while the broker was sending.
CUT = {("official-reconnect", 1)}


def entries(recording: str) -> list[dict[str, Any]]:
    with (DIRECTORY / f"{recording}.jsonl").open() as lines:
        return [json.loads(line) for line in lines]


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


def identities(recording: str) -> Iterator[BrokerResponse]:
    for entry in entries(recording):
        if entry["dir"] == "b2c" and entry.get("type") == EventType.CONTROL:
            try:
                message = decode_event(read_event(bytes.fromhex(entry["hex"])), MessageKind.NEGOTIATION)
            except Exception:  # an answer of another kind
                continue
            assert isinstance(message, BrokerResponse)
            yield message


class RecordedDomains(DomainSource):
    """Built-in domains, with the recorded broker's words for others: they name the broker's folder."""

    def _read(self, name: str) -> NoReturn:
        text = f"Domain file '/etc/local/bmq/domains/{name}.json' doesn't exist"
        raise Refused(StatusCategory.E_UNKNOWN, text, -1)


def legacy_connections(recording: str) -> set[int]:
    return {3} if recording == "json-old" else set()


def replay(recording: str) -> tuple[dict[int, Conversation], dict[int, Conversation]]:
    """Return the outputs of the recorded broker and of ours, by connection."""
    said = list(identities(recording))
    first = said[0].broker_identity
    settings = BrokerSettings(
        process_name=first.process_name,
        pid=first.pid,
        host_name=first.host_name,
        heartbeat_interval_ms=said[0].heartbeat_interval_ms,
        max_missed_heartbeats=said[0].max_missed_heartbeats,
        authentication=Authentication({"user": "secret"}, anonymous=True),
    )
    node = BrokerNode(RecordedDomains(builtin_domains()))
    guids = GuidGenerator(OUR_CLIENT_ID)
    theirs: dict[int, Conversation] = {}
    ours: dict[int, Conversation] = {}
    sessions: dict[int, BrokerSession] = {}
    outputs: dict[int, tuple[BrokerOutput, Framer]] = {}
    legacy = legacy_connections(recording)
    session_ids = iter([m.broker_identity.session_id for m in said])
    negotiated: set[int] = set()
    over: set[int] = set()

    def collect() -> None:
        for number, (output, framer) in outputs.items():
            events, error = framer.feed(b"".join(output.pieces()))
            assert error is None
            for event in events:
                ours[number].add(event.data)

    for entry in entries(recording):
        number = entry["conn"]
        if number not in sessions:
            output = BrokerOutput(settings.high_water, lambda: None)
            outputs[number] = output, Framer()
            sessions[number] = BrokerSession(
                settings, node, output, session_id=0, peer=str(number), now=entry["t"], guids=guids
            )
            theirs[number] = Conversation(legacy=number in legacy)
            ours[number] = Conversation(legacy=number in legacy)
        session = sessions[number]
        if entry.get("eof"):
            if number not in over:
                over.add(number)
                # Who closes the connection is part of the answer.
                assert session.closed is (entry["dir"] == "b2c"), f"connection {number}"
                session.channel_down(entry["t"])
        elif entry["dir"] == "b2c":
            theirs[number].add(bytes.fromhex(entry["hex"]))
        else:
            data = bytes.fromhex(entry["hex"])
            if entry["type"] == EventType.CONTROL and number not in negotiated:
                negotiated.add(number)
                refused = b"E_PYTHON" in data or b'"clientType":"E_UNKNOWN"' in data
                session.session_id = 0 if refused else next(session_ids)
            session.receive(data, entry["t"])
        collect()
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
