# SPDX-License-Identifier: Apache-2.0
"""Hostile clients can make a broker hold and do only a bounded multiple of their input."""

from __future__ import annotations

import functools
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bmq._json import orjson
from bmq.broker._node import Bounds
from bmq.errors import StatusCategory
from bmq.wire.constants import Compression, EventType, PutFlags
from bmq.wire.control import (
    AdminCommand,
    ClientType,
    Codec,
    ConfigureStreamResponse,
    ControlMessage,
    Disconnect,
    OpenQueueResponse,
    Status,
)
from bmq.wire.control_event import encode_event
from bmq.wire.event import pack_event_header
from bmq.wire.message import join_application_data
from bmq.wire.properties import encode_properties
from bmq.wire.put import encode_put
from tests.broker.core import FANOUT, PRIORITY, Core, CoreClient, subscription
from tests.fakes.client import open_queue
from tests.sweeps import sweep

MIB = 2**20
SMALL = "bmq://bmq.test.small.priority/q"
AREA = encode_properties({"x": 1}, new=False)
FLAGS = PutFlags.ACK_REQUESTED | PutFlags.MESSAGE_PROPERTIES


@functools.cache
def bomb() -> bytes:
    """Application data of a few kilobytes that become 64 MiB: half a second of work."""
    return zlib.compress(AREA + bytes(64 * MIB - len(AREA)), 9)


def bombs(peer: CoreClient, count: int, *, q_id: int = 0) -> int:
    """Post messages of an old client that are almost nothing and become large; return the bytes sent."""
    puts = [encode_put(q_id, peer.guids.next(0), bomb(), FLAGS, 0, Compression.ZLIB) for _ in range(count)]
    peer.put_encoded(*puts)
    return sum(map(len, puts))


