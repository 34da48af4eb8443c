# SPDX-License-Identifier: Apache-2.0
"""A TAB asks the broker for queues, domains and applications; without an answer it is silent and quick."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable, Iterator

import pytest

import bmq
from bmq.cli import completion, main
from bmq.testing import BackgroundBroker
from tests.cli.conftest import Bmq
from tests.sweeps import sweep

ORDERS = "bmq://bmq.test.mem.priority/orders"
OTHER = "bmq://bmq.test.mem.priority/other"
FANOUT = "bmq://bmq.test.mem.fanout/orders"
NOWHERE = "tcp://127.0.0.1:1"

Tab = Callable[..., list[str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with BackgroundBroker() as broker, bmq.blocking.connect(broker.uri) as session:
        for uri in (ORDERS, FANOUT, OTHER):
            session.open_queue(uri, write=True).post(b"1")
        yield broker.uri


@pytest.fixture
def tab(broker: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tab:
    """Return the candidates for the end of a line."""

    def tab(line: str, uri: str = broker, shell: str = "bash") -> list[str]:
        # bash cuts a line at blanks, and around colons and equals signs.
        words = [word for part in line.split(" ") for word in re.findall(r"[:=]+|[^:=]+", part) or [""]]
        of_bash = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        of_fish = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        with monkeypatch.context() as patch:
            patch.setenv("_BMQ_COMPLETE", f"complete_{shell}")
            patch.setenv("BMQ_BROKER_URI", uri)
            patch.setattr(sys, "stdin", sys.stdin)  # the command replaces it
            for name, value in (of_bash if shell == "bash" else of_fish).items():
                patch.setenv(name, value)
            capsys.readouterr()
            main([])
        said = capsys.readouterr()
        assert said.err == ""
        return said.out.split()

    return tab


@sweep("shell", ["bash", "fish"])
@sweep(
    "line, candidates",
    [
        ("bmq tail bmq://bmq.test.mem.pri", [ORDERS, OTHER]),
        ("bmq tail bmq://bmq.test.mem.priority/or", [ORDERS]),
        ("bmq tail bm", [FANOUT, ORDERS, OTHER]),
        (f"bmq tail {FANOUT}?", [f"{FANOUT}?id={app}" for app in ("bar", "baz", "foo")]),
        (f"bmq peek {FANOUT}?id=b", [f"{FANOUT}?id=bar", f"{FANOUT}?id=baz"]),
        ("bmq post bmq://bmq.test.mem.fan", [FANOUT]),
        ("bmq queues bmq.test.mem.f", ["bmq.test.mem.fanout"]),
        ("bmq purge bmq.test.mem.f", ["bmq.test.mem.fanout"]),
        ("bmq purge bmq://bmq.test.mem.f", [FANOUT]),
        ("bmq tail nothing", []),
    ],
)
def test_a_tab_completes_names_that_the_broker_has(
    tab: Tab, line: str, candidates: list[str], shell: str
) -> None:
    found = tab(line, shell=shell)
    if shell == "bash":  # bash puts a candidate in place of the part behind the last colon or equals sign
        word = line.rpartition(" ")[2]
        kept = word[: max(word.rfind(":"), word.rfind("=")) + 1]
        found = [kept + each for each in found]
    # Typer lets fish complete nothing as files.
    assert [each for each in found if not each.startswith("nothing")] == candidates


CLUSTER = "bmq admin CLUSTERS CLUSTER local"


@sweep(
    "line, candidates",
    [
        ("bmq admin do", ["domains"]),
        ("bmq admin domains R", ["RECONFIGURE", "REMOVE", "RESOLVER"]),
        ("bmq admin DOMAINS DOMAIN bmq.test.mem.f", ["bmq.test.mem.fanout"]),
        ("bmq admin DOMAINS DOMAIN bmq.test.mem.priority QUEUE ", ["orders", "other"]),
        ("bmq admin DOMAINS DOMAIN bmq.test.mem.fanout QUEUE orders PURGE b", ["bar", "baz"]),
        ("bmq admin ENCODING TEXT CLUSTERS CLUSTER ", ["local"]),
        (f"{CLUSTER} STORAGE PARTITION ", ["0"]),
        (f"{CLUSTER} STORAGE PARTITION 0 ", ["DISABLE", "ENABLE", "ROLLOVER", "SUMMARY"]),
        (f"{CLUSTER} STATE ELECTOR SET ", []),
        (f"{CLUSTER} STATE ELECTOR SET QUORUM ", []),
        ("bmq admin NOTHING ", []),
    ],
)
def test_a_tab_completes_admin_commands_and_their_names(tab: Tab, line: str, candidates: list[str]) -> None:
    assert tab(line) == candidates


@sweep("uri", [NOWHERE, "tcp://", "nowhere", "name"])
def test_without_a_broker_a_tab_completes_verbs_alone(tab: Tab, uri: str) -> None:
    assert tab("bmq ta", uri) == ["tail"]
    assert tab("bmq tail bmq://", uri) == []


def test_silent_broker_does_not_delay_the_call(tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert tab("bmq tail bmq://", f"tcp://127.0.0.1:{silent.getsockname()[1]}") == []


def test_context_of_the_line_is_asked_and_completed(tab: Tab, offline: Bmq, broker: str) -> None:
    offline("contexts", "add", "here", broker)
    assert tab("bmq tail --context h", NOWHERE) == ["here"]
    assert tab("bmq contexts use h", NOWHERE) == ["here"]
    line = "bmq tail --context here bmq://bmq.test.mem.f"
    assert tab(line, NOWHERE) == [FANOUT.removeprefix("bmq:")]


def test_no_password_is_asked_for(tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BMQ_USER", "somebody")
    assert tab("bmq tail bmq://") == []


def test_names_that_a_shell_would_split_are_no_candidates(tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hostile(_: bmq.admin.Admin) -> list[str]:
        return [f"bmq://d/{name}" for name in ("$(id)", "`id`", "a\nb", "a b", "'", "good")]

    monkeypatch.setattr(bmq.admin.Admin, "queues", hostile)
    assert tab("bmq tail bmq://d") == ["//d/good"]
