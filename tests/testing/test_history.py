# SPDX-License-Identifier: Apache-2.0
"""The history of a running program, and its remains after a kill."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import bmq
from bmq.broker import Broker
from bmq.testing import FaultProxy, History, check, examine
from tests.waiting import eventually

Connect = Callable[..., Awaitable[bmq.Session]]


async def test_two_lines_record_posts_deliveries_and_confirmations(
    bmq_connect: Connect, bmq_queue_uri: str, tmp_path: Path
) -> None:
    history = History(tmp_path / "orders.jsonl", key="CustomerId")
    shop, desk = history.process("shop"), history.process("desk")
    producer = await bmq_connect(interceptors=[shop], on_event=shop.on_event)
    consumer = await bmq_connect(interceptors=[desk], on_event=desk.on_event)
    queue = await producer.open_queue(bmq_queue_uri, write=True)
    orders = await consumer.open_queue(bmq_queue_uri, read=True)
    ack = await queue.post(b"one coffee", properties={"CustomerId": 7})
    await queue.post_many([b"two", b"three"])
    assert history.pending() == 3
    for _ in range(3):
        async with await orders.receive(timeout=10):
            pass
    assert history.pending() == 0
    shop.statistics(producer)
    desk.statistics(consumer)
    shop.close()
    verdict = check(history)
    assert (verdict.posted, verdict.acknowledged, verdict.delivered, verdict.confirmed) == (3, 3, 3, 3)
    assert check(tmp_path / "orders.jsonl") == verdict
    first = list(history.events(message=ack.guid))
    assert {(event["process"], event["op"], event["type"]) for event in first} == {
        ("shop", "post", "invoke"),
        ("shop", "post", "ok"),
        ("desk", "deliver", "ok"),
        ("desk", "confirm", "ok"),
    }
    assert [event.get("key") for event in first if event["type"] == "invoke"] == ["7"]


async def test_outcomes_are_ok_fail_or_unknown(
    bmq_broker: Broker, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    history = History()
    shop = history.process("shop")
    session = await bmq_connect(interceptors=[shop])
    queue = await session.open_queue(bmq_queue_uri, write=True)
    for status in (bmq.AckStatus.LIMIT_MESSAGES, bmq.AckStatus.UNKNOWN):
        bmq_broker.faults.nack(status, count=1)
        with pytest.raises(bmq.PostError):
            await queue.post(b"x")
    with pytest.raises(bmq.UsageError):
        await queue.post(b"")
    outcomes = [event for event in history.events(op="post") if event["type"] != "invoke"]
    assert [event["type"] for event in outcomes][:2] == ["fail", "unknown"]
    assert [event.get("status") for event in outcomes][:2] == ["LIMIT_MESSAGES", "UNKNOWN"]
    shop.statistics(session)
    verdict = check(history)
    assert verdict.refused == {"LIMIT_MESSAGES": 1, "UNKNOWN": 1}
    assert verdict.posted == 2


async def test_lost_connection_starts_a_new_order(
    bmq_proxy: FaultProxy, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    history = History()
    both = history.process("both")
    session = await bmq_connect(interceptors=[both], on_event=both.on_event)
    queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
    await queue.post(b"1")
    first = await queue.receive(timeout=10)
    bmq_proxy.cut()
    again = await queue.receive(timeout=10)
    again.confirm()
    first.confirm()
    assert [event["connection"] for event in history.events(op="deliver")] == ["0.0", "0.1"]
    assert [event.get("stale") for event in history.events(op="confirm")] == [None, True]
    assert len(list(history.events(op="connection", type="fail"))) == 1
    assert check(history).duplicates == {"in hand": 1}


async def test_handlers_retries_dead_letters_and_replies_are_followed(
    bmq_broker: Broker, bmq_connect: Connect, bmq_new_queue_uri: Callable[..., str]
) -> None:
    history = History()
    shop, desk = history.process("shop"), history.process("desk")
    work, dead, asked = bmq_new_queue_uri(), bmq_new_queue_uri(), bmq_new_queue_uri()
    history.applications(dead, [])
    app = bmq.App(bmq_broker.uri, interceptors=[desk], on_event=desk.on_event)

    @app.consumer(work, retry=bmq.Backoff(0.01, retries=2, durable=True, then=bmq.DeadLetter(dead)))
    async def handle(message: bmq.Message) -> None:
        if message.data == b"never" or "bmq_attempts" not in message.properties:
            raise OSError("not now")

    @app.responder(asked)
    async def answer(message: bmq.Message) -> bytes:
        if message.data == b"no":
            raise ValueError("no")
        return message.data

    session = await bmq_connect(interceptors=[shop])
    queue = await session.open_queue(work, write=True)
    requests = await session.open_queue(asked, write=True)
    async with app:
        assert (await requests.request(b"yes", timeout=10)).data == b"yes"
        with pytest.raises(bmq.RequestFailed):
            await requests.request(b"no", timeout=10)
        await queue.post_many([b"never", b"later", b"later"])
        await eventually(lambda: not history.pending(), 20)
    verdict = check(history, within=30)
    assert verdict.handled == {"fail": 5, "ok": 4}
    posts = list(history.events(op="post", type="invoke"))
    assert [sum(field in event for event in posts) for field in ("letter", "request")] == [1, 2]


async def test_the_buckets_of_a_group_are_recorded(bmq_connect: Connect, bmq_queue_uri: str) -> None:
    history = History(key="k")
    member = history.process("member")
    session = await bmq_connect(interceptors=[member], on_event=member.on_event)
    queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
    async with queue.group("k", buckets=4, on_event=member.on_event) as group:
        await queue.post(b"x", properties={"k": 6})
        async for message in group:
            message.confirm()
            break
    kinds = sorted((event["event"], event["type"], event["bucket"]) for event in history.events(op="assign"))
    assert kinds == [
        *(("Gained", "ok", bucket) for bucket in range(4)),
        *(("Lost", "fail", bucket) for bucket in range(4)),
    ]
    check(history, rules=["key-order", "one-owner", "lost", "unfinished"])


def test_effects_are_recorded_with_their_end() -> None:
    history = History()
    desk = history.process("desk")
    with desk.effect("charge 1"):
        pass
    with pytest.raises(ConnectionError), desk.effect("charge 2"):
        raise ConnectionError
    with pytest.raises(asyncio.CancelledError), desk.effect("charge 3"):
        raise asyncio.CancelledError
    kinds = [(event["name"][-1], event["type"]) for event in history.events(op="effect")]
    assert kinds == [
        ("1", "invoke"),
        ("1", "ok"),
        ("2", "invoke"),
        ("2", "fail"),
        ("3", "invoke"),
        ("3", "unknown"),
    ]
    assert check(history).ok


_KILLED = """
import os, signal, sys
from bmq.testing import History
desk = History(sys.argv[1]).process("desk")
with desk.effect("charge 1"):
    pass
