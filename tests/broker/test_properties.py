# SPDX-License-Identifier: Apache-2.0
"""Invariants under arbitrary input: bytes outside the protocol, and any order of events."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bmq.broker._session import BrokerState
from tests.broker.core import FANOUT, PRIORITY, Core, CoreClient, domain, subscription
from tests.hostile import damaged
from tests.transcripts import RECORDINGS, recorded


@given(recording=st.sampled_from(RECORDINGS), data=st.data(), size=st.sampled_from([1, 13, 100, 5000]))
def test_no_input_raises_or_hangs_and_memory_stays_bounded(
    recording: str, data: st.DataObject, size: int
) -> None:
    """Recorded clients, one of whose events is damaged; in pieces of any size."""
    events = recorded(recording=recording, direction="c2b")[:50]
    at = data.draw(st.integers(0, len(events)))
    pieces = [event.data[:20_000] for event in events]
    stream = b"".join([*pieces[:at], data.draw(damaged(events))[:20_000], *pieces[at:]])
    core = Core()
    peer = core.connect()
    for start in range(0, len(stream), size):
        peer.send(stream[start : start + size])
        peer.output.pieces()
    assert peer.session._framer.buffered <= len(stream)
    peer.session.channel_down(core.now)
    assert peer.session.state is BrokerState.CLOSED
    assert not core.node.clients
    for queue in core.node.queues.values():
        assert not queue.handles
        assert len(queue.store) == sum(1 for _ in queue.store)


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
        self.consumers: list[tuple[CoreClient, str, dict[bytes, None]]] = []
        self.waiting: dict[str, set[bytes]] = {"": set(), "foo": set(), "bar": set(), "baz": set()}
        self.senders = self.core.producer(PRIORITY), self.core.producer(FANOUT)
        self.s_ids = itertools.count(100)

    def uri(self, app: str) -> str:
        return f"{FANOUT}?id={app}" if app else PRIORITY

    @rule(count=st.integers(1, 6), x=st.integers(0, 2), fanout=st.booleans())
    def post(self, count: int, x: int, fanout: bool) -> None:
        sender = self.senders[fanout]
        guids = sender.put(*[b"m"] * count, properties={"x": x})
        for app in ("foo", "bar", "baz") if fanout else ("",):
            self.waiting[app].update(guids)
        assert sender.statuses == [0] * count
        self.look()

    @precondition(lambda self: len(self.consumers) < 6)
    @rule(
        app=st.sampled_from(["", "foo", "bar", "baz"]),
        limit=st.integers(1, 5),
        priority=st.integers(0, 2),
        text=st.sampled_from(["", "x == 0", "x >= 1"]),
    )
    def arrive(self, app: str, limit: int, priority: int, text: str) -> None:
        peer = self.core.consumer(self.uri(app), text=text, messages=limit, priority=priority)
        self.consumers.append((peer, app, {}))
        self.look()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), text=st.sampled_from(["", "x == 0", None]), limit=st.integers(1, 5))
    def reconfigure(self, data: st.DataObject, text: str | None, limit: int) -> None:
        peer, app, _ = data.draw(st.sampled_from(self.consumers))
        wanted = [] if text is None else [subscription(next(self.s_ids), text, messages=limit)]
        peer.configure(*wanted, app_id=app or "__default")
        self.look()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), count=st.integers(1, 5))
    def confirm(self, data: st.DataObject, count: int) -> None:
        peer, app, held = data.draw(st.sampled_from(self.consumers))
        guids = list(held)[:count]
        for guid in guids:
            del held[guid]
        self.waiting[app].difference_update(guids)
        peer.confirm(*guids, sub_id=1 if app else 0)
        self.look()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), graceful=st.booleans())
    def go(self, data: st.DataObject, graceful: bool) -> None:
        leaving = data.draw(st.sampled_from(self.consumers))
        self.consumers.remove(leaving)
        if graceful:
            leaving[0].disconnect()
        else:
            leaving[0].crash()
        self.look()

    def look(self) -> None:
        """Take what was pushed."""
        for peer, app, held in self.consumers:
            others = [each for _, own, each in self.consumers if own == app]
            for push in peer.pushes:
                assert push.guid in self.waiting[app], "confirmed messages do not come again"
                assert not any(push.guid in each for each in others), "nobody has it twice, or shares it"
                held[push.guid] = None

    @invariant()
    def the_store_holds_what_somebody_waits_for(self) -> None:
        for uri, apps in ((PRIORITY, [""]), (FANOUT, ["foo", "bar", "baz"])):
            store = self.core.node.queues[uri].store
            stored = list(store)
            assert {message.guid for message in stored} == set().union(*(self.waiting[app] for app in apps))
            assert len(store) == len(stored)
            assert [message.previous for message in stored] == [None, *stored][: len(stored)]
            assert store.last is (stored[-1] if stored else None)

    def teardown(self) -> None:
        """One unlimited consumer for each application receives all remaining messages."""
        while self.consumers:
            self.consumers.pop()[0].disconnect()
        for app, waiting in self.waiting.items():
            peer = self.core.consumer(self.uri(app), messages=10**6)
            guids = [push.guid for push in peer.pushes]
            assert len(guids) == len(waiting)
            assert set(guids) == waiting
            peer.confirm(*guids, sub_id=1 if app else 0)
        assert not any(len(queue.store) for queue in self.core.node.queues.values())


TestQueueing = Queueing.TestCase
