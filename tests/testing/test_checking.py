# SPDX-License-Identifier: Apache-2.0
"""Each rule of the checker fails a history that breaks it, and passes a similar correct one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bmq
from bmq.conventions import derived_guid
from bmq.testing import BrokenPromise, History, check, examine
from bmq.testing._checker import DEFAULT_RULES, RULES
from tests.sweeps import sweep

QUEUE = "bmq://d/orders"
DEAD = "bmq://d/orders.dead"


class Scene:
    """Records events of the processes p (producer), a and b (consumers); the event's number is its time."""

    @staticmethod
    def of(story: str) -> Scene:
        """Return the scene of a story: calls with their arguments, separated by semicolons."""
        scene = Scene()
        for step in story.split("; "):
            verb, *words = step.split()
            fields = dict(word.split("=") for word in words if "=" in word)
            given = [NAMES.get(word, word) for word in words if "=" not in word]
            getattr(scene, verb)(*given, **{name: _value(name, text) for name, text in fields.items()})
        return scene

    def __init__(self) -> None:
        self.now = 0.0
        self.history = History(clock=self._tick)

    def _tick(self) -> float:
        self.now += 1
        return self.now

    def event(self, process: str, op: str, kind: Any, **fields: Any) -> None:
        self.history.record(process, op, kind, **fields)

    def post(self, message: str, by: str = "p", queue: str = QUEUE, **fields: Any) -> None:
        self.event(by, "post", "invoke", message=message, queue=queue, **fields)

    def ack(self, message: str, by: str = "p", queue: str = QUEUE) -> None:
        self.event(by, "post", "ok", message=message, queue=queue)

    def posted(self, *messages: str, queue: str = QUEUE, by: str = "p", **fields: Any) -> None:
        for message in messages:
            self.post(message, by, queue, **fields)
            self.ack(message, by, queue)

    def refuse(self, message: str, kind: str = "fail", status: str = "LIMIT_MESSAGES") -> None:
        self.event("p", "post", kind, message=message, queue=QUEUE, status=status)

    def deliver(self, message: str, to: str = "a", queue: str = QUEUE, **fields: Any) -> None:
        fields = {"connection": "0.0", "consumer": 0, **fields}
        self.event(to, "deliver", "ok", message=message, queue=queue, **fields)

    def confirm(self, message: str, by: str = "a", queue: str = QUEUE, **fields: Any) -> None:
        fields = {"connection": "0.0", **fields}
        self.event(by, "confirm", "ok", message=message, queue=queue, **fields)

    def received(self, *messages: str, by: str = "a", queue: str = QUEUE, **fields: Any) -> None:
        for message in messages:
            self.deliver(message, by, queue, **fields)
            self.confirm(message, by, queue, connection=fields.get("connection", "0.0"))

    def handle(
        self, message: str, *kinds: str, by: str = "a", attempt: int = 1, connection: str = "0.0"
    ) -> None:
        for kind in kinds:
            where = {"message": message, "queue": QUEUE, "connection": connection}
            self.event(by, "handle", kind, **where, attempt=attempt, handler="h")

    def statistics(self, by: str, **counts: int) -> None:
        zero = dict.fromkeys(("posted", "acknowledged", "refused", "received", "confirmed"), 0)
        self.event(by, "statistics", "ok", **{**zero, **counts})

    def applications(self, queue: str, *names: str) -> None:
        self.history.applications(queue, names)

    def killed(self, process: str) -> None:
        self.history.killed(process)

    def fault(self, kind: str) -> None:
        self.history.fault(kind)

    def healed(self) -> None:
        self.history.healed()

    def at(self, seconds: str) -> None:
        self.now = float(seconds)


_NUMBERS = ("crc", "due", "attempt", "consumer", "acknowledged", "refused", "received", "confirmed")
_NUMBERS += ("posted", "unacked", "unacked_bytes")


def _value(name: str, text: str) -> Any:
    if name in _NUMBERS:
        return int(text)
    return text == "True" if text in ("True", "False") else NAMES.get(text, text)


