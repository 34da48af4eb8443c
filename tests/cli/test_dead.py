# SPDX-License-Identifier: Apache-2.0
"""Dead letters on the command line: list, look, put back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import bmq
from tests.cli.conftest import Aside, Bmq
from tests.sweeps import sweep

NewUri = Callable[..., str]


@pytest.fixture
def letters(aside: Aside, bmq_new_queue_uri: NewUri) -> tuple[str, str]:
    """Two dead letters: their original queue, and their present queue."""
    uri, dead = bmq_new_queue_uri(), bmq_new_queue_uri()

    async def die() -> None:
        queue = await aside.session.open_queue(uri, read=True, write=True, default_subscription=False)
        letters = await aside.session.open_queue(dead, write=True)
        await queue.post(b"one\nline two", properties={f"p{n}": n for n in range(254)})
        await queue.post(b"\xfftwo", properties={"CustomerId": bmq.PropertyValue(bmq.PropertyType.SHORT, 7)})
        died = asyncio.Event()

        async def fail(message: bmq.Message) -> None:
            if b"two" in message.data and not message.data.startswith(b"one"):
                asyncio.get_running_loop().call_later(0.2, died.set)
            raise ValueError("no \x1b[31m address")

        retry = bmq.NoRetry(bmq.DeadLetter(letters))
        task = asyncio.create_task(bmq.consume(queue, fail, retry=retry))
        await asyncio.wait_for(died.wait(), 30)
        task.cancel()
        await asyncio.wait([task])
        await letters.flush()
        await queue.close()
        await letters.close()

    aside.do(die())
    return uri, dead


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

    async def fail(message: bmq.Message) -> None:
        raise ValueError("still no address")

    async def start() -> asyncio.Task[None]:
        queue = await aside.session.open_queue(uri, read=True)
        retry = bmq.NoRetry(bmq.DeadLetter(await aside.session.open_queue(dead, write=True)))
        return asyncio.create_task(bmq.consume(queue, fail, retry=retry))

    task = aside.do(start())
    ran = run("dead", dead, "--all", "--back")
    aside.loop.call_soon_threadsafe(task.cancel)
    assert ran.status == 1
    assert len(ran.lines) == 2
    assert "2 dead letters put back" in ran.err
    assert "2 came back, and stay: the handler still fails" in ran.err
    assert [letter["properties"]["bmq_dead_error"] for letter in run("dead", dead, "--json").json] == [
        "ValueError: still no address"
    ] * 2


@sweep("wrong", [["--back"], ["--all"], ["A" * 32, "--all", "--back"], ["--to", "bmq://d/q"]])
def test_wrong_arguments_are_refused(offline: Bmq, wrong: list[str]) -> None:
    assert offline("dead", "bmq://d/q", *wrong).status == 2


def test_other_messages_are_not_listed_as_dead_letters(run: Bmq, bmq_queue_uri: str) -> None:
    run("post", bmq_queue_uri, "one", "two")
    ran = run("dead", bmq_queue_uri, "--idle", "0.2")
    assert "2 messages, none of them dead letters" in ran.err
    assert "return to the queue" in ran.err
