# SPDX-License-Identifier: Apache-2.0
"""The floors: encoded events over a bare socket, whose answers are only counted; see ``common.py``.

The GUIDs derive from the job's ``seed``: a second process can encode the confirmations of posted messages in
advance.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

from common import PROPERTIES, WARM, Job, Meter, Result, answer, clock, job, memory, percentiles

from bmq.wire import confirm, put
from bmq.wire.constants import EventType, PutFlags
from bmq.wire.control import (
    ClientIdentity,
    ClientLanguage,
    ClientType,
    CloseQueue,
    Codec,
    ConfigureStream,
    ConsumerInfo,
    ControlMessage,
    Disconnect,
    Expression,
    ExpressionVersion,
    GuidInfo,
    MessageKind,
    OpenQueue,
    QueueFlags,
    QueueHandleParameters,
    StreamParameters,
    Subscription,
)
from bmq.wire.control_event import decode_event, encode_event
from bmq.wire.event import HEADER_SIZE, pack_event_header, read_event
from bmq.wire.properties import encode_properties

PER_EVENT = 500
EVENT_BYTES = 512 * 1024
_LIST_HEADER, _ACK = 4, 24


class Connection:
    """A blocking socket for whole events."""

    def __init__(self, uri: str) -> None:
        address = urlsplit(uri)
        self.socket = socket.create_connection((address.hostname, address.port or 30114), timeout=120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._requests = 0
        identity = ClientIdentity(
            protocol_version=1,
            sdk_version=10000,
            client_type=ClientType.E_TCPCLIENT,
            process_name="benchmark",
            pid=1,
            session_id=1,
            host_name="",
            features="PROTOCOL_ENCODING:JSON;MPS:MESSAGE_PROPERTIES_EX",
            sdk_language=ClientLanguage.E_UNKNOWN,
            # Otherwise brokers generate the GUIDs, as for legacy clients.
            guid_info=GuidInfo(client_id="626D71000001", nano_seconds_from_epoch=0),
        )
        self.socket.sendall(encode_event(identity, Codec.JSON))
        answer = decode_event(self.event(), MessageKind.NEGOTIATION)
        if answer.result.category:
            raise SystemExit(f"refused: {answer.result}")

    def event(self) -> Any:
        while len(self._buffer) < 4 or len(self._buffer) < int.from_bytes(self._buffer[:4], "big"):
            data = self.socket.recv(1 << 20)
            if not data:
                raise SystemExit("the broker closed the connection")
            self._buffer += data
        length = int.from_bytes(self._buffer[:4], "big")
        event, self._buffer = self._buffer[:length], self._buffer[length:]
        return read_event(event)

    def request(self, body: Any, *, wait: bool = True) -> Any:
        self._requests += 1
        self.socket.sendall(encode_event(ControlMessage(r_id=self._requests, body=body), Codec.JSON))
        while wait:
            event = self.event()
            if event.type == EventType.CONTROL:
                return decode_event(event, MessageKind.CONTROL)

    def open(self, uri: str, flags: QueueFlags) -> QueueHandleParameters:
        parameters = QueueHandleParameters(
            uri=uri,
            q_id=0,
            sub_id_info=None,
            flags=int(flags),
            read_count=int(bool(flags & QueueFlags.READ)),
            write_count=int(bool(flags & QueueFlags.WRITE)),
            admin_count=0,
        )
        answer = self.request(OpenQueue(handle_parameters=parameters))
        if type(answer.body).__name__ != "OpenQueueResponse":
            raise SystemExit(f"cannot open {uri}: {answer.body}")
        return parameters

    def configure(self, subscribed: bool, *, wait: bool = True) -> None:
        consumer = ConsumerInfo(
            max_unconfirmed_messages=2**31 - 1,
            max_unconfirmed_bytes=2**62,
            consumer_priority=0,
            consumer_priority_count=1,
        )
        nothing = Expression(version=ExpressionVersion.E_UNDEFINED, text="")
        subscription = Subscription(s_id=1, expression=nothing, consumers=(consumer,))
        stream = StreamParameters(app_id="__default", subscriptions=(subscription,) if subscribed else ())
        self.request(ConfigureStream(q_id=0, stream_parameters=stream), wait=wait)

    def bodies(self, kind: int) -> Any:
        """Yield the length of each arriving event of a kind; only headers are read."""
        held = self._buffer
        while True:
            offset, end = 0, len(held)
            while end - offset >= HEADER_SIZE:
                length = int.from_bytes(held[offset : offset + 4], "big")
                if end - offset < length:
                    break
                if held[offset + 4] & 0x3F == kind:
                    yield held, offset, length
                offset += length
            data = self.socket.recv(1 << 20)
            if not data:
                raise SystemExit("the broker closed the connection")
            held = held[offset:] + data

    def close(self, parameters: QueueHandleParameters) -> None:
        self.request(CloseQueue(handle_parameters=parameters, is_final=True))
        self.request(Disconnect())
        self.socket.close()


def guids(seed: str, count: int) -> list[bytes]:
    tail = hashlib.sha256(seed.encode()).digest()[:12]
    return [i.to_bytes(4, "big") + tail for i in range(1, count + 1)]


def put_events(job: Job) -> list[bytes]:
    payload, flags, schema = bytes(job["size"]), PutFlags.ACK_REQUESTED, 0
    if job["properties"]:
        payload = encode_properties(PROPERTIES, new=True) + payload
        flags, schema = flags | PutFlags.MESSAGE_PROPERTIES, 1
    messages = [put.encode_put(0, guid, payload, flags, schema) for guid in guids(job["seed"], job["count"])]
    per_event = max(1, min(PER_EVENT, EVENT_BYTES // len(messages[0])))
    events = []
    for start in range(0, len(messages), per_event):
        body = b"".join(messages[start : start + per_event])
        events.append(pack_event_header(HEADER_SIZE + len(body), EventType.PUT) + body)
    return events


def post(job: Job) -> Result:
    connection = Connection(job["broker"])
    parameters = connection.open(job["queue"], QueueFlags.WRITE)
    chunks = [b"".join(group) for group in _groups(put_events(job))]
    meter = Meter()
    writer = threading.Thread(target=lambda: [connection.socket.sendall(chunk) for chunk in chunks])
    writer.start()
    left = job["count"]
    for held, offset, length in connection.bodies(EventType.ACK):
        acks = (length - HEADER_SIZE - _LIST_HEADER) // _ACK
        if job["count"] == left and held[offset + HEADER_SIZE + _LIST_HEADER] & 0xF0:
            raise SystemExit("the broker does not accept the messages")
        left -= acks
        if left <= 0:
            break
    result = meter.result(job["count"])
    writer.join()
    connection._buffer = b""
    connection.close(parameters)
    return result


def _groups(events: list[bytes]) -> list[list[bytes]]:
    """Split events into groups, one for each write."""
    each = max(1, EVENT_BYTES // len(events[0]))
    return [events[start : start + each] for start in range(0, len(events), each)]


def consume(job: Job) -> Result:
    """Receive and confirm the messages of ``post`` with the same seed."""
    count = job["count"]
    confirms = [confirm.encode_confirm(0, guid, 0) for guid in guids(job["seed"], count)]
    connection = Connection(job["broker"])
    parameters = connection.open(job["queue"], QueueFlags.READ)
    meter = Meter()
    connection.configure(True, wait=False)
    done = each = 0
    for held, offset, length in connection.bodies(EventType.PUSH):
        if not each:
            first = offset + HEADER_SIZE
            each = (int.from_bytes(held[first : first + 4], "big") & 0x0FFFFFFF) * 4
        messages = (length - HEADER_SIZE) // each
        connection.socket.sendall(confirm.pack_confirms(confirms[done : done + messages]))
        done += messages
        if done >= count:
            break
    result = meter.result(count)
    connection._buffer = b""
    connection.configure(False)
    connection.close(parameters)
    return result


def ack(job: Job) -> Result:
    """Send one encoded event at a time, without threads or an event loop: the floor of every client."""
    connection = Connection(job["broker"])
    parameters = connection.open(job["queue"], QueueFlags.WRITE)
    payload, samples = bytes(job["size"]), []
    connection.socket.setblocking(not job.get("awake"))
    for guid in guids(job["seed"], job["count"] + WARM):
        body = put.encode_put(0, guid, payload)
        event = pack_event_header(HEADER_SIZE + len(body), EventType.PUT) + body
        begin = clock()
        connection.socket.sendall(event)
        while True:
            try:
                connection.socket.recv(1 << 16)
                break
            except BlockingIOError:
                pass
        samples.append(clock() - begin)
    connection.socket.setblocking(True)
    connection.close(parameters)
    return percentiles(samples[WARM:])


def hold(job: Job) -> Result:
    """Make what every client must hold of a message: the bytes, the GUID, a record and a place in a list."""
    before, size, count = memory(), job["size"], job["count"]
    held = [Record(number.to_bytes(16, "big"), bytes(size)) for number in range(count)]
    return {"bytes": (memory() - before) / len(held)}


class Record:
    """A message handed out: what its confirmation needs, its consumer, and the values read so far."""

    __slots__ = ("arrival", "confirmed", "consumer", "data", "flags", "guid", "properties", "sub_ids")

    def __init__(self, guid: bytes, data: bytes) -> None:
        self.guid, self.data = guid, data
        self.arrival = self.consumer = self.confirmed = self.properties = None
        self.flags = self.sub_ids = 1


if __name__ == "__main__":
    job = job()
    answer(globals()[job["case"]](job))