with desk.effect("charge 2"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_program_keeps_every_recorded_event(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    done = subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False)
    assert done.returncode < 0
    kinds = [(event["op"], event["type"]) for event in map(json.loads, path.read_text().splitlines())]
    assert kinds == [("process", "invoke"), ("effect", "invoke"), ("effect", "ok"), ("effect", "invoke")]


def test_a_torn_line_is_skipped_and_continued_on_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with History(path) as history, history.process("desk").effect("charge 1"):
        pass
    with path.open("ab") as file:
        file.write(b'{"at":1,"process":"de')
    with History(path) as history, history.process("desk").effect("charge 1"):
        pass
    verdict = examine(path)
    assert verdict.torn == ("history.jsonl:4",)
    assert verdict.broken == {"once": 1}
    assert verdict.problems[0].lines == ("history.jsonl:3", "history.jsonl:7")


def test_histories_of_several_processes_are_merged_by_time(tmp_path: Path) -> None:
    names = ("shop", "desk")
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1
        return now

    shop, desk = (History(tmp_path / name, clock=clock) for name in names)
    where = {"queue": "bmq://d/q", "message": "1"}
    shop.record("shop", "post", "invoke", **where)
    shop.record("shop", "post", "ok", **where)
    desk.record("desk", "deliver", "ok", connection="0.0", **where)
    shop.record("shop", "post", "invoke", queue="bmq://d/q", message="2")
    desk.record("desk", "confirm", "ok", **where)
    verdict = examine([tmp_path / name for name in reversed(names)])
    assert verdict.broken == {"outcome": 1}
    assert verdict.problems[0].lines == ("shop:3",)


def test_a_field_that_is_no_json_is_refused() -> None:
    with pytest.raises(bmq.UsageError, match="a field of charge is not a JSON value"):
        History().record("desk", "charge", "ok", amounts={1: 2})
    with pytest.raises(bmq.UsageError, match="info"):
        History().record("desk", "charge", "info")  # type: ignore[arg-type]
