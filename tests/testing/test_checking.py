# SPDX-License-Identifier: Apache-2.0
"""Each rule of the checker fails a history that breaks it, and passes a similar correct one."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bmq
from bmq.conventions import derived_guid
from bmq.testing import BrokenPromise, History, check, examine
from bmq.testing._checker import DEFAULT_RULES, RULES, Checker

QUEUE = "bmq://d/orders"
DEAD = "bmq://d/orders.dead"


class Scene:
    """Records events of the processes p (producer), a and b (consumers); the event's number is its time."""

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


def guid(*words: str) -> str:
    return derived_guid(*words)


LETTER = guid("1", QUEUE, "dead letter")
RETRY = guid("1", QUEUE, "attempt", "1")
MOVED = guid("1", QUEUE, "due", "9000")
Story = Callable[[Scene], None]
#: For each rule: histories that break the rule, and similar correct histories.
STORIES: dict[str, tuple[list[Story], list[Story]]] = {}


def story(rule: str, *, breaks: bool) -> Callable[[Story], Story]:
    def add(tell: Story) -> Story:
        STORIES.setdefault(rule, ([], []))[not breaks].append(tell)
        return tell

    return add


@story("lost", breaks=True)
def acknowledged_and_never_received(s: Scene) -> None:
    s.posted("1", "2")
    s.received("2")


@story("lost", breaks=True)
def one_application_is_left_out(s: Scene) -> None:
    s.posted("1", "2")
    s.received("1", "2", queue=f"{QUEUE}?id=foo")
    s.received("2", queue=f"{QUEUE}?id=bar")


@story("lost", breaks=True)
def an_announced_application_receives_nothing(s: Scene) -> None:
    s.history.applications(QUEUE, ["foo", "bar"])
    s.posted("1")
    s.received("1", queue=f"{QUEUE}?id=foo")


@story("lost", breaks=True)
def a_delayed_message_never_reaches_its_destination(s: Scene) -> None:
    s.posted("1", queue=f"{QUEUE}.delayed", due=9000, destination=QUEUE)
    s.received("1", queue=f"{QUEUE}.delayed", by="mover")
    s.posted("2")
    s.received("2")


@story("lost", breaks=False)
def refused_and_never_received(s: Scene) -> None:
    s.post("1")
    s.refuse("1")


@story("lost", breaks=False)
def unknown_and_never_received(s: Scene) -> None:
    s.post("1")
    s.refuse("1", "unknown", "TIMEOUT")


@story("lost", breaks=False)
def nobody_is_meant_to_read_the_queue(s: Scene) -> None:
    s.history.applications(QUEUE, [])
    s.posted("1")


@story("lost", breaks=False)
def received_before_the_acknowledgement(s: Scene) -> None:
    s.post("1")
    s.received("1")
    s.ack("1")


@story("lost", breaks=False)
def lost_but_the_poster_was_killed_first(s: Scene) -> None:
    s.post("1")
    s.history.killed("p")


