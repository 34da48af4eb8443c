# SPDX-License-Identifier: Apache-2.0
"""A TAB asks the broker for queues, domains and applications; without an answer it is silent and quick."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

import bmq
from bmq.cli import completion, main
from bmq.testing import BackgroundBroker

ORDERS = "bmq://bmq.test.mem.priority/orders"
FANOUT = "bmq://bmq.test.mem.fanout/orders"


@pytest.fixture(scope="module")
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker() as broker, bmq.blocking.connect(broker.uri) as session:
        for uri in (ORDERS, FANOUT, "bmq://bmq.test.mem.priority/other"):
            session.open_queue(uri, write=True).post(b"1")
        yield broker


def bash_words(line: str) -> list[str]:
    """Cut a line as bash does: at blanks, and around colons and equals signs."""
    words: list[str] = []
    for part in line.split(" "):
        word = ""
        for letter in part:
            separator = letter in ":="
            if word and separator is not (word[-1] in ":="):
                words.append(word)
                word = ""
            word += letter
        words.append(word)
    return words


def tab(
    line: str,
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    shell: str = "bash",
) -> list[str]:
    """Return the candidates for the end of a line."""
    words = bash_words(line)
    for name in ("COMP_WORDS", "COMP_CWORD", "_TYPER_COMPLETE_ARGS"):
        monkeypatch.delenv(name, raising=False)
    if shell == "bash":
        monkeypatch.setenv("COMP_WORDS", " ".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    else:
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv("_BMQ_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("BMQ_BROKER_URI", uri)
    monkeypatch.setattr(sys, "stdin", sys.stdin)
    main([])
    said = capsys.readouterr()
    assert said.err == ""
    return said.out.split()


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("bmq tail bmq://bmq.test.mem.pri", [ORDERS, "bmq://bmq.test.mem.priority/other"]),
        ("bmq tail bmq://bmq.test.mem.priority/or", [ORDERS]),
        ("bmq tail bm", [FANOUT, ORDERS, "bmq://bmq.test.mem.priority/other"]),
        (f"bmq tail {FANOUT}?", [f"{FANOUT}?id={app}" for app in ("bar", "baz", "foo")]),
        (f"bmq peek {FANOUT}?id=b", [f"{FANOUT}?id=bar", f"{FANOUT}?id=baz"]),
        ("bmq post bmq://bmq.test.mem.fan", [FANOUT]),
        ("bmq queues bmq.test.mem.f", ["bmq.test.mem.fanout"]),
        ("bmq purge bmq.test.mem.f", ["bmq.test.mem.fanout"]),
        ("bmq purge bmq://bmq.test.mem.f", [FANOUT]),
        ("bmq tail nothing", []),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_tab_completes_names_that_the_broker_has(
    line: str,
    candidates: list[str],
    shell: str,
    broker: BackgroundBroker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = tab(line, broker.uri, monkeypatch, capsys, shell)
    if shell == "bash":  # bash puts a candidate in place of the part behind the last colon or equals sign
        word = line.rpartition(" ")[2]
        kept = word[: max(word.rfind(":"), word.rfind("=")) + 1]
        found = [kept + each for each in found]
    # Typer lets fish complete nothing as files.
    assert [each for each in found if not each.startswith("nothing")] == candidates


CLUSTER = "bmq admin CLUSTERS CLUSTER local"


@pytest.mark.parametrize(
    ("line", "candidates"),
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
def test_a_tab_completes_admin_commands_and_their_names(
    line: str,
    candidates: list[str],
    broker: BackgroundBroker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tab(line, broker.uri, monkeypatch, capsys) == candidates


def test_verbs_are_completed_without_a_broker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tab("bmq ta", "tcp://127.0.0.1:1", monkeypatch, capsys) == ["tail"]


@pytest.mark.parametrize("uri", ["tcp://127.0.0.1:1", "tcp://", "nowhere", ""])
def test_without_a_broker_a_tab_is_silent(
    uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere/at/all")
    assert tab("bmq tail bmq://", uri or "name", monkeypatch, capsys) == []


def test_silent_broker_does_not_delay_the_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(completion, "PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        assert tab("bmq tail bmq://", uri, monkeypatch, capsys) == []


def test_context_of_the_line_is_asked_and_completed(
    broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["contexts", "add", "here", broker.uri])
    capsys.readouterr()
    nowhere = "tcp://127.0.0.1:1"
    assert tab("bmq tail --context h", nowhere, monkeypatch, capsys) == ["here"]
    assert tab("bmq contexts use h", nowhere, monkeypatch, capsys) == ["here"]
    line = "bmq tail --context here bmq://bmq.test.mem.f"
    assert tab(line, nowhere, monkeypatch, capsys) == [FANOUT.removeprefix("bmq:")]


def test_no_password_is_asked_for(
    broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BMQ_USER", "somebody")
    monkeypatch.delenv("BMQ_PASSWORD", raising=False)
    assert tab("bmq tail bmq://", broker.uri, monkeypatch, capsys) == []


def test_names_that_a_shell_would_split_are_no_candidates(
    broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def hostile(_: bmq.admin.Admin) -> list[str]:
        return [
            "bmq://d/$(id)",
            "bmq://d/`id`",
            "bmq://d/a\nb",
            "bmq://d/a b",
            "bmq://d/'",
            "bmq://d/good",
        ]

    monkeypatch.setattr(bmq.admin.Admin, "queues", hostile)
    assert tab("bmq tail bmq://d", broker.uri, monkeypatch, capsys) == ["//d/good"]


def test_bash_itself_puts_the_candidate_in_place(broker: BackgroundBroker) -> None:
    """With the script of ``bmq --show-completion``, and words split by bash."""
    script = f"""
        bmq() {{ "{sys.executable}" -c 'import sys; from bmq.cli import main; sys.exit(main())' "$@"; }}
        COMP_WORDS=(bmq tail bmq : //bmq.test.mem.f)
        COMPREPLY=( $(COMP_WORDS="${{COMP_WORDS[*]}}" COMP_CWORD=4 _BMQ_COMPLETE=complete_bash bmq) )
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    told = subprocess.run(
        ["bash", "-c", script],
        capture_output=True, text=True, check=True, env=os.environ | {"BMQ_BROKER_URI": broker.uri},
    )  # fmt: skip
    assert told.stdout.split() == [FANOUT.removeprefix("bmq:")]