LETTER = derived_guid("1", QUEUE, "dead letter")
RETRY = derived_guid("1", QUEUE, "attempt", "1")
AGAIN = derived_guid(RETRY, QUEUE, "due", "9000")
NAMES = {
    "ORDERS": QUEUE,
    "FOO": f"{QUEUE}?id=foo",
    "BAR": f"{QUEUE}?id=bar",
    "DEAD": DEAD,
    "DELAYED": f"{QUEUE}.delayed",
    "REPLIES": "bmq://d/replies",
    "LETTER": LETTER,
    "RETRY": RETRY,
    "AGAIN": AGAIN,
    "LAST_LETTER": derived_guid(AGAIN, QUEUE, "dead letter"),
    "MOVED": derived_guid("1", QUEUE, "due", "9000"),
    "MOVED_LATER": derived_guid("1", QUEUE, "due", "12000"),
}
#: For each rule: histories that break the rule, and similar histories that keep it.
STORIES = """
# lost broken
acknowledged and never received:
    posted 1 2; received 2
one application is left out:
    posted 1 2; received 1 2 queue=FOO; received 2 queue=BAR
an announced application receives nothing:
    applications ORDERS foo bar; posted 1; received 1 queue=FOO
a delayed message never reaches its destination:
    posted 1 queue=DELAYED due=9000 destination=ORDERS; received 1 queue=DELAYED by=mover; posted 2;
    received 2
# lost kept
refused and never received:
    post 1; refuse 1
unknown and never received:
    post 1; refuse 1 unknown TIMEOUT
nobody is meant to read the queue:
    applications ORDERS; posted 1
received before the acknowledgement:
    post 1; received 1; ack 1
lost but the poster was killed first:
    post 1; killed p
a delayed message is posted again with another time:
    post 1 by=a queue=DELAYED due=8000 destination=ORDERS; killed a;
    post 1 by=a queue=DELAYED due=9000 destination=ORDERS; killed a;
    posted 1 by=b queue=DELAYED due=9000 destination=ORDERS; at 9.0; received MOVED
# unfinished broken
received and never confirmed:
    posted 1; deliver 1
confirmed by one and then delivered to another:
    posted 1; received 1; deliver 1 b redelivered=True
a process ends with what nobody had confirmed:
    posted 1; deliver 1; deliver 1 to=b redelivered=True; event b process ok
a process dies before it can confirm again:
    posted 1; deliver 1; confirm 1 stale=True; deliver 1 to=b redelivered=True; killed a;
    event b connection fail event=ConnectionLost
a third process has what was confirmed too late:
    posted 1; deliver 1; confirm 1 stale=True; deliver 1 to=b redelivered=True;
    event b connection fail event=ConnectionLost; deliver 1 to=c redelivered=True
a message goes to another process after a late confirmation:
    posted 1; deliver 1; confirm 1 stale=True; deliver 1 to=b redelivered=True
# unfinished kept
killed in hand and confirmed by another:
    posted 1; deliver 1; killed a; received 1 by=b redelivered=True
a late confirmation is sent over the new connection:
    posted 1; deliver 1; confirm 1 stale=True; deliver 1 connection=0.1 redelivered=True
another process loses what was confirmed too late:
    posted 1; deliver 1; confirm 1 stale=True; deliver 1 to=b redelivered=True;
    event b connection fail event=ConnectionLost
a process ends with what another had confirmed:
    posted 1; deliver 1; confirm 1 stale=True sent=True; deliver 1 to=b redelivered=True;
    event a process ok; event a process invoke; event b process ok
# outcome broken
a post without an outcome:
    post 1
a post with two outcomes:
    posted 1; refuse 1; received 1
# outcome kept
a killed process has no outcome:
    post 1; killed p
a process that starts anew was killed before:
    post 1; event p process invoke
two posts of one guid have two outcomes:
    post 1; post 1; ack 1; ack 1; received 1
# content broken
a message that no process posted:
    received 1
another payload:
    posted 1 crc=5; received 1 crc=6
a damaged message:
    posted 1 crc=5; received 1 damaged=True
a refused message arrives:
    post 1; refuse 1; received 1
# content kept
a message with an unknown outcome arrives:
    post 1 crc=5; refuse 1 unknown UNKNOWN; received 1 crc=5
a refused message is posted again and arrives:
    post 1; refuse 1; posted 1; received 1
# order broken
a later message comes first:
    posted 1 2; received 2 1
# order kept
a redelivered message comes later:
    posted 1 2; received 2; received 1 redelivered=True
a new connection begins anew:
    posted 1 2; deliver 2; received 1 2 connection=0.1
two consumers and two producers have no common order:
    posted 1 2; posted 3 by=q; received 2 3; received 1 by=b; posted 4 5; received 5;
    received 4 consumer=1
another process posts the same messages in another order:
    post 1; post 2; post 2 by=a; ack 2 by=a; post 1 by=a; ack 1 by=a; received 2 1 by=b; ack 1; ack 2
# key-order broken
a later message of the key comes first:
    posted 1 2 key=k; received 2 1
a later message of the key is handled first:
    posted 1 2 key=k; deliver 1; deliver 2; handle 2 invoke ok; handle 1 invoke ok; confirm 1; confirm 2
# key-order kept
keys overtake each other:
    posted 1 key=k; posted 2 key=l; received 2 1
a later attempt comes behind a newer message:
    posted 1 2 key=k; deliver 1; deliver 2; handle 1 invoke fail; handle 2 invoke ok;
    handle 1 invoke ok attempt=2; confirm 2; confirm 1
a redelivered message is handled behind a newer one:
    posted 1 2 key=k; deliver 2; handle 2 invoke ok; confirm 2; deliver 1 redelivered=True;
    handle 1 invoke ok; confirm 1
a message in hand at the loss of a connection goes before an older one, which another client had:
    posted 1 2 key=k; deliver 2; deliver 1 connection=0.1; handle 2 invoke ok connection=0.1;
    handle 1 invoke ok connection=0.1; confirm 2 connection=0.1; confirm 1 connection=0.1
# one-owner broken
two processes have messages of a key:
    posted 1 2 key=k; deliver 1; deliver 2 b; confirm 1; confirm 2 b
# one-owner kept
a key moves when its messages are done:
    posted 1 2 key=k; received 1; received 2 by=b
a key moves when the connection is lost:
    posted 1 2 key=k; deliver 1; event a connection fail; received 2 1 by=b
a key moves with its message:
    posted 1 2 key=k; deliver 1; received 1 2 by=b
different keys have different owners:
    posted 1 key=k; posted 2 key=l; deliver 1; deliver 2 b; confirm 1; confirm 2 b
# one-at-a-time broken
two handlers have messages of a key:
    posted 1 2 key=k; deliver 1; handle 1 invoke; deliver 2; handle 2 invoke; handle 1 ok; confirm 1;
    handle 2 ok; confirm 2
# one-at-a-time kept
handlers of a key follow each other:
    posted 1 2 key=k; deliver 1; deliver 2; handle 1 invoke ok; confirm 1; handle 2 invoke ok; confirm 2
# one-copy broken
a second handler gets a message that is being handled:
    posted 1; deliver 1; handle 1 invoke; deliver 1 connection=0.1; handle 1 invoke connection=0.1;
    handle 1 ok connection=0.0; handle 1 ok connection=0.1; confirm 1 connection=0.1
# one-copy kept
a message delivered again is handled after the first attempt:
    posted 1; deliver 1; handle 1 invoke fail; deliver 1 connection=0.1; handle 1 invoke ok connection=0.1;
    confirm 1 connection=0.1
a message goes to another session while a handler has it:
    posted 1; deliver 1; handle 1 invoke; deliver 1 connection=1.0; handle 1 invoke ok connection=1.0;
    confirm 1 connection=1.0; handle 1 ok; confirm 1
# confirm broken
a message that arrived again in hand is confirmed while it is handled:
    posted 1; deliver 1; handle 1 invoke fail; handle 1 invoke attempt=2 connection=0.1;
    confirm 1 connection=0.1
confirmed before it is handled:
    posted 1; received 1; handle 1 invoke ok
confirmed while it is handled:
    posted 1; deliver 1; handle 1 invoke; confirm 1; handle 1 ok
confirmed though the handler was cancelled:
    posted 1; deliver 1; handle 1 invoke unknown; confirm 1
confirmed by a process that has not received it:
    posted 1; received 1; confirm 1 b
# confirm kept
confirmed after the second attempt:
    posted 1; deliver 1; handle 1 invoke fail; handle 1 invoke ok attempt=2; confirm 1
delivered again while the handler has it:
    posted 1; deliver 1; handle 1 invoke; deliver 1 connection=0.1 redelivered=True; handle 1 ok;
    confirm 1
a late confirmation is of the delivery before:
    posted 1; deliver 1; handle 1 invoke ok; deliver 1 connection=0.1; confirm 1 connection=0.0 stale=True;
    event a handle invoke message=1 queue=ORDERS attempt=1 connection=0.1;
    event a handle ok message=1 queue=ORDERS attempt=1 connection=0.1; confirm 1 connection=0.1
# dead-letters broken
a failed message is confirmed:
    posted 1; deliver 1; handle 1 invoke fail; confirm 1
a failed message is confirmed before its letter is acknowledged:
    applications DEAD; posted 1; deliver 1; handle 1 invoke fail;
    post LETTER a DEAD letter=1 letter_queue=ORDERS; confirm 1; ack LETTER a DEAD
a letter of a message that no process has:
    applications DEAD; posted LETTER by=a queue=DEAD letter=1 letter_queue=ORDERS
a letter of a message that never arrived:
    applications DEAD; posted 1; posted LETTER by=a queue=DEAD letter=1 letter_queue=ORDERS;
    received 1 by=b
a letter of a message that was handled well:
    applications DEAD; posted 1; deliver 1; handle 1 invoke ok;
    posted LETTER by=a queue=DEAD letter=1 letter_queue=ORDERS; confirm 1
a letter of a retry that was handled well:
    applications DEAD; posted 1; deliver 1; handle 1 invoke fail;
    posted RETRY by=a queue=DELAYED due=9000 destination=ORDERS origin=1; confirm 1 stale=True; at 9.0;
    deliver AGAIN to=a; handle AGAIN invoke ok attempt=2;
    posted LAST_LETTER by=a queue=DEAD letter=1 letter_queue=ORDERS; confirm AGAIN
# dead-letters kept
another session of the process puts a message aside:
    applications DEAD; posted 1; deliver 1; handle 1 invoke ok;
    deliver 1 connection=1.0 redelivered=True; posted LETTER by=a queue=DEAD letter=1 letter_queue=ORDERS;
    confirm 1 connection=1.0
a retry fails beside a redelivery that was handled well:
    applications DEAD; posted 1; deliver 1; handle 1 invoke fail;
    posted RETRY by=a queue=DELAYED due=9000 destination=ORDERS origin=1; confirm 1 stale=True; at 9.0;
    deliver 1 to=b redelivered=True; handle 1 invoke ok by=b; confirm 1 by=b; deliver AGAIN to=b;
    handle AGAIN invoke fail by=b attempt=2;
    posted LAST_LETTER by=b queue=DEAD letter=1 letter_queue=ORDERS; confirm AGAIN by=b
a failed message is put aside and confirmed:
    applications DEAD; posted 1; deliver 1; handle 1 invoke fail;
    posted LETTER by=a queue=DEAD letter=1 letter_queue=ORDERS; confirm 1
a failed message is put off and confirmed:
    posted 1; deliver 1; handle 1 invoke fail;
    posted RETRY by=a queue=DELAYED due=9000 destination=ORDERS origin=1; confirm 1; at 9.0;
    received AGAIN
a failed request is answered and confirmed:
    posted 1 reply_to=REPLIES; deliver 1; handle 1 invoke fail; posted 2 by=a queue=REPLIES request=1;
    confirm 1
# early broken
a delayed message arrives before it is due:
    posted 1 queue=DELAYED due=9000 destination=ORDERS; received 1 queue=DELAYED by=mover; received MOVED
# early kept
a delayed message arrives when it is due:
    posted 1 queue=DELAYED due=9000 destination=ORDERS; at 8.0; received MOVED
# late broken
a message arrives after its time:
    posted 1; at 8.5; received 1
a delayed message arrives after its time:
    posted 1 queue=DELAYED due=9000 destination=ORDERS; at 14.5; received MOVED
# late kept
faults delay a message:
    posted 1; fault cut; at 100.0; healed; at 104.5; received 1
a delayed message arrives just in time:
    posted 1 queue=DELAYED due=9000 destination=ORDERS; at 12.5; received MOVED
# again broken
a confirmed message comes again:
    posted 1; received 1; received 1 connection=0.1 redelivered=True
# again kept
a message in hand comes again:
    posted 1; deliver 1; received 1 connection=0.1 redelivered=True
a message confirmed too late comes again:
    posted 1; deliver 1; confirm 1 stale=True; received 1 connection=0.1 redelivered=True
a confirmed message comes to another process:
    posted 1; received 1; received 1 by=b redelivered=True
a retry that is delayed twice comes under two names:
    posted 1 queue=DELAYED destination=ORDERS due=9000; at 9.0; posted MOVED by=b;
    received MOVED connection=0.9000; posted 1 queue=DELAYED destination=ORDERS due=12000; at 12.0;
    posted MOVED_LATER by=b; received MOVED_LATER connection=0.12000
# replies broken
a request has two replies:
    posted 1 reply_to=REPLIES; received 1; posted 2 3 by=a queue=REPLIES request=1
a reply to no request:
    posted 2 by=a queue=REPLIES request=1
# replies kept
a reply is posted twice under one guid:
    posted 1 reply_to=REPLIES; deliver 1; posted 2 by=a queue=REPLIES request=1;
    received 1 by=b redelivered=True; posted 2 by=b queue=REPLIES request=1
# once broken
an effect happens twice:
    event a effect invoke name=charge_1; event a effect ok name=charge_1;
    event a effect invoke name=charge_1; event a effect ok name=charge_1
# once kept
an effect fails before it happens:
    event a effect invoke name=charge_1; event a effect fail name=charge_1;
    event a effect invoke name=charge_1; event a effect unknown name=charge_1;
    event a effect invoke name=charge_1; event a effect ok name=charge_1; event a effect ok name=charge_2
# statistics broken
a session has forgotten a post:
    posted 1; received 1; statistics p posted=0 acknowledged=1
a session has forgotten a confirmation:
    posted 1; received 1; statistics a received=1 confirmed=0
a session still counts the bytes of a post:
    posted 1; received 1; statistics p posted=1 acknowledged=1 unacked_bytes=5
# statistics kept
a session waits for an outcome:
    post 1; statistics p posted=1 unacked=1 unacked_bytes=5; ack 1; received 1
a session counts what the program does not see:
    posted 1; post 2; refuse 2; post 3; event p post fail message=3 queue=ORDERS error=BufferFull;
    received 1; statistics p posted=2 acknowledged=1 refused=1; statistics a received=2 confirmed=2
"""


