# SPDX-License-Identifier: Apache-2.0
"""bmq dead and bmq move: nothing is lost, nothing appears twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import bmq
from bmq.broker import DomainConfig, Limits, Mode
from bmq.testing import BackgroundBroker
from tests.cli.conftest import Aside, Bmq
from tests.integration.steps import NewUri
from tests.waiting import eventually


@pytest.fixture
def letters(aside: Aside, bmq_new_queue_uri: NewUri) -> tuple[str, str]:
    """Two dead letters: their original queue, and their present queue."""
    uri, dead = bmq_new_queue_uri(), bmq_new_queue_uri()

    async def die() -> None:
        queue = await aside.session.open_queue(uri, read=True, write=True, default_subscription=False)
        letters = await aside.session.open_queue(dead, write=True)
        await queue.post(b"one\nline two", properties={f"p{n}": n for n in range(254)})
        await queue.post(b"\xfftwo", properties={"CustomerId": bmq.PropertyValue(bmq.PropertyType.SHORT, 7)})
        task = asyncio.create_task(_consume(queue, letters, "no \x1b[31m address"))
        await eventually(lambda: letters.stats().acknowledged == 2)
        await eventually(lambda: queue.stats().confirmed == 2)
        task.cancel()
        await asyncio.wait([task])
        await queue.close()
        await letters.close()

    aside.do(die())
    return uri, dead


async def _consume(queue: bmq.Queue, letters: bmq.Queue, error: str) -> None:
    """Fail each message, which makes it a dead letter."""

    async def fail(message: bmq.Message) -> None:
        raise ValueError(error)

    await bmq.consume(queue, fail, retry=bmq.NoRetry(bmq.DeadLetter(letters)))


def test_dead_lists_and_shows_letters(run: Bmq, letters: tuple[str, str]) -> None:
    uri, dead = letters
    ran = run("dead", dead)
    assert ran.status == 0
    assert ran.out.count(uri) == 2
    assert ran.out.count("ValueError: no \\x1b[31m address") == 2
    assert "2 dead letters" in ran.err
    one, two = (letter["guid"] for letter in run("dead", dead, "--json").json)
    ran = run("dead", dead, two)
    assert "has         CustomerId=7" in ran.out
    assert ran.out.endswith("\\xfftwo\n")
    assert run("dead", dead, one.lower()).out.endswith("one\nline two\n")
    assert run("dead", dead, "0" * 32).status == 1


def test_dead_returns_one_letter_or_all(run: Bmq, letters: tuple[str, str]) -> None:
    uri, dead = letters
    found = run("dead", dead, "--json").json
    one, two = (letter["guid"] for letter in found)
    first = found[1]["properties"]["bmq_dead_guid"]
    assert run("dead", dead, two, "--back").lines == [f"{two}  {uri}"]
    (back,) = run("tail", uri, "--json").json
    assert (back["properties"], back["types"]) == (
        {"CustomerId": 7, "bmq_origin": first},
        {"CustomerId": "short", "bmq_origin": "string"},
    )
    assert [letter["guid"] for letter in run("dead", dead, "--json").json] == [one]
    ran = run("dead", dead, "--all", "--back")
    assert "1 dead letter put back" in ran.err
    restored = run("tail", uri, "--json").json[-1]
    origin = found[0]["properties"]["bmq_dead_guid"]
    assert restored["properties"] == {**{f"p{n}": n for n in range(254)}, "bmq_origin": origin}
    assert restored["data"] == "one\nline two"
    assert run("dead", dead).out == ""


def test_letters_that_cannot_be_put_back_stay(run: Bmq, bmq_new_queue_uri: NewUri) -> None:
    dead, other = bmq_new_queue_uri(), bmq_new_queue_uri()
    run("post", dead, "alive")
    run("post", dead, "x", "-p", f"bmq_dead_queue={bmq_new_queue_uri('bmq.test.mem.fanout')}?id=foo")
    ran = run("dead", dead, "--all", "--back")
    assert ran.status == 1
    assert "is not a dead letter" in ran.err
    assert "would reach all applications" in ran.err
    ran = run("dead", dead, "--all", "--back", "--to", other)
    assert "1 dead letter put back, 1 not" in ran.err
    assert run("tail", other, "--fields", "data").lines == ["x"]


def test_letters_that_come_back_end_the_command(run: Bmq, aside: Aside, letters: tuple[str, str]) -> None:
    uri, dead = letters

    async def start() -> asyncio.Task[None]:
        queue = await aside.session.open_queue(uri, read=True)
        again = await aside.session.open_queue(dead, write=True)
        return asyncio.create_task(_consume(queue, again, "still no address"))

    task = aside.do(start())
    ran = run("dead", dead, "--all", "--back")
    aside.loop.call_soon_threadsafe(task.cancel)
    assert (ran.status, len(ran.lines)) == (1, 2)
    assert "2 dead letters put back" in ran.err
    assert "2 came back, and stay: the handler still fails" in ran.err
    assert [letter["properties"]["bmq_dead_error"] for letter in run("dead", dead, "--json").json] == [
        "ValueError: still no address"
    ] * 2


def test_other_messages_are_not_listed_as_dead_letters(run: Bmq, bmq_queue_uri: str) -> None:
    run("post", bmq_queue_uri, "one", "two")
    ran = run("dead", bmq_queue_uri, "--idle", "0.2")
    assert "2 messages, none of them dead letters" in ran.err
    assert "return to the queue" in ran.err


# ---- move

DOMAIN = "bmq.test.mem.priority"
A, B = f"bmq://{DOMAIN}/a", f"bmq://{DOMAIN}/b"


@pytest.fixture
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker() as broker:
        yield broker


@pytest.fixture
def move(broker: BackgroundBroker, offline: Bmq) -> Bmq:
    return lambda *words: offline("move", *words, "--idle", "0.1", "--broker", broker.uri)


def posted(uri: str, queue: str, count: int) -> None:
    messages = [bmq.PutMessage(b"%d" % n, {"n": n, "kind": "odd" if n % 2 else "even"}) for n in range(count)]
    with bmq.blocking.connect(uri) as session, session.open_queue(queue, write=True) as opened:
        opened.post_many(messages).raise_for_failures()


def drained(uri: str, queue: str) -> list[bytes]:
    found: list[bytes] = []
    with bmq.blocking.connect(uri) as session, session.open_queue(queue, read=True) as opened:
        while True:
            try:
                batch = opened.receive_many(1000, 0.1)
            except TimeoutError:
                return found
            found += [message.data for message in batch]
            batch.confirm()


def test_all_messages_move_in_order(move: Bmq, broker: BackgroundBroker) -> None:
    posted(broker.uri, A, 600)
    ran = move(A, B)
    assert ran.status == 0
    assert ran.out.startswith("600 messages moved (")
    assert drained(broker.uri, A) == []
    assert drained(broker.uri, B) == [b"%d" % n for n in range(600)]


def test_expression_limit_and_rate(move: Bmq, broker: BackgroundBroker) -> None:
    posted(broker.uri, A, 20)
    ran = move(A, B, "--where", 'kind == "odd"', "--limit", "4", "--rate", "1000", "--json")
    assert [{k: v for k, v in each.items() if k != "seconds"} for each in ran.json] == [
        {"source": A, "destination": B, "moved": 4, "bytes": 4, "failed": 0}
    ]
    assert drained(broker.uri, B) == [b"1", b"3", b"5", b"7"]
    assert len(drained(broker.uri, A)) == 16


def test_repetition_is_dropped_and_a_move_back_is_not(
    move: Bmq, broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted(broker.uri, A, 5)
    with monkeypatch.context() as patch:
        # As after a death between the acknowledgement and the confirmation.
        patch.setattr(bmq.Message, "confirm", lambda self: None)
        move(A, B)
    assert move(A, B).out.startswith("5 messages moved")
    assert move(B, A).out.startswith("5 messages moved")
    assert drained(broker.uri, B) == []
    assert drained(broker.uri, A) == [b"%d" % n for n in range(5)]


def test_full_destination_keeps_messages_at_the_source(offline: Bmq) -> None:
    domains = [
        DomainConfig("full", Mode.PRIORITY, queue_limits=Limits(messages=3)),
        DomainConfig(DOMAIN, Mode.PRIORITY),
    ]
    with BackgroundBroker(domains=domains) as broker:
        posted(broker.uri, A, 10)
        ran = offline("move", A, "bmq://full/q", "--idle", "0.1", "--broker", broker.uri)
        assert ran.status == 1
        assert "no room for more messages" in ran.err
        moved = drained(broker.uri, "bmq://full/q")
        assert 3 <= len(moved) < 10
        assert [*moved, *drained(broker.uri, A)] == [b"%d" % n for n in range(10)]


def test_move_to_another_broker(move: Bmq, broker: BackgroundBroker) -> None:
    posted(broker.uri, A, 5)
    with BackgroundBroker() as other:
        assert move(A, A, "--to-broker", other.uri).status == 0
        assert len(drained(other.uri, A)) == 5
    assert drained(broker.uri, A) == []
    assert move(A, A, "--to-broker", "tcp://127.0.0.1:1", "--timeout", "0.3").status == 3
