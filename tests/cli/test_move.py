# SPDX-License-Identifier: Apache-2.0
"""``bmq move``: nothing is lost, nothing appears twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import bmq
from bmq.broker import DomainConfig, Limits, Mode
from bmq.testing import BackgroundBroker
from tests.cli.conftest import Bmq, Ran

DOMAIN = "bmq.test.mem.priority"
A, B = f"bmq://{DOMAIN}/a", f"bmq://{DOMAIN}/b"


@pytest.fixture(scope="module")
def shared() -> Iterator[BackgroundBroker]:
    with BackgroundBroker() as broker:
        yield broker


@pytest.fixture
def broker(shared: BackgroundBroker) -> Iterator[BackgroundBroker]:
    yield shared
    for queue in (A, B):
        drained(shared.uri, queue)


@pytest.fixture
def run(broker: BackgroundBroker, offline: Bmq) -> Bmq:
    return lambda *words: offline("move", *words, "--idle", "0.1", "--broker", broker.uri)


def posted(uri: str, queue: str, count: int) -> None:
    with bmq.blocking.connect(uri) as session, session.open_queue(queue, write=True) as opened:
        opened.post_many(
            [
                bmq.PutMessage(f"{n}".encode(), {"n": n, "kind": "even" if n % 2 == 0 else "odd"})
                for n in range(count)
            ]
        ).raise_for_failures()


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


def test_all_messages_move_in_order(run: Bmq, broker: BackgroundBroker) -> None:
    posted(broker.uri, A, 600)
    ran = run(A, B)
    assert ran.status == 0
    assert ran.out.startswith("600 messages moved (")
    assert drained(broker.uri, A) == []
    assert drained(broker.uri, B) == [b"%d" % n for n in range(600)]


def test_expression_limit_and_rate(run: Bmq, broker: BackgroundBroker) -> None:
    posted(broker.uri, A, 20)
    ran = run(A, B, "--where", 'kind == "odd"', "--limit", "4", "--rate", "1000", "--json")
    assert [{k: v for k, v in each.items() if k != "seconds"} for each in ran.json] == [
        {"source": A, "destination": B, "moved": 4, "bytes": 4, "failed": 0}
    ]
    assert drained(broker.uri, B) == [b"1", b"3", b"5", b"7"]
    assert len(drained(broker.uri, A)) == 16


def test_repetition_is_dropped_and_a_move_back_is_not(
    run: Bmq, broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted(broker.uri, A, 5)
    with monkeypatch.context() as patch:
        # As after a death between the acknowledgement and the confirmation.
        patch.setattr(bmq.Message, "confirm", lambda self: None)
        run(A, B)
    assert run(A, B).out.startswith("5 messages moved")
    assert run(B, A).out.startswith("5 messages moved")
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


def test_move_to_another_broker(run: Bmq, broker: BackgroundBroker) -> None:
    posted(broker.uri, A, 5)
    with BackgroundBroker() as other:
        assert run(A, A, "--to-broker", other.uri).status == 0
        assert len(drained(other.uri, A)) == 5
    assert drained(broker.uri, A) == []
    assert run(A, A, "--to-broker", "tcp://127.0.0.1:1", "--timeout", "0.3").status == 3


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        ([A, A], 2, "the same queue"),
        ([A, f"{B}?id=foo"], 2, "without ?id="),
        ([A, "nothing"], 2, "bmq://"),
        (["", B], 2, "bmq://"),
        ([A, B, "--where", "x =="], 2, "x =="),
        ([A, B, "--limit", "0"], 2, "limit"),
        ([A, B, "--rate", "0"], 2, "rate"),
        ([A, B, "--rate", "nan"], 2, "rate"),
        ([A, B, "--to-broker", "nobody"], 2, "nobody"),
        ([A, "bmq://no.such.domain/q"], 4, "no.such.domain"),
        (["tcp://127.0.0.1:1", B], 2, "is a broker, not a queue"),
    ],
)
def test_odd_values(run: Bmq, words: list[str], status: int, error: str) -> None:
    ran: Ran = run(*words)
    assert (ran.status, ran.out) == (status, "")
    assert error in ran.err
