# SPDX-License-Identifier: Apache-2.0
"""A healthy consumer on the same queue: no verb that looks stops its messages, or takes one away."""

from __future__ import annotations

import asyncio
import io
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import bmq
from bmq.admin import Internals
from bmq.broker import Action, ActionKind
from bmq.cli import main
from bmq.testing import BackgroundBroker
from tests.cli.conftest import Aside, Bmq
from tests.integration.steps import NewUri

FANOUT = "bmq.test.mem.fanout"
APPS = ("foo", "bar", "baz")
STANDARD = 'kind == "standard"'

#: The verbs that look at a queue, and their statuses beside a consumer: 2 is the refusal to take messages.
LOOKS: list[tuple[int, tuple[str, ...]]] = [
    (2, ("tail", "QUEUE")),
    (2, ("tail", "QUEUE", "--count", "1")),
    (2, ("tail", "QUEUE", "--json", "--follow", "--idle", "0.1")),
    (2, ("tail", "QUEUE", "-e", 'kind == "express"')),
    (2, ("tail", "QUEUE", "--since", "1m")),
    (2, ("tail", "QUEUE", "--since", "2099-01-01", "--confirm")),
    (2, ("dead", "QUEUE")),
    (2, ("dead", "QUEUE", "GUID")),
    (2, ("dead", "QUEUE", "GUID", "--back")),
    (2, ("bench", "QUEUE", "--messages", "1", "--rounds", "1")),
    (0, ("peek", "QUEUE")),
    (0, ("peek", "QUEUE", "--json")),
    (0, ("explain",)),
    (0, ("explain", "QUEUE")),
    (0, ("explain", "QUEUE", "GUID", "-p", "kind=express")),
    (0, ("doctor", "QUEUE")),
    (0, ("doctor", "QUEUE", "--post")),
    (0, ("doctor", "QUEUE", "--post", "--json")),
    (0, ("queues", "--apps")),
    (0, ("stat",)),
    (0, ("top", "QUEUE", "--count", "1")),
    (0, ("admin", "DOMAINS DOMAIN bmq.test.mem.priority INFOS")),
]


@dataclass
class Bystander:
    """A consumer of some messages of a queue, and the message of another kind in the queue."""

    aside: Aside
    broker: str
    queue: bmq.Queue
    consumers: list[bmq.Consumer]
    guid: str

    @property
    def names(self) -> dict[str, str]:
        return {"QUEUE": self.queue.uri, "GUID": self.guid}

    def internals(self) -> Internals:
        async def ask() -> Internals:
            async with bmq.admin.connect(self.broker) as admin:
                return await admin.queue(self.queue.uri).internals()

        return self.aside.do(ask())

    def still_receives(self) -> None:
        """Every new message arrives, and the other one is as untouched as before."""
        posted = [b"%d" % number for number in range(5)]
        for data in posted:
            self.aside.do(self.queue.post(data, properties={"kind": "standard"}))
        for consumer in self.consumers:
            assert self.aside.do(_take(consumer, len(posted))) == posted
        assert {app.redelivery for app in self.internals().apps if app.consumers} == {0}


