# SPDX-License-Identifier: Apache-2.0
"""bmq admin asks before a dangerous command, with the affected queues and messages."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest

import bmq
from bmq.testing import BackgroundBroker
from tests.cli.conftest import Bmq

DOMAIN = "bmq.test.mem.fanout"
URI = f"bmq://{DOMAIN}/dangerous"


class Terminal(io.StringIO):
    """A terminal that types an answer."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr("bmq.cli.output.has_terminal", lambda: True)
    return terminal


@pytest.fixture(scope="module")
def asked() -> Iterator[BackgroundBroker]:
    """A broker with two messages, for commands that are never executed."""
    with BackgroundBroker() as broker:
        with bmq.blocking.connect(broker.uri) as session:
            queue = session.open_queue(URI, write=True)
            queue.post(b"a")
            queue.post(b"b")
        yield broker


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (f"DOMAINS DOMAIN {DOMAIN} PURGE", ["all queues of the domain", "2 messages", f"{URI}: 2 messages"]),
        (f"domains domain {DOMAIN} queue dangerous purge foo", [f"{URI}?id=foo: 2 messages"]),
        (f"ENCODING TEXT DOMAINS DOMAIN {DOMAIN} QUEUE dangerous PURGE *", [f"{URI}: 2 messages, 2 B"]),
        (f"DOMAINS REMOVE {DOMAIN}", ["refuses clients", "1 queue, 2 messages"]),
        ("DOMAINS REMOVE no.such.domain", ["Domain 'no.such.domain' doesn't exist"]),
        (f"DOMAINS REMOVE {DOMAIN} FINALIZE", ["forgets the domain"]),
        ("CLUSTERS CLUSTER local STORAGE PARTITION 0 DISABLE", ["until ENABLE", f"{URI}: 2 messages"]),
        ("CLUSTERS CLUSTER local STORAGE PARTITION all ROLLOVER", ["new files", "1 queue"]),
        ("CLUSTERS CLUSTER local STORAGE PARTITION x DISABLE", ["until ENABLE", "the amounts are unknown"]),
        ("CLUSTERS CLUSTER local STATE ELECTOR SET QUORUM 3", ["the cluster has 1 node"]),
        ("CLUSTERS CLUSTER local STORAGE REPLICATION SET_ALL QUORUM 3", ["the cluster has 1 node"]),
        ('{"domains": {"remove": {"domain": "d"}}}', ["has members that delete"]),
        ("WIPE EVERYTHING", ["unknown to this bmq"]),
    ],
)
def test_a_dangerous_command_is_refused_without_a_terminal(
    offline: Bmq, asked: BackgroundBroker, command: str, shown: list[str]
) -> None:
    ran = offline("admin", command, "--broker", asked.uri)
    assert (ran.status, ran.out) == (2, "")
    assert "--yes is required without a terminal" in ran.err
    for each in shown:
        assert each in ran.err
    assert asked.call(lambda broker: sum(map(len, broker.queues.values()))) == 2


def test_only_yes_confirms(run: Bmq, typed: Terminal) -> None:
    run("post", URI, "a", "b")
    command = f"DOMAINS DOMAIN {DOMAIN} PURGE"
    for answer in ("", "\n", "n\n", "yess\n"):
        typed.seek(0)
        typed.truncate()
        typed.write(answer)
        typed.seek(0)
        ran = run("admin", command)
        assert (ran.status, ran.out) == (1, "")
        assert "Execute the command? [y/N]" in ran.err
    typed.seek(0)
    typed.write("yes\n")
    typed.seek(0)
    assert '"numMessagesPurged": 2' in run("admin", command).out