def _stories(kind: str) -> Iterator[Any]:
    for section in STORIES.split("\n# ")[1:]:
        title, *rows = section.splitlines()
        rule, which = title.split()
        for name, story in re.findall(r"^(\w.*):\n((?: .*\n?)+)", "\n".join(rows), re.MULTILINE):
            if which == kind:
                yield pytest.param(rule, " ".join(story.split()), id=f"{rule}: {name}")


def broken_by(story: str) -> tuple[set[str], bmq.testing.Verdict]:
    verdict = examine(Scene.of(story).history, rules=[rule for rule in RULES if rule != "late"], within=5)
    return set(verdict.broken), verdict


@sweep("rule, story", [*_stories("broken")])
def test_a_history_that_breaks_a_rule_is_rejected(rule: str, story: str) -> None:
    broken, verdict = broken_by(story)
    assert rule in broken
    problem = next(problem for problem in verdict.problems if problem.rule == rule)
    lines = verdict.events
    assert all(1 <= int(line) <= lines for line in problem.lines)
    assert problem.lines
    assert all(line in str(problem) for line in problem.lines)
    if problem.message is not None:
        assert problem.message in problem.text
        assert problem.processes or rule == "unfinished"


@sweep("rule, story", [*_stories("kept")])
def test_a_history_that_nearly_breaks_a_rule_passes(rule: str, story: str) -> None:
    broken, verdict = broken_by(story)
    assert rule not in broken, str(verdict)


