# SPDX-License-Identifier: Apache-2.0
"""Coordinators take the steps of traces of ``Crowns.tla``, the specification of the election of a leader.

After each step, the states of candidate and leader, and the requests, posts and confirmations of the
step, are equal. The coordinators are the product's; their broker, queue and event loop are not.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Coroutine, Generator
from types import SimpleNamespace
from typing import Any

import pytest

from bmq._log_limit import LogLimit
from bmq.groups import _coordinator
from bmq.groups._coordinator import Coordinator, encoded
from bmq.groups._protocol import (
    Candidate,
    CandidateInput,
    Crown,
    Leader,
    Member,
    Order,
    Phase,
    Report,
    Request,
)
from tests.groups.model import traces

LEASE = 10.0
TEXT = "bmq_bucket % 1 == 0"
_ASKS = {("CROWNS", "OTHERS"): Request.OPEN, ("OTHERS",): Request.NARROW, (): Request.CLOSE}


class _Pause:
    def __await__(self) -> Generator[None]:
        yield


class _Subscription:
    """The candidate's subscription: a request is answered at a later step."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def receive_nowait(self) -> None:
        """Crowns that have arrived are read in steps of their own."""

    async def configure(self, expression: str, *, priority: int) -> None:
        assert expression == ""
        self._node.sent.append(("lead", (priority - _coordinator._LEADER) // 2))
        await _Pause()


class _Message:
    def __init__(self, node: Node, what: Report | Order | Crown, *, redelivered: bool = False) -> None:
        self.data = encoded(what, TEXT)
        self.guid = uuid.uuid4().hex
        self.redelivered = redelivered
        self._node, self._what = node, what

    def confirm(self) -> None:
        if isinstance(self._what, Crown):
            self._node.sent.append(("confirm", self._what))


class Node(Coordinator):
    """A coordinator whose requests and posts are recorded."""

    def __init__(self, who: str) -> None:
        self._control_uri = "bmq://bmq.test.mem.priority/orders.group"
        self._name = who
        self._text = TEXT
        self._lease = LEASE
        self._lanes = []
        # No time passes, and no task runs.
        self._loop: Any = SimpleNamespace(time=lambda: 0.0, call_later=lambda *_: None)
        self._member = Member(who, 1.0, LEASE)
        self._leader = Leader(1, LEASE)
        self._crown = None
        self._alive = False
        self._silent_at = None
        self._skipped = self._clocks_differ = False
        self._reported_at = 0.0
        self._log = LogLimit(logging.getLogger("bmq.groups"))
        self._candidacy = Candidate(who)
        self._asking = self._ending = self._gathering = self._reporting = self._life = None
        self._early, self._gathered = {}, []
        self._dispatcher: Any = SimpleNamespace(spawn=lambda _: None)
        self._candidate: Any = _Subscription(self)
        self.sent: list[tuple[str, Any]] = []
        self.claiming: Coroutine[Any, Any, None] | None = None

    def _ask(self, ask: Request) -> Any:
        self.sent.append(("set", ask))

    def _post(self, what: Report | Order | Crown, guid: str | None = None) -> None:
        if isinstance(what, Crown):
            self.sent.append(("crown", what))

    def _report(self) -> None: ...

    def _report_soon(self) -> None: ...

    def _reported(self, report: Report) -> None: ...

    def read(self, what: Report | Order | Crown, *, redelivered: bool = False) -> None:
        """Handle a message, up to the end or the first request to the broker."""
        handling = self._handle(_Message(self, what, redelivered=redelivered))  # type: ignore[arg-type]
        try:
            handling.send(None)
        except StopIteration:
            if self._leader.phase is Phase.COLLECTING:
                self._leader.phase = Phase.LEADING  # how long a leader collects is part of Exclusive.tla
        else:
            assert self.claiming is None
            self.claiming = handling

    def raised(self) -> None:
        """The broker has raised the priority of the claimant."""
        assert self.claiming is not None
        with pytest.raises(StopIteration):
            self.claiming.send(None)
        self.claiming = None

    def reconnected(self, who: str) -> None:
        """The next connection begins."""
        self._member.lost(who)
        self._resign()
        self._candidacy = Candidate(who)
        if self.claiming is not None:
            self.claiming.close()
            self.claiming = None


class Replay:
    """The product's coordinators, and the messages between them."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.old: dict[str, Any] = {}
        self.new = state
        self.nodes = {m: Node(_who(m, 0)) for m in range(1, len(state["life"]) + 1)}
        self.reports: dict[str, Report] = {}
        self.crowns: dict[tuple[Any, ...], Crown] = {}
        self.boxes: dict[int, list[tuple[Any, ...]]] = {m: [] for m in self.nodes}
        self.orders = 0

    def step(self, changes: dict[str, Any]) -> str:
        """Take a step, and compare; return its name."""
        self.old, self.new = self.new, self.new | changes
        name, m = changes["step"]
        node = self.nodes[m]
        if name not in ("Deliver", "Arrive", "Join"):
            node.sent = []
            getattr(self, f"_{name.lower()}")(m, node)
            if name not in ("Kill", "Cut"):
                self._compare_sent(m, node)
        for each, other in self.nodes.items():
            if self.new["life"][each - 1] == "up":
                leader = self.new["ldr"][each - 1]
                phase = leader["phase"]
                term = 0 if phase == "NONE" else leader["term"]
                found = other._leader
                assert (found.phase.name, 0 if found.phase is Phase.NONE else found.term) == (phase, term)
                assert other._candidacy.state.name == self.new["st"][each - 1]
        return str(name)

    def _report(self, m: int, node: Node) -> None:
        self.reports[node._member.who] = node._member.report(0.0, stands=node._candidacy.stands)

    def _read(self, m: int, node: Node) -> None:
        message = self.old["net"][m - 1][0]
        if message["k"] == "report":
            node.read(self.reports[_who(*message["who"])], redelivered=message["back"])
        elif message["k"] == "crown":
            self.boxes[m].append(_key(message))
        elif message["k"] == "raised":
            node.raised()
        else:
            node._step(CandidateInput.ANSWERED)

    def _crowned(self, m: int, node: Node) -> None:
        node.read(self.crowns[self.boxes[m].pop(0)])

    def _order(self, m: int, node: Node) -> None:
        self.orders += 1
        node.read(Order(node._member.who, 1, self.orders, node._member.seq, {}))

    def _way(self, m: int, node: Node) -> None:
        node.read(Order(node._member.who, 0, 0, 0, {}))

    def _time(self, m: int, node: Node) -> None:
        node._step(CandidateInput.WAKE)

    def _leave(self, m: int, node: Node) -> None:
        crown = node._leader.left()
        if crown is not None and node._crown is not None:
            node.sent.append(("crown", crown))
            node._crown.confirm()

    def _kill(self, m: int, node: Node) -> None:
        node.reconnected("")

    def _cut(self, m: int, node: Node) -> None:
        self.boxes[m] = []
        node.reconnected(_who(m, self.new["inc"][m - 1]))

    def _compare_sent(self, m: int, node: Node) -> None:
        """The requests, posts of crowns and confirmations are those of the specification."""
        wanted = self.new["up"][m - 1][len(self.old["up"][m - 1]) :]
        wanted = [each for each in wanted if each["k"] not in ("report", "bye")]
        assert [kind for kind, _ in node.sent] == [each["k"] for each in wanted]
        for (kind, found), each in zip(node.sent, wanted, strict=True):
            if kind == "set":
                assert found is _ASKS[tuple(each["s"])]
            elif kind == "lead":
                assert found == each["rank"]
            elif kind == "crown":
                who = _who(*each["who"]) if each["who"] else ""
                named = found.members is not None
                assert (found.who, found.term, named) == (who, each["term"], each["named"])
                self.crowns[_key(each)] = found
            else:
                assert found == self.crowns[_key(each["x"])]


def _who(m: int, number: int) -> str:
    return f"{m}#{number}"


def _key(crown: dict[str, Any]) -> tuple[Any, ...]:
    return (*crown["who"], crown["term"], crown["lim"])


def _replay_all() -> Counter[str]:
    steps: Counter[str] = Counter()
    for trace in traces.read(traces.CROWNS):
        replay = Replay(trace[0])
        taken: list[str] = []
        try:
            for changes in trace[1:]:
                taken.append(" ".join(map(str, changes["step"])))
                steps[replay.step(changes)] += 1
        except AssertionError as error:
            error.add_note(" - ".join(taken))
            raise
        finally:
            for node in replay.nodes.values():
                node.reconnected("")
    return steps


def test_coordinators_take_the_steps_of_the_specification() -> None:
    steps = _replay_all()
    assert steps.total() > 5000
    taken = {"Report", "Read", "Crowned", "Order", "Way", "Time", "Join", "Kill", "Cut", "Leave"}
    taken |= {"Deliver", "Arrive"}
    assert taken == steps.keys()