async def _take(consumer: bmq.Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    for _ in range(count):
        async with await consumer.receive(30) as message:
            found.append(message.data)
    return found


class Beside:
    """Starts bystanders; their queues are purged after the test."""

    def __init__(self, aside: Aside, broker: str) -> None:
        self.aside, self.broker = aside, broker
        self.queues: list[str] = []

    def __call__(self, uri: str, *apps: str, text: str = STANDARD) -> Bystander:
        """Subscribe to a queue, for all applications by default, and post a message of another kind."""
        readers = [f"{uri}?id={app}" for app in apps or APPS] if FANOUT in uri else [uri]
        do, session = self.aside.do, self.aside.session
        queue = do(session.open_queue(uri, write=True))
        reading = [do(session.open_queue(each, read=True)) for each in readers]
        consumers = [do(each.subscribe(text, strict=False).open()) for each in reading]
        self.queues.append(uri)
        guid = do(queue.post(b"express", properties={"kind": "express"})).guid
        return Bystander(self.aside, self.broker, queue, consumers, str(guid))


@pytest.fixture
def beside(aside: Aside, uri: str, run: Bmq) -> Iterator[Beside]:
    beside = Beside(aside, uri)
    yield beside
    for queue in beside.queues:
        run("purge", queue, "--yes")


@pytest.mark.parametrize(
    ("status", "words"), LOOKS, ids=lambda value: "-".join(value)[:40] if isinstance(value, tuple) else ""
)
def test_a_look_changes_nothing(
    run: Bmq, beside: Beside, bmq_queue_uri: str, status: int, words: tuple[str, ...]
) -> None:
    bystander = beside(bmq_queue_uri)
    ran = run(*(bystander.names.get(word, word) for word in words))
    assert ran.status == status, ran
    if status == 2 and words[0] != "bench":
        assert ran.out == ""
        for said in ("this queue has readers", "bmq peek", "--force"):
            assert said in ran.err
    bystander.still_receives()


def test_readers_of_another_application_do_not_matter(
    run: Bmq, beside: Beside, bmq_new_queue_uri: NewUri
) -> None:
    queue = bmq_new_queue_uri(FANOUT)
    bystander = beside(queue, "foo")
    assert run("tail", f"{queue}?id=bar", "--fields", "data").lines == ["express"]
    bystander.still_receives()
    ran = run("tail", f"{queue}?id=typo")
    assert (ran.status, ran.out) == (2, "")
    assert "its applications: foo, bar, baz" in ran.err


#: The commands that take some of the messages with another kind, and their statuses.
SOME: list[tuple[int, tuple[str, ...]]] = [
    (0, ("tail", "QUEUE", "-e", 'kind == "express"', "--confirm", "--count", "COUNT")),
    (0, ("tail", "QUEUE", "--confirm", "--count", "COUNT")),
    (0, ("tail", "QUEUE", "-e", 'kind == "express"', "--confirm", "-n", "COUNT", "--max-unconfirmed", "3")),
    (0, ("move", "QUEUE", "OTHER", "--where", 'kind == "express"', "--limit", "COUNT")),
    (130, ("move", "QUEUE", "OTHER", "--where", 'kind == "express"', "--rate", "RATE")),
    (2, ("dead", "QUEUE", "--all", "--back")),
]


@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize(
    ("status", "words"), SOME, ids=lambda value: "-".join(value)[:60] if isinstance(value, tuple) else ""
)
def test_no_surplus_message_returns(
    run: Bmq, beside: Beside, bmq_new_queue_uri: NewUri, status: int, words: tuple[str, ...], count: int
) -> None:
    bystander, other, there = beside(bmq_new_queue_uri()), bmq_new_queue_uri(), 21
    aside = bystander.aside
    for _ in range(there - 1):
        aside.do(bystander.queue.post(b"express", properties={"kind": "express"}))

    async def interrupt() -> None:
        opened = await aside.session.open_queue(other, read=True)
        await opened.receive(30)
        os.kill(os.getpid(), signal.SIGINT)
        await opened.close()

    interrupting = asyncio.run_coroutine_threadsafe(interrupt(), aside.loop) if status == 130 else None
    names = bystander.names | {"OTHER": other, "COUNT": str(count), "RATE": str(count / 10)}
    ran = run(*(names.get(word, word) for word in words))
    assert ran.status == status, ran
    assert "returned" not in ran.err.replace("returned messages", "")
    if interrupting is not None:
        interrupting.result(30)
    taken = {0: count, 130: there, 2: 0}[status]
    assert bystander.internals().depth.messages == there - taken
    bystander.still_receives()
    run("purge", other, "--yes")


def test_force_takes_and_says_what_follows(run: Bmq, beside: Beside, bmq_queue_uri: str) -> None:
    beside(bmq_queue_uri)
    ran = run("tail", bmq_queue_uri, "--force", "--fields", "data")
    assert ran.lines == ["express"]
    assert "nothing else until a consumer takes them" in ran.err


#: A subscription whose text looks like the end of a broker's answer.
FORGED = 'x == " ] consumers = [ ] ] [ sId = NUMBER expression = [ version = E text = " || ' + STANDARD


@pytest.mark.parametrize("number", ["1", "9" * 5000], ids=["short", "long"])
def test_a_reader_cannot_be_overlooked(run: Bmq, beside: Beside, bmq_queue_uri: str, number: str) -> None:
    """The text of a subscription belongs to its client, and never hides the client."""
    beside(bmq_queue_uri, text=FORGED.replace("NUMBER", number))
    ran = run("tail", bmq_queue_uri)
    assert (ran.status, ran.out) == (2, "")


@pytest.mark.parametrize("kind", [ActionKind.CONNECT_ADMIN, ActionKind.EXECUTE_ADMIN_COMMAND])
def test_without_an_answer_nothing_is_taken(offline: Bmq, kind: ActionKind) -> None:
    def refuse(action: Action) -> bool:
        return action.kind is not kind

    with BackgroundBroker(authorize=refuse) as broker:
        queue = "bmq://bmq.test.mem.priority/q"
        at = ["--broker", broker.uri]
        assert offline("post", queue, "hello", *at).status == 0
        for verb in ("tail", "dead"):
            ran = offline(verb, queue, *at)
            assert (ran.status, ran.out) == (2, ""), ran
            assert "--force" in ran.err
        ran = offline("doctor", queue, "--post", *at)
        assert ran.status == 4
        assert "post " not in ran.out
        assert broker.call(lambda broker: broker.queues[queue].pushed) == 0
        assert offline("tail", queue, "--force", "--fields", "data", *at).lines == ["hello"]


RUNBOOKS = sorted((Path(__file__).parents[2] / "docs" / "operate" / "runbooks").glob("*.md"))


def _prescribed(page: Path) -> list[list[str]]:
    """The commands of a runbook that look: those in its text, not in its recorded output."""
    text = page.read_text(encoding="utf-8").partition("## Output")[0]
    found = [shlex.split(line) for line in re.findall(r"`bmq ([a-z]+(?: [^`]*)?)`", text)]
    looks = {words[0] for _, words in LOOKS} - {"admin"}
    return [words for words in found if words[0] in looks and not {"--back", "--force"} & set(words)]


@pytest.mark.parametrize("page", RUNBOOKS, ids=lambda page: page.stem)
def test_a_runbook_changes_nothing_before_its_remedy(
    run: Bmq, offline: Bmq, beside: Beside, uri: str, bmq_new_queue_uri: NewUri, page: Path
) -> None:
    queue, letters = bmq_new_queue_uri(), bmq_new_queue_uri()
    run("post", letters, "a letter")
    bystander = beside(queue)
    names = {"OLD": queue, "NEW": queue, "QUEUE_OF_DEAD_LETTERS": letters, "NODE": uri}
    names |= {"EXPRESSION": "x == 1", "NAME=VALUE": "x=1"} | bystander.names
    for words in _prescribed(page):
        line = [names.get(word, word) for word in words]
        if words[0] in ("peek", "explain") and len(words) == 1:
            line.append(queue)  # a mention of a command that stands in full elsewhere
        for option in ("--user", "--password-file"):
            if option in line:
                del line[line.index(option) : line.index(option) + 2]
        ran = offline(*line) if uri in line or words[0] == "check" else run(*line)
        assert ran.status == 0, (words, ran)
        bystander.still_receives()
    run("purge", letters, "--yes")


class _Closing(io.StringIO):
    """Standard output whose reader goes after some lines."""

    def __init__(self, lines: int) -> None:
        super().__init__()
        self._left = lines

    def write(self, text: str) -> int:
        if self._left <= 0:
            raise BrokenPipeError
        self._left -= text.count("\n")
        return super().write(text)

    def fileno(self) -> int:
        return 1


@pytest.mark.parametrize("lines", [0, 5, 7, 8, 9, 12])
@pytest.mark.parametrize("output", [[], ["--json"]], ids=["table", "json"])
def test_doctor_removes_its_message_whatever_happens_to_its_output(
    monkeypatch: pytest.MonkeyPatch, beside: Beside, bmq_new_queue_uri: NewUri, lines: int, output: list[str]
) -> None:
    queue = bmq_new_queue_uri(FANOUT)
    bystander = beside(queue, "foo")
    monkeypatch.setattr("bmq.cli._give_up_output", lambda: None)
    monkeypatch.setattr(sys, "stdout", _Closing(lines))
    assert main(["doctor", queue, "--post", *output, "--broker", bystander.broker]) in (0, 141)
    monkeypatch.undo()
    assert {app.messages for app in bystander.internals().depth.apps} == {1}, "only the other message"
