# SPDX-License-Identifier: Apache-2.0
"""Invariants under arbitrary input: bytes outside the protocol, and any order of events."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from bmq.broker._session import BrokerState
from bmq.broker._storage import MessageRecord
from tests.broker.core import FANOUT, PRIORITY, Core, CoreClient, domain, subscription
from tests.transcripts import RECORDINGS, recorded

_CLIENT_BYTES = [
    b"".join(event.data for event in recorded(recording=name, direction="c2b")) for name in RECORDINGS
]


@given(data=st.data())
def test_no_input_raises_or_hangs_and_memory_stays_bounded(data: st.DataObject) -> None:
    """Recorded clients with bytes changed, cut out, doubled; in pieces of any size."""
    stream = bytearray(data.draw(st.sampled_from(_CLIENT_BYTES))[:20_000])
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(stream) - 1))
        match data.draw(st.sampled_from(["change", "cut", "double", "insert"])):
            case "change":
                stream[at] = data.draw(st.integers(0, 255))
            case "cut":
                del stream[at : at + data.draw(st.integers(1, 40))]
            case "double":
                stream[at:at] = stream[at : at + data.draw(st.integers(1, 40))]
            case _:
                stream[at:at] = data.draw(st.binary(max_size=40))
        if not stream:
            return
    core = Core()
    peer = core.connect()
    size = data.draw(st.sampled_from([1, 13, 100, 5000]))
    for start in range(0, len(stream), size):
        peer.send(bytes(stream[start : start + size]))
        peer.output.pieces()
    assert peer.session._framer.buffered <= len(stream)
    peer.session.channel_down(core.now)
    assert peer.session.state is BrokerState.CLOSED
    assert not core.node.clients
    for queue in core.node.queues.values():
        assert not queue.handles
        assert len(queue.store) == sum(1 for _ in queue.store)


@given(data=st.data())
def test_arbitrary_bytes_do_not_crash_the_broker(data: st.DataObject) -> None:
    core = Core()
    fresh, serving = core.connect(), core.client()
    serving.open(PRIORITY, read=True, write=True)
    for peer in (fresh, serving):
        for _ in range(3):
            peer.send(data.draw(st.binary(max_size=100)))
        peer.session.channel_down(core.now)
    assert not core.node.clients


class Queueing(RuleBasedStateMachine):
    """Producers, consumers with limits and expressions, crashes, purges, time.

    Every message posted is delivered, in the end, to each application exactly once as long as no client
    goes; nothing that was confirmed comes again; nothing is left behind.
    """

    def __init__(self) -> None:
        super().__init__()
        self.core = Core(
            domain("bmq.test.mem.priority", message_ttl=10**6),
            domain("bmq.test.mem.fanout", message_ttl=10**6),
        )
        self.random = random.Random(1)
        self.consumers: list[tuple[CoreClient, str, dict[bytes, None]]] = []
        self.posted: dict[str, set[bytes]] = {"": set(), "foo": set(), "bar": set(), "baz": set()}
        self.confirmed: dict[str, set[bytes]] = {app: set() for app in self.posted}

    @initialize()
    def begin(self) -> None:
        self.sender = self.core.client()
        self.sender.open(PRIORITY, 0, write=True)
        self.sender.open(FANOUT, 1, write=True)

    def uri(self, app: str) -> str:
        return f"{FANOUT}?id={app}" if app else PRIORITY

    @rule(count=st.integers(1, 6), x=st.integers(0, 2), fanout=st.booleans())
    def post(self, count: int, x: int, fanout: bool) -> None:
        guids = self.sender.put(*[b"m"] * count, q_id=int(fanout), properties={"x": x})
        for app in ("foo", "bar", "baz") if fanout else ("",):
            self.posted[app].update(guids)
        assert [ack.status for ack in self.sender.acks] == [0] * count
        self.look()

    @precondition(lambda self: len(self.consumers) < 6)
    @rule(
        app=st.sampled_from(["", "foo", "bar", "baz"]),
        limit=st.integers(1, 5),
        priority=st.integers(0, 2),
        text=st.sampled_from(["", "x == 0", "x >= 1"]),
    )
    def arrive(self, app: str, limit: int, priority: int, text: str) -> None:
        peer = self.core.client()
        peer.open(self.uri(app), read=True)
        peer.configure(subscription(1, text, messages=limit, priority=priority), app_id=app or "__default")
        self.consumers.append((peer, app, {}))
        self.look()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), text=st.sampled_from(["", "x == 0", None]), limit=st.integers(1, 5))
    def reconfigure(self, data: st.DataObject, text: str | None, limit: int) -> None:
        peer, app, _ = data.draw(st.sampled_from(self.consumers))
        wanted = [] if text is None else [subscription(self.random.getrandbits(20), text, messages=limit)]
        peer.configure(*wanted, app_id=app or "__default")
        self.look()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), count=st.integers(1, 5))
    def confirm(self, data: st.DataObject, count: int) -> None:
        peer, app, held = data.draw(st.sampled_from(self.consumers))
        guids = list(held)[:count]
        for guid in guids:
            del held[guid]
        self.confirmed[app].update(guids)
        peer.confirm(*guids, sub_id=1 if app else 0)
        self.look()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), graceful=st.booleans())
    def go(self, data: st.DataObject, graceful: bool) -> None:
        leaving = data.draw(st.sampled_from(self.consumers))
        self.consumers.remove(leaving)
        peer = leaving[0]
        if graceful:
            peer.disconnect()
        else:
            peer.crash()
        self.look()

    def look(self) -> None:
        """Take what was pushed."""
        for peer, app, held in self.consumers:
            for push in peer.pushes:
                assert push.guid in self.posted[app]
                assert push.guid not in self.confirmed[app], "confirmed messages do not come again"
                assert push.guid not in held, "nobody has it twice"
                held[push.guid] = None

    @invariant()
    def nobody_shares_a_message(self) -> None:
        for app in self.posted:
            seen: set[bytes] = set()
            for _, own, held in self.consumers:
                if own == app:
                    assert not seen & held.keys()
                    seen |= held.keys()

    @invariant()
    def the_store_holds_what_somebody_waits_for(self) -> None:
        for uri, apps in ((PRIORITY, [""]), (FANOUT, ["foo", "bar", "baz"])):
            queue = self.core.node.queues[uri]
            waiting = set().union(*(self.posted[app] - self.confirmed[app] for app in apps))
            assert {message.guid for message in queue.store} == waiting
            assert len(queue.store) == len(waiting)
            last: MessageRecord | None = None
            for message in queue.store:
                assert message.previous is last
                last = message
            assert queue.store.last is last

    def teardown(self) -> None:
        """One unlimited consumer for each application receives all remaining messages."""
        while self.consumers:
            self.consumers.pop()[0].disconnect()
        for app in self.posted:
            peer = self.core.client()
            peer.consume(self.uri(app), messages=10**6)
            guids = [push.guid for push in peer.pushes]
            assert len(guids) == len(set(guids))
            assert set(guids) == self.posted[app] - self.confirmed[app]
            peer.confirm(*guids, sub_id=1 if app else 0)
        assert not any(len(queue.store) for queue in self.core.node.queues.values())


TestQueueing = Queueing.TestCase