def test_every_rule_has_both_kinds_of_stories() -> None:
    for kind in ("broken", "kept"):
        assert {param.values[0] for param in _stories(kind)} == set(RULES)


def test_check_raises_all_findings() -> None:
    scene = Scene.of("posted 1 2; received 2")
    with pytest.raises(
        BrokenPromise, match="1 of bmq://d/orders was acknowledged and never reached"
    ) as caught:
        check(scene.history)
    assert caught.value.verdict.broken == {"lost": 1}
    assert caught.value.verdict.problems[0].lines == ("1", "2")
    assert not caught.value.verdict.ok


def test_rules_are_chosen_and_left_out() -> None:
    scene = Scene.of("posted 1 2; received 2 1; posted 3")
    assert set(examine(scene.history).broken) == {"order", "lost"}
    assert set(examine(scene.history, without=["order"]).broken) == {"lost"}
    assert set(examine(scene.history, rules=["order", "once"]).broken) == {"order"}
    assert set(DEFAULT_RULES) == set(RULES) - {"key-order", "one-owner", "one-at-a-time", "late"}
    with pytest.raises(bmq.UsageError, match="within=SECONDS"):
        check(scene.history, rules=["late"])
    with pytest.raises(bmq.UsageError, match="lsot"):
        check(scene.history, rules=["lsot"])