@story("unfinished", breaks=True)
def received_and_never_confirmed(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")


@story("unfinished", breaks=True)
def confirmed_by_one_and_then_delivered_to_another(s: Scene) -> None:
    s.posted("1")
    s.received("1")
    s.deliver("1", "b", redelivered=True)


@story("unfinished", breaks=False)
def killed_in_hand_and_confirmed_by_another(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.history.killed("a")
    s.received("1", by="b", redelivered=True)


@story("outcome", breaks=True)
def a_post_without_an_outcome(s: Scene) -> None:
    s.post("1")


@story("outcome", breaks=True)
def a_post_with_two_outcomes(s: Scene) -> None:
    s.posted("1")
    s.refuse("1")
    s.received("1")


@story("outcome", breaks=False)
def a_killed_process_has_no_outcome(s: Scene) -> None:
    s.post("1")
    s.history.killed("p")


@story("outcome", breaks=False)
def a_process_that_starts_anew_was_killed_before(s: Scene) -> None:
    s.post("1")
    s.event("p", "process", "invoke")


@story("outcome", breaks=False)
def two_posts_of_one_guid_have_two_outcomes(s: Scene) -> None:
    s.post("1")
    s.post("1")
    s.ack("1")
    s.ack("1")
    s.received("1")


@story("content", breaks=True)
def a_message_that_no_process_posted(s: Scene) -> None:
    s.received("1")


@story("content", breaks=True)
def another_payload(s: Scene) -> None:
    s.posted("1", crc=5)
    s.received("1", crc=6)


@story("content", breaks=True)
def a_damaged_message(s: Scene) -> None:
    s.posted("1", crc=5)
    s.received("1", damaged=True)


@story("content", breaks=True)
def a_refused_message_arrives(s: Scene) -> None:
    s.post("1")
    s.refuse("1")
    s.received("1")


@story("content", breaks=False)
def a_message_with_an_unknown_outcome_arrives(s: Scene) -> None:
    s.post("1", crc=5)
    s.refuse("1", "unknown", "UNKNOWN")
    s.received("1", crc=5)


@story("content", breaks=False)
def a_refused_message_is_posted_again_and_arrives(s: Scene) -> None:
    s.post("1")
    s.refuse("1")
    s.posted("1")
    s.received("1")


@story("order", breaks=True)
def a_later_message_comes_first(s: Scene) -> None:
    s.posted("1", "2")
    s.received("2", "1")


@story("order", breaks=False)
def a_redelivered_message_comes_later(s: Scene) -> None:
    s.posted("1", "2")
    s.received("2")
    s.received("1", redelivered=True)


@story("order", breaks=False)
def a_new_connection_begins_anew(s: Scene) -> None:
    s.posted("1", "2")
    s.deliver("2")
    s.received("1", "2", connection="0.1")


@story("order", breaks=False)
def two_consumers_and_two_producers_have_no_common_order(s: Scene) -> None:
    s.posted("1", "2")
    s.posted("3", by="q")
    s.received("2", "3")
    s.received("1", by="b")
    s.posted("4", "5")
    s.received("5")
    s.received("4", consumer=1)


@story("key-order", breaks=True)
def a_later_message_of_the_key_comes_first(s: Scene) -> None:
    s.posted("1", "2", key="k")
    s.received("2", "1")


@story("key-order", breaks=True)
def a_later_message_of_the_key_is_handled_first(s: Scene) -> None:
    s.posted("1", "2", key="k")
    for message in "12":
        s.deliver(message)
    s.handle("2", "invoke", "ok")
    s.handle("1", "invoke", "ok")
    s.confirm("1")
    s.confirm("2")


@story("key-order", breaks=False)
def keys_overtake_each_other(s: Scene) -> None:
    s.posted("1", key="k")
    s.posted("2", key="l")
    s.received("2", "1")


@story("key-order", breaks=False)
def a_later_attempt_comes_behind_a_newer_message(s: Scene) -> None:
    s.posted("1", "2", key="k")
    for message in "12":
        s.deliver(message)
    s.handle("1", "invoke", "fail")
    s.handle("2", "invoke", "ok")
    s.handle("1", "invoke", "ok", attempt=2)
    s.confirm("2")
    s.confirm("1")


@story("key-order", breaks=False)
def a_redelivered_message_is_handled_behind_a_newer_one(s: Scene) -> None:
    s.posted("1", "2", key="k")
    s.deliver("2")
    s.handle("2", "invoke", "ok")
    s.confirm("2")
    s.deliver("1", redelivered=True)
    s.handle("1", "invoke", "ok")
    s.confirm("1")


@story("one-owner", breaks=True)
def two_processes_have_messages_of_a_key(s: Scene) -> None:
    s.posted("1", "2", key="k")
    s.deliver("1")
    s.deliver("2", "b")
    s.confirm("1")
    s.confirm("2", "b")


@story("one-owner", breaks=False)
def a_key_moves_when_its_messages_are_done(s: Scene) -> None:
    s.posted("1", "2", key="k")
    s.received("1")
    s.received("2", by="b")


@story("one-owner", breaks=False)
def a_key_moves_when_the_connection_is_lost(s: Scene) -> None:
    s.posted("1", "2", key="k")
    s.deliver("1")
    s.event("a", "connection", "fail")
    s.received("2", "1", by="b")


@story("one-owner", breaks=False)
def a_key_moves_with_its_message(s: Scene) -> None:
    s.posted("1", "2", key="k")
    s.deliver("1")
    s.received("1", "2", by="b")


@story("one-owner", breaks=False)
def different_keys_have_different_owners(s: Scene) -> None:
    s.posted("1", key="k")
    s.posted("2", key="l")
    s.deliver("1")
    s.deliver("2", "b")
    s.confirm("1")
    s.confirm("2", "b")


@story("one-at-a-time", breaks=True)
def two_handlers_have_messages_of_a_key(s: Scene) -> None:
    s.posted("1", "2", key="k")
    for message in "12":
        s.deliver(message)
        s.handle(message, "invoke")
    for message in "12":
        s.handle(message, "ok")
        s.confirm(message)


@story("one-at-a-time", breaks=False)
def handlers_of_a_key_follow_each_other(s: Scene) -> None:
    s.posted("1", "2", key="k")
    for message in "12":
        s.deliver(message)
    for message in "12":
        s.handle(message, "invoke", "ok")
        s.confirm(message)


@story("order", breaks=False)
def another_process_posts_the_same_messages_in_another_order(s: Scene) -> None:
    s.post("1")
    s.post("2")
    for message in "21":
        s.post(message, by="a")
        s.ack(message, by="a")
    s.received("2", "1", by="b")
    s.ack("1")
    s.ack("2")


@story("one-copy", breaks=True)
def a_second_handler_gets_a_message_that_is_being_handled(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.handle("1", "invoke")
    s.deliver("1", connection="0.1")
    s.handle("1", "invoke", connection="0.1")
    s.handle("1", "ok", connection="0.0")
    s.handle("1", "ok", connection="0.1")
    s.confirm("1", connection="0.1")


@story("one-copy", breaks=False)
def a_message_delivered_again_is_handled_after_the_first_attempt(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.handle("1", "invoke", "fail")
    s.deliver("1", connection="0.1")
    s.handle("1", "invoke", "ok", connection="0.1")
    s.confirm("1", connection="0.1")


@story("one-copy", breaks=False)
def a_message_goes_to_another_session_while_a_handler_has_it(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.handle("1", "invoke")
    s.deliver("1", connection="1.0")
    s.handle("1", "invoke", "ok", connection="1.0")
    s.confirm("1", connection="1.0")
    s.handle("1", "ok")
    s.confirm("1")


@story("confirm", breaks=True)
def a_message_that_arrived_again_in_hand_is_confirmed_while_it_is_handled(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.handle("1", "invoke", "fail")
    s.handle("1", "invoke", attempt=2, connection="0.1")
    s.confirm("1", connection="0.1")


@story("lost", breaks=False)
def a_delayed_message_is_posted_again_with_another_time(s: Scene) -> None:
    for due in (8000, 9000):
        s.post("1", by="a", queue=f"{QUEUE}.delayed", due=due, destination=QUEUE)
        s.history.killed("a")
    s.posted("1", by="b", queue=f"{QUEUE}.delayed", due=9000, destination=QUEUE)
    s.now = 9.0
    s.received(MOVED)


@story("dead-letters", breaks=False)
def another_session_of_the_process_puts_a_message_aside(s: Scene) -> None:
    s.history.applications(DEAD, [])
    s.posted("1")
    s.deliver("1")
    s.handle("1", "invoke", "ok")
    s.deliver("1", connection="1.0", redelivered=True)
    s.posted(LETTER, by="a", queue=DEAD, letter="1", letter_queue=QUEUE)
    s.confirm("1", connection="1.0")


@story("early", breaks=True)
def a_delayed_message_arrives_before_it_is_due(s: Scene) -> None:
    s.posted("1", queue=f"{QUEUE}.delayed", due=9000, destination=QUEUE)
    s.received("1", queue=f"{QUEUE}.delayed", by="mover")
    s.received(MOVED)  # at 5


@story("early", breaks=False)
def a_delayed_message_arrives_when_it_is_due(s: Scene) -> None:
    s.posted("1", queue=f"{QUEUE}.delayed", due=9000, destination=QUEUE)
    s.now = 8.0
    s.received(MOVED)


@story("late", breaks=True)
def a_message_arrives_after_its_time(s: Scene) -> None:
    s.posted("1")
    s.now += 6.5
    s.received("1")


@story("late", breaks=True)
def a_delayed_message_arrives_after_its_time(s: Scene) -> None:
    s.posted("1", queue=f"{QUEUE}.delayed", due=9000, destination=QUEUE)
    s.now = 9 + 5.5
    s.received(MOVED)


@story("late", breaks=False)
def faults_delay_a_message(s: Scene) -> None:
    s.posted("1")
    s.history.fault("cut")
    s.now = 100.0
    s.history.healed()
    s.now += 3.5
    s.received("1")


@story("late", breaks=False)
def a_delayed_message_arrives_just_in_time(s: Scene) -> None:
    s.posted("1", queue=f"{QUEUE}.delayed", due=9000, destination=QUEUE)
    s.now = 9 + 3.5
    s.received(MOVED)


@story("confirm", breaks=True)
def confirmed_before_it_is_handled(s: Scene) -> None:
    s.posted("1")
    s.received("1")
    s.handle("1", "invoke", "ok")


@story("confirm", breaks=True)
def confirmed_while_it_is_handled(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.handle("1", "invoke")
    s.confirm("1")
    s.handle("1", "ok")


@story("confirm", breaks=True)
def confirmed_though_the_handler_was_cancelled(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.handle("1", "invoke", "unknown")
    s.confirm("1")


@story("confirm", breaks=True)
def confirmed_by_a_process_that_has_not_received_it(s: Scene) -> None:
    s.posted("1")
    s.received("1")
    s.confirm("1", "b")


@story("confirm", breaks=False)
def confirmed_after_the_second_attempt(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.handle("1", "invoke", "fail")
    s.handle("1", "invoke", "ok", attempt=2)
    s.confirm("1")


@story("confirm", breaks=False)
def delivered_again_while_the_handler_has_it(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.handle("1", "invoke")
    s.deliver("1", connection="0.1", redelivered=True)
    s.handle("1", "ok")
    s.confirm("1")


@story("confirm", breaks=False)
def a_late_confirmation_is_of_the_delivery_before(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.handle("1", "invoke", "ok")
    s.deliver("1", connection="0.1")
    s.confirm("1", connection="0.0", stale=True)
    s.event("a", "handle", "invoke", message="1", queue=QUEUE, attempt=1, connection="0.1")
    s.event("a", "handle", "ok", message="1", queue=QUEUE, attempt=1, connection="0.1")
    s.confirm("1", connection="0.1")


@story("dead-letters", breaks=True)
def a_failed_message_is_confirmed(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.handle("1", "invoke", "fail")
    s.confirm("1")


@story("dead-letters", breaks=True)
def a_failed_message_is_confirmed_before_its_letter_is_acknowledged(s: Scene) -> None:
    s.history.applications(DEAD, [])
    s.posted("1")
    s.deliver("1")
    s.handle("1", "invoke", "fail")
    s.post(LETTER, "a", DEAD, letter="1", letter_queue=QUEUE)
    s.confirm("1")
    s.ack(LETTER, "a", DEAD)


@story("dead-letters", breaks=True)
def a_letter_of_a_message_that_no_process_has(s: Scene) -> None:
    s.history.applications(DEAD, [])
    s.posted(LETTER, by="a", queue=DEAD, letter="1", letter_queue=QUEUE)


@story("dead-letters", breaks=True)
def a_letter_of_a_message_that_never_arrived(s: Scene) -> None:
    s.history.applications(DEAD, [])
    s.posted("1")
    s.posted(LETTER, by="a", queue=DEAD, letter="1", letter_queue=QUEUE)
    s.received("1", by="b")


@story("dead-letters", breaks=True)
def a_letter_of_a_message_that_was_handled_well(s: Scene) -> None:
    s.history.applications(DEAD, [])
    s.posted("1")
    s.deliver("1")
    s.handle("1", "invoke", "ok")
    s.posted(LETTER, by="a", queue=DEAD, letter="1", letter_queue=QUEUE)
    s.confirm("1")


def retried(s: Scene) -> str:
    """Fail in process a, confirm too late, and return the durable retry's GUID once the retry is due."""
    s.history.applications(DEAD, [])
    s.posted("1")
    s.deliver("1")
    s.handle("1", "invoke", "fail")
    s.posted(RETRY, by="a", queue=f"{QUEUE}.delayed", due=9000, destination=QUEUE, origin="1")
    s.confirm("1", stale=True)
    s.now = 9.0
    return guid(RETRY, QUEUE, "due", "9000")


@story("dead-letters", breaks=False)
def a_retry_fails_beside_a_redelivery_that_was_handled_well(s: Scene) -> None:
    again = retried(s)
    s.deliver("1", to="b", redelivered=True)
    s.handle("1", "invoke", "ok", by="b")
    s.confirm("1", by="b")
    s.deliver(again, to="b")
    s.handle(again, "invoke", "fail", by="b", attempt=2)
    letter = guid(again, QUEUE, "dead letter")
    s.posted(letter, by="b", queue=DEAD, letter="1", letter_queue=QUEUE)
    s.confirm(again, by="b")


@story("dead-letters", breaks=True)
def a_letter_of_a_retry_that_was_handled_well(s: Scene) -> None:
    again = retried(s)
    s.deliver(again, to="a")
    s.handle(again, "invoke", "ok", attempt=2)
    s.posted(guid(again, QUEUE, "dead letter"), by="a", queue=DEAD, letter="1", letter_queue=QUEUE)
    s.confirm(again)


@story("dead-letters", breaks=False)
def a_failed_message_is_put_aside_and_confirmed(s: Scene) -> None:
    s.history.applications(DEAD, [])
    s.posted("1")
    s.deliver("1")
    s.handle("1", "invoke", "fail")
    s.posted(LETTER, by="a", queue=DEAD, letter="1", letter_queue=QUEUE)
    s.confirm("1")


@story("dead-letters", breaks=False)
def a_failed_message_is_put_off_and_confirmed(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.handle("1", "invoke", "fail")
    s.posted(RETRY, by="a", queue=f"{QUEUE}.delayed", due=9000, destination=QUEUE, origin="1")
    s.confirm("1")
    s.now = 9.0
    s.received(guid(RETRY, QUEUE, "due", "9000"))


@story("dead-letters", breaks=False)
def a_failed_request_is_answered_and_confirmed(s: Scene) -> None:
    s.posted("1", reply_to="bmq://d/replies")
    s.deliver("1")
    s.handle("1", "invoke", "fail")
    s.posted("2", by="a", queue="bmq://d/replies", request="1")
    s.confirm("1")


@story("unfinished", breaks=False)
def a_late_confirmation_is_sent_over_the_new_connection(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.confirm("1", stale=True)
    s.deliver("1", connection="0.1", redelivered=True)


@story("unfinished", breaks=False)
def another_process_loses_what_was_confirmed_too_late(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.confirm("1", stale=True)
    s.deliver("1", to="b", redelivered=True)
    s.event("b", "connection", "fail", event="ConnectionLost")


@story("unfinished", breaks=False)
def a_process_ends_with_what_another_had_confirmed(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.confirm("1", stale=True, sent=True)
    s.deliver("1", to="b", redelivered=True)
    s.event("a", "process", "ok")
    s.event("a", "process", "invoke")
    s.event("b", "process", "ok")


@story("unfinished", breaks=True)
def a_process_ends_with_what_nobody_had_confirmed(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.deliver("1", to="b", redelivered=True)
    s.event("b", "process", "ok")


@story("unfinished", breaks=True)
def a_process_dies_before_it_can_confirm_again(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.confirm("1", stale=True)
    s.deliver("1", to="b", redelivered=True)
    s.history.killed("a")
    s.event("b", "connection", "fail", event="ConnectionLost")


@story("unfinished", breaks=True)
def a_third_process_has_what_was_confirmed_too_late(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.confirm("1", stale=True)
    s.deliver("1", to="b", redelivered=True)
    s.event("b", "connection", "fail", event="ConnectionLost")
    s.deliver("1", to="c", redelivered=True)


@story("unfinished", breaks=True)
def a_message_goes_to_another_process_after_a_late_confirmation(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.confirm("1", stale=True)
    s.deliver("1", to="b", redelivered=True)


@story("again", breaks=True)
def a_confirmed_message_comes_again(s: Scene) -> None:
    s.posted("1")
    s.received("1")
    s.received("1", connection="0.1", redelivered=True)


@story("again", breaks=False)
def a_message_in_hand_comes_again(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.received("1", connection="0.1", redelivered=True)


@story("again", breaks=False)
def a_message_confirmed_too_late_comes_again(s: Scene) -> None:
    s.posted("1")
    s.deliver("1")
    s.confirm("1", stale=True)
    s.received("1", connection="0.1", redelivered=True)


@story("again", breaks=False)
def a_confirmed_message_comes_to_another_process(s: Scene) -> None:
    s.posted("1")
    s.received("1")
    s.received("1", by="b", redelivered=True)


@story("again", breaks=False)
def a_retry_that_is_delayed_twice_comes_under_two_names(s: Scene) -> None:
    for due in (9000, 12_000):
        s.posted("1", queue="bmq://d/orders.delayed", destination=QUEUE, due=due)
        s.now = due / 1000
        moved = guid("1", QUEUE, "due", str(due))
        s.posted(moved, by="b")
        s.received(moved, connection=f"0.{due}")


@story("replies", breaks=True)
def a_request_has_two_replies(s: Scene) -> None:
    s.posted("1", reply_to="bmq://d/replies")
    s.received("1")
    s.posted("2", "3", by="a", queue="bmq://d/replies", request="1")


@story("replies", breaks=True)
def a_reply_to_no_request(s: Scene) -> None:
    s.posted("2", by="a", queue="bmq://d/replies", request="1")


@story("replies", breaks=False)
def a_reply_is_posted_twice_under_one_guid(s: Scene) -> None:
    s.posted("1", reply_to="bmq://d/replies")
    s.deliver("1")
    s.posted("2", by="a", queue="bmq://d/replies", request="1")
    s.received("1", by="b", redelivered=True)
    s.posted("2", by="b", queue="bmq://d/replies", request="1")


@story("once", breaks=True)
def an_effect_happens_twice(s: Scene) -> None:
    for _ in range(2):
        s.event("a", "effect", "invoke", name="charge 1")
        s.event("a", "effect", "ok", name="charge 1")


@story("once", breaks=False)
def an_effect_fails_before_it_happens(s: Scene) -> None:
    for kind in ("fail", "unknown", "ok"):
        s.event("a", "effect", "invoke", name="charge 1")
        s.event("a", "effect", kind, name="charge 1")
    s.event("a", "effect", "ok", name="charge 2")


def counted(s: Scene, by: str, **counts: int) -> None:
    zero = dict.fromkeys(("posted", "acknowledged", "refused", "received", "confirmed"), 0)
    s.event(by, "statistics", "ok", **{**zero, **counts})


@story("statistics", breaks=True)
def a_session_has_forgotten_a_post(s: Scene) -> None:
    s.posted("1")
    s.received("1")
    counted(s, "p", posted=0, acknowledged=1)


@story("statistics", breaks=True)
def a_session_has_forgotten_a_confirmation(s: Scene) -> None:
    s.posted("1")
    s.received("1")
    counted(s, "a", received=1, confirmed=0)


@story("statistics", breaks=True)
def a_session_still_counts_the_bytes_of_a_post(s: Scene) -> None:
    s.posted("1")
    s.received("1")
    counted(s, "p", posted=1, acknowledged=1, unacked_bytes=5)


@story("statistics", breaks=False)
def a_session_waits_for_an_outcome(s: Scene) -> None:
    s.post("1")
    counted(s, "p", posted=1, unacked=1, unacked_bytes=5)
    s.ack("1")
    s.received("1")


@story("statistics", breaks=False)
def a_session_counts_what_the_program_does_not_see(s: Scene) -> None:
    s.posted("1")
    s.post("2")
    s.refuse("2")
    s.post("3")
    s.event("p", "post", "fail", message="3", queue=QUEUE, error="BufferFull")
    s.received("1")
    counted(s, "p", posted=2, acknowledged=1, refused=1)
    counted(s, "a", received=2, confirmed=2)


def broken_by(tell: Story) -> tuple[set[str], bmq.testing.Verdict]:
    scene = Scene()
    tell(scene)
    verdict = examine(scene.history, rules=[rule for rule in RULES if rule != "late"], within=5)
    return set(verdict.broken), verdict


@pytest.mark.parametrize(
    ("rule", "tell"), [(rule, tell) for rule, (bad, _) in STORIES.items() for tell in bad]
)
def test_a_history_that_breaks_a_rule_is_rejected(rule: str, tell: Story) -> None:
    broken, verdict = broken_by(tell)
    assert rule in broken
    problem = next(problem for problem in verdict.problems if problem.rule == rule)
    lines = verdict.events
    assert all(1 <= int(line) <= lines for line in problem.lines)
    assert problem.lines
    assert all(line in str(problem) for line in problem.lines)
    if problem.message is not None:
        assert problem.message in problem.text
        assert problem.processes or rule == "unfinished"


@pytest.mark.parametrize(
    ("rule", "tell"), [(rule, tell) for rule, (_, good) in STORIES.items() for tell in good]
)
def test_a_history_that_nearly_breaks_a_rule_passes(rule: str, tell: Story) -> None:
    broken, verdict = broken_by(tell)
    assert rule not in broken, str(verdict)


def test_every_rule_has_both_kinds_of_stories() -> None:
    assert set(STORIES) == set(RULES)
    assert all(bad and good for bad, good in STORIES.values())


def test_check_raises_all_findings() -> None:
    scene = Scene()
    acknowledged_and_never_received(scene)
    with pytest.raises(
        BrokenPromise, match="1 of bmq://d/orders was acknowledged and never reached"
    ) as caught:
        check(scene.history)
    assert caught.value.verdict.broken == {"lost": 1}
    assert caught.value.verdict.problems[0].lines == ("1", "2")
    assert not caught.value.verdict.ok


def test_rules_are_chosen_and_left_out() -> None:
    scene = Scene()
    a_later_message_comes_first(scene)
    scene.posted("3")
    assert set(examine(scene.history).broken) == {"order", "lost"}
    assert set(examine(scene.history, without=["order"]).broken) == {"lost"}
    assert set(examine(scene.history, rules=["order", "once"]).broken) == {"order"}
    assert set(DEFAULT_RULES) == set(RULES) - {"key-order", "one-owner", "one-at-a-time", "late"}
    with pytest.raises(bmq.UsageError, match="within=SECONDS"):
        check(scene.history, rules=["late"])
    with pytest.raises(bmq.UsageError, match="lsot"):
        check(scene.history, rules=["lsot"])


def test_unnamed_queues_are_not_checked() -> None:
    scene = Scene()
    scene.posted("1")
    scene.posted("2", queue="bmq://d/other")
    scene.received("2", queue="bmq://d/other")
    assert examine(scene.history, queues=["bmq://d/other"]).ok
    assert set(examine(scene.history, queues=[QUEUE]).broken) == {"lost"}


def test_duplicates_are_counted_by_their_cause() -> None:
    scene = Scene()
    scene.posted("1", "2", "3")
    scene.received("1")
    scene.received("1", connection="0.1")
    scene.deliver("2", connection="0.1")
    scene.received("2", connection="0.2")
    scene.deliver("3")
    scene.received("3", by="b")
    verdict = examine(scene.history)
    assert verdict.duplicates == {"confirmed here": 1, "in hand": 1, "other process": 1}
    assert (verdict.posted, verdict.acknowledged, verdict.delivered, verdict.confirmed) == (3, 3, 6, 4)
    assert verdict.processes == 3


def many(count: int, checker: Checker) -> None:
    """Record posts, acknowledgements, deliveries and confirmations, ten messages at a time."""
    line = 0

    def read(op: str, kind: str, process: str, number: int, **fields: Any) -> None:
        nonlocal line
        line += 1
        event = {"at": line, "process": process, "op": op, "type": kind, "message": f"{number:032X}"}
        checker.read("", line, {**event, "queue": QUEUE, **fields})

    for first in range(0, count, 10):
        for number in range(first, first + 10):
            read("post", "invoke", "p", number, key=str(number % 7))
        for number in range(first, first + 10):
            read("post", "ok", "p", number)
            read("deliver", "ok", "a", number, connection="0.0", consumer=0)
        for number in range(first, first + 10):
            read("confirm", "ok", "a", number, connection="0.0")


def test_time_is_linear_in_the_number_of_events() -> None:
    def calls(count: int) -> int:
        checker = Checker(rules=[rule for rule in RULES if rule != "late"])
        profile = cProfile.Profile()
        profile.runcall(many, count, checker)
        return sum(entry.callcount for entry in profile.getstats())

    assert calls(4000) <= 4.01 * calls(1000)


def test_the_memory_of_a_finished_message_is_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.testing._checker._RECENT", 100)
    checker = Checker(rules=list(DEFAULT_RULES))
    many(5000, checker)
    assert len(checker._open) == 0
    assert len(checker._recent) == 100
    assert len(checker._ended) == 4900
    assert checker.pending == 0
    # A second delivery long after the confirmation is a duplicate, not an unknown message.
    late = {"at": 0, "process": "a", "op": "deliver", "type": "ok", "queue": QUEUE, "message": f"{3:032X}"}
    checker.read("", 0, late)
    verdict = checker.verdict()
    assert set(verdict.broken) == {"unfinished"}
    assert sum(verdict.duplicates.values()) == 1


def test_late_application_misses_ended_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.testing._checker._RECENT", 10)
    checker = Checker()
    for number in range(50):
        for process, op, kind, uri in (
            ("p", "post", "invoke", QUEUE),
            ("p", "post", "ok", QUEUE),
            ("a", "deliver", "ok", f"{QUEUE}?id=foo"),
            ("a", "confirm", "ok", f"{QUEUE}?id=foo"),
        ):
            event = {
                "at": 0,
                "process": process,
                "op": op,
                "type": kind,
                "queue": uri,
                "message": str(number),
            }
            checker.read("", 1, event)
    late = {
        "at": 0,
        "process": "b",
        "op": "deliver",
        "type": "ok",
        "queue": f"{QUEUE}?id=bar",
        "message": "49",
    }
    checker.read("", 1, late)
    checker.read("", 1, {**late, "op": "confirm"})
    assert checker.verdict().broken == {"lost": 49}


def test_an_event_without_its_fields_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"at": 1, "process": "p", "op": "post", "type": "invoke", "queue": "bmq://d/q"}\n')
    with pytest.raises(bmq.UsageError, match=r"line 1 of bad.jsonl: post has no valid field: 'message'"):
        check(path)
    path.write_text('\n{"at": 1, "process": "p"}\n')
    with pytest.raises(bmq.UsageError, match=r"line 2 of bad.jsonl is not an event"):
        check(path)


def test_the_page_about_histories_lists_every_rule() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "simulation.md").read_text(encoding="utf-8")
    assert "\n<!-- generated: rules -->\n" in page.partition("{#history}")[2]