@pytest.fixture
def inflated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each decompression made."""
    sizes: list[int] = []
    original = zlib.decompressobj

    class Counting:
        def __init__(self) -> None:
            self._stream = original()

        def decompress(self, data: bytes, limit: int) -> bytes:
            plain = self._stream.decompress(data, limit)
            sizes.append(len(plain))
            return plain

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    return sizes


def test_refused_posts_are_not_decompressed(inflated: list[int]) -> None:
    """To a queue that is not open, open for reading, or full."""
    core = Core()
    sender, reader = core.producer(SMALL), core.client()
    sender.put(b"x" * 5000)
    reader.open(SMALL, read=True)
    assert sender.statuses == [0]
    for peer, q_id, status in ((sender, 5, 5), (reader, 0, 5), (sender, 0, 2)):
        bombs(peer, 3, q_id=q_id)
        assert peer.statuses == [status] * 3
    assert not inflated


def test_one_event_decompresses_no_more_than_its_quota_takes(inflated: list[int]) -> None:
    peer = Core().producer(SMALL)
    bombs(peer, 30)
    assert peer.statuses == [0] + [2] * 29, "one message may exceed the quota"
    assert sum(inflated) <= 65 * MIB


def test_decompressed_bytes_are_a_bounded_multiple_of_received_bytes(inflated: list[int]) -> None:
    core = Core()
    core.advance(0)
    peers = [core.producer() for _ in range(3)]
    sent = sum(bombs(peer, 10) for peer in peers)
    assert sum(inflated) <= 64 * MIB + 32 * sent, "all clients together"
    statuses = [status for peer in peers for status in peer.statuses]
    assert statuses[0] == 0
    assert set(statuses[2:]) == {2}, "refused as by a quota: to be tried again later"
    assert core.stored() < 3
    core.advance(2)
    bombs(peers[0], 1)
    assert peers[0].statuses == [0], "the reserve is full again"


def test_usual_compression_is_never_refused() -> None:
    """Payloads compressed to a tenth, hundreds of megabytes in total."""
    core = Core()
    sender = core.producer()
    payload = b"".join(b"%06d and the same text again and again\n" % n for n in range(100_000))
    data, compression = join_application_data(payload, AREA, new=False, compression=Compression.ZLIB)
    for _ in range(100):
        sender.put_encoded(encode_put(0, sender.guids.next(0), data, FLAGS, 0, compression))
    assert set(sender.statuses) == {0}
    message = core.node.queues[PRIORITY].store.first
    assert message is not None
    assert message.compression == Compression.NONE
    assert message.size > len(payload)


@pytest.mark.parametrize("size", [16 * MIB, 60 * MIB])
@pytest.mark.parametrize("new", [False, True])
def test_large_compressed_messages_arrive(size: int, new: bool) -> None:
    core = Core()
    sender, reader, old = core.producer(), core.connect(high_water=10**9), core.connect(high_water=10**9)
    reader.negotiate()
    old.negotiate("PROTOCOL_ENCODING:JSON")
    reader.consume(PRIORITY)
    old.consume(f"{PRIORITY}2", 1)
    sender.open(f"{PRIORITY}2", 1, write=True)
    core.advance(0)
    area = encode_properties({"x": 1}, new=new)
    data, used = join_application_data(bytes(size), area, new=new, compression=Compression.ZLIB)
    assert used == Compression.ZLIB
    for _ in range(2):
        for q_id, peer in enumerate((reader, old)):
            core.advance(1)
            guid = sender.guids.next(0)
            sender.put_encoded(encode_put(q_id, guid, data, FLAGS, int(new), used))
            assert sender.statuses == [0]
            assert [len(payload) for payload in peer.payloads] == [size]
            peer.confirm(guid, q_id=q_id)


@sweep("size", [65_537, MIB, 68 * MIB, 2**31 - 1])
def test_unidentified_clients_may_send_a_few_kilobytes(size: int) -> None:
    peer = Core().connect()
    peer.send(pack_event_header(size, EventType.CONTROL, 0x20))
    assert peer.session.closed
    peer = Core().connect()
    peer.send(pack_event_header(65_536, EventType.CONTROL, 0x20) + b"{" * 1000)
    assert not peer.session.closed
    assert peer.session._framer.buffered < 70_000


def test_only_messages_may_be_large() -> None:
    for size, closed in ((2 * MIB, False), (2 * MIB + 4, True)):
        peer = Core().client()
        header = pack_event_header(size, EventType.CONTROL, 0x20)
        peer.send(header[:4])
        peer.send(header[4:])
        assert peer.session.closed is closed
    for kind in (EventType.PUT, EventType.CONFIRM):
        peer = Core().client()
        peer.send(pack_event_header(68 * MIB, kind))
        assert not peer.session.closed


def test_a_connection_has_a_limited_number_of_queues() -> None:
    core = Core(bounds=Bounds(queues_per_connection=3))
    peer = core.client()
    for q_id, uri in enumerate([PRIORITY, f"{FANOUT}?id=foo", f"{PRIORITY}2"]):
        assert isinstance(peer.open(uri, q_id, read=True), OpenQueueResponse)
    refusal = peer.open(f"{PRIORITY}3", 3, read=True)
    assert isinstance(refusal, Status)
    assert refusal.category is StatusCategory.E_REFUSED
    assert "3 queues" in refusal.message
    assert f"{PRIORITY}3" not in core.node.queues
    another_app = peer.open(f"{FANOUT}?id=bar", 1, read=True, sub_id=7)
    assert isinstance(another_app, Status)
    assert isinstance(peer.open(PRIORITY, 0, write=True), OpenQueueResponse), "one it has already"
    peer.close(f"{PRIORITY}2", 2, read=True)
    assert isinstance(peer.open(f"{PRIORITY}3", 3, read=True), OpenQueueResponse)


def test_the_broker_has_a_limited_number_of_queues() -> None:
    core = Core(bounds=Bounds(queues=2))
    core.producer(f"{PRIORITY}1")
    core.producer(f"{PRIORITY}2")
    refusal = core.client().open(f"{FANOUT}?id=foo", read=True)
    text = "maximum number of queues reached"
    assert refusal == Status(category=StatusCategory.E_REFUSED, code=-205, message=text)
    core.producer(f"{PRIORITY}1")


def test_unused_abandoned_queues_are_forgotten_first() -> None:
    core = Core(bounds=Bounds(idle_queues=3))
    peer = core.client()

    def pass_by(*numbers: int, posts: bool) -> None:
        for number in numbers:
            peer.open(f"{PRIORITY}{number}", number, write=True)
            if posts:
                peer.put(b"m", q_id=number)
            peer.close(f"{PRIORITY}{number}", number, write=True)

    def known() -> str:
        return " ".join(uri.removeprefix(PRIORITY) for uri in core.node.queues)

    pass_by(1, 2, posts=True)
    pass_by(3, 4, 5, 6, 7, posts=False)
    assert known() == "1 2 5 6 7", "the queues with messages do not count"
    core.advance(302)
    assert known() == "1 2 7", "they are empty now"
    peer.open(f"{PRIORITY}1", 1, write=True)
    pass_by(20, 21, 22, 23, posts=True)
    core.advance(302)
    assert known() == "1 21 22 23", "one is open"


def test_a_consumer_has_a_limited_number_of_subscriptions() -> None:
    core = Core(bounds=Bounds(subscriptions=5))
    reader = core.client()
    reader.open(PRIORITY, read=True)
    wanted = [subscription(number, f"x == {number}") for number in range(1, 7)]
    shared = [msgspec.structs.replace(each, consumers=each.consumers * 3) for each in wanted[:2]]
    assert isinstance(reader.configure(*wanted[:5]), ConfigureStreamResponse)
    for many in (wanted, shared):
        refusal = reader.configure(*many)
        assert isinstance(refusal, Status)
        assert refusal.category is StatusCategory.E_REFUSED
        assert "6 subscriptions" in refusal.message
        assert "5" in refusal.message
    core.producer().put(b"m", properties={"x": 5})
    assert reader.payloads == [b"m"], "what was configured before stays"


@sweep(
    "words, count",
    [
        *(("0 10", 10), ("20 UNLIMITED", 5), ("-5 10", 5), ("15 -10", 10), ("30 5", 0), (f"{2**62} 1", 0)),
        ("0 11", None),
    ],
)
def test_messages_are_listed_up_to_a_limit(words: str, count: int | None) -> None:
    core = Core(bounds=Bounds(listed=10))
    core.producer().put(*(b"%d" % n for n in range(25)))
    command = f"ENCODING JSON_COMPACT DOMAINS DOMAIN bmq.test.mem.priority QUEUE q LIST {words}"
    answer = orjson.loads(core.node.admin(command, core.now))
    if count is None:
        assert "11 messages exceed this broker's limit of 10" in answer["error"]["message"]
        return
    assert len(answer["queueContents"]["messages"]) == count
    assert answer["queueContents"]["totalQueueMessages"] == 25


def test_other_clients_are_served_between_two_admin_commands() -> None:
    core = Core()
    admin = core.connect()
    admin.negotiate(client_type=ClientType.E_TCPADMIN)
    request = ControlMessage(r_id=1, body=AdminCommand(command="HELP"))
    admin.session.receive(encode_event(request, Codec.JSON) * 5, core.now)
    for left in range(4, -1, -1):
        assert len(admin.others) == 1
        assert admin.session.waiting is (left > 0)
        admin.session.resume(core.now)


def test_other_clients_are_served_between_a_thousand_ordered_requests() -> None:
    core = Core()
    peer = core.client()
    requests = [
        ControlMessage(r_id=q_id, body=open_queue(f"{PRIORITY}{q_id}", q_id, write=True))
        for q_id in range(1, 1001)
    ]
    opens = b"".join(encode_event(request, Codec.JSON) for request in requests)
    put = encode_put(1000, peer.guids.next(0), b"m", flags=PutFlags.ACK_REQUESTED)
    goodbye = encode_event(ControlMessage(r_id=1001, body=Disconnect()), Codec.JSON)
    peer.session.receive(opens + pack_event_header(8 + len(put), EventType.PUT) + put + goodbye, core.now)
    assert 0 < len(core.node.queues) < 500
    while peer.session.waiting:
        peer.session.resume(core.now)
    assert len(core.node.queues) == 1000
    assert peer.statuses == [0]
    assert len(peer.others) == 1001


@pytest.mark.parametrize("words", ["a b ", "HELP "])
def test_an_oversized_admin_command_is_refused(words: str) -> None:
    core = Core()
    answer = core.node.admin(words * MIB, core.now)
    assert answer.startswith("Unable to decode command")
    assert len(answer) < 200


@sweep(
    "name",
    [
        *("../secret", "../../outside", "./../secret", "..\\secret", "\0", "x/../../secret"),
        *("leading", "{}/secret"),
    ],
)
def test_no_file_outside_the_directory_is_read(tmp_path: Path, name: str) -> None:
    core = Core()
    core.source.configured.clear()
    core.source.directory = directory = tmp_path / "etc"
    (directory / "domains").mkdir(parents=True, exist_ok=True)
    secret = {"redirect": "secret-target", "definition": {"parameters": "secret"}}
    for file in (tmp_path / "outside.json", directory / "secret.json"):
        file.write_bytes(orjson.dumps(secret))
    (directory / "domains" / "leading.json").write_bytes(orjson.dumps({"redirect": "../secret"}))
    for command in ("DOMAINS DOMAIN {} INFOS", "DOMAINS RECONFIGURE {}"):
        for encoding in ("", "ENCODING JSON_COMPACT "):
            answer = core.node.admin(encoding + command.format(name.format(directory)), core.now)
            assert "doesn't exist" in answer
            assert "secret-target" not in answer
            assert "parameters" not in answer


def test_client_violations_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    core = Core()
    peer = core.client()
    peer.send((pack_event_header(12, EventType.CONTROL, 0x20) + b"\0\0\0\4") * 150)
    peer.send((pack_event_header(12, EventType.PUT) + b"\0\0\0\4") * 150)
    assert 2 <= len(caplog.records) <= 25
    assert "more like this are left out" in caplog.messages[-1]
    assert not peer.session.closed
    caplog.clear()
    for number in range(150):
        assert isinstance(peer.open(f"{FANOUT}?id=app{number}", number, read=True), OpenQueueResponse)
    assert 2 <= len(caplog.records) <= 25
    assert "more like this are left out" in caplog.messages[-1]
    peer.crash()
    assert len(core.node.queues[FANOUT].apps) == 3, "and leave nothing behind"


def searching(count: int, messages: int = 1000) -> tuple[Core, CoreClient, list[None]]:
    """Make a consumer with many expressions search for its messages among many others."""
    core = Core()
    turns: list[None] = []
    core.node.postpone = lambda: turns.append(None)
    sender, reader = core.producer(), core.consumer(text="x == -1")
    for first in range(0, count, 100):
        sender.put(*(b"%d" % n for n in range(first, first + 99)), properties={"x": -5})
        sender.put(b"%d" % (first + 99), properties={"x": 7})
    while turns:
        turns.clear()
        core.node.go_on(core.now)
    # Plain equalities would be one lookup.
    wanted = [subscription(n, f"!(x != {n})", messages=messages) for n in range(1, 501)]
    assert isinstance(reader.configure(*wanted), ConfigureStreamResponse)
    return core, reader, turns


def test_other_clients_are_served_during_the_search_of_a_backlog() -> None:
    core, reader, turns = searching(2000)
    other, watcher = core.producer(f"{PRIORITY}2"), core.consumer(f"{PRIORITY}2", text="x == 1")
    found = list(reader.payloads)
    rounds = 0
    while turns:
        assert len(turns) == 1, "one at a time"
        turns.clear()
        began = core.node.effort
        core.node.go_on(core.now)
        assert core.node.effort - began < 60_000
        other.put(b"m", properties={"x": 1})
        assert (other.statuses, watcher.payloads) == ([0], [b"m"])
        found += reader.payloads
        rounds += 1
    assert rounds > 10
    assert found == [b"%d" % n for n in range(99, 2000, 100)]


def test_new_messages_wait_while_a_backlog_is_searched() -> None:
    core, reader, turns = searching(1000)
    core.producer().put(b"new", properties={"x": 7})
    assert b"new" not in reader.payloads
    late = core.consumer(text="x == -5")
    reader.crash()
    reader = core.consumer(text="x == 7")
    while turns:
        turns.clear()
        core.node.go_on(core.now)
    expected = [b"%d" % n for n in range(99, 1000, 100)]
    assert reader.payloads == [*expected, b"new"]
    assert late.payloads == [b"%d" % n for n in range(1000) if n % 100 != 99]


def test_new_messages_for_many_expressions_are_delivered_in_several_turns() -> None:
    core, reader, turns = searching(0)
    core.producer().put(*[b"m"] * 300, properties={"x": 7})
    assert 0 < len(reader.pushes) < 300
    while turns:
        turns.clear()
        core.node.go_on(core.now)
    assert core.node.queues[PRIORITY].counts.pushed == 300


def test_a_confirmation_does_not_hasten_a_paused_search() -> None:
    core, reader, _ = searching(1000, messages=1)
    core.node.go_on(core.now)
    (first,) = reader.pushes
    core.producer(f"{PRIORITY}2").put(b"m")
    began = core.node.effort
    reader.confirm(first.guid)
    assert core.node.effort == began