def test_unnamed_queues_are_not_checked() -> None:
    scene = Scene.of("posted 1; posted 2 queue=bmq://d/other; received 2 queue=bmq://d/other")
    assert examine(scene.history, queues=["bmq://d/other"]).ok
    assert set(examine(scene.history, queues=[QUEUE]).broken) == {"lost"}


def test_duplicates_are_counted_by_their_cause() -> None:
    scene = Scene.of(
        "posted 1 2 3; received 1; received 1 connection=0.1; deliver 2 connection=0.1; "
        "received 2 connection=0.2; deliver 3; received 3 by=b"
    )
    verdict = examine(scene.history)
    assert verdict.duplicates == {"confirmed here": 1, "in hand": 1, "other process": 1}
    assert (verdict.posted, verdict.acknowledged, verdict.delivered, verdict.confirmed) == (3, 3, 6, 4)
    assert verdict.processes == 3


def test_a_message_finished_long_ago_is_known_when_it_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.testing._checker._RECENT", 2)
    numbers = " ".join(f"{number:032X}" for number in range(9))
    late = f"deliver {3:032X} connection=0.1"
    verdict = examine(Scene.of(f"posted {numbers}; received {numbers}; {late}").history)
    assert set(verdict.broken) == {"unfinished"}
    assert sum(verdict.duplicates.values()) == 1, "a duplicate, not an unknown message"


def test_an_event_without_its_fields_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"at": 1, "process": "p", "op": "post", "type": "invoke", "queue": "bmq://d/q"}\n')
    with pytest.raises(bmq.UsageError, match=r"line 1 of bad.jsonl: post has no valid field: 'message'"):
        check(path)
    path.write_text('\n{"at": 1, "process": "p"}\n')
    with pytest.raises(bmq.UsageError, match=r"line 2 of bad.jsonl is not an event"):
        check(path)
