# SPDX-License-Identifier: Apache-2.0
"""Contexts: which broker a command takes, and where its password is kept."""

from __future__ import annotations

import io
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from bmq.cli import target as context_file
from bmq.cli.output import BadInput
from bmq.cli.target import contexts_file, target_of
from bmq.cli.target import edit_contexts as edit
from bmq.cli.target import read_contexts as read
from bmq.testing import BackgroundBroker
from tests.cli.conftest import Bmq
from tests.sweeps import sweep

SECRET = "correct-horse"


class Keyring:
    """A keyring in memory, in place of the library's."""

    def __init__(self, priority: float = 5) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.priority = priority

    def get_keyring(self) -> Keyring:
        return self

    def set_password(self, service: str, user: str, password: str) -> None:
        self.kept[service, user] = password

    def get_password(self, service: str, user: str) -> str | None:
        return self.kept.get((service, user))

    def delete_password(self, service: str, user: str) -> None:
        del self.kept[service, user]


def locked(*_: str) -> str:
    raise RuntimeError("the collection is locked")


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch) -> Keyring:
    made = Keyring()
    monkeypatch.setitem(sys.modules, "keyring", made)
    return made


@pytest.fixture
def no_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", Keyring(priority=0))


def credentials(**options: str | None) -> str:
    found = target_of("test", options, timeout=1).credentials
    assert found is not None
    assert found.data is not None
    return found.data.decode()


# ---- which broker


NAMED = {"BMQ_CONTEXT": "b", "BMQ_BROKER_URI": "tcp://variable"}


@sweep(
    "options, variables, uri",
    [
        ({"broker": "tcp://option"}, NAMED, "tcp://option"),
        ({"context": "a"}, NAMED, "tcp://a"),
        ({"broker": "a"}, {}, "tcp://a"),
        ({}, NAMED, "tcp://b"),
        ({}, {"BMQ_BROKER_URI": "tcp://variable"}, "tcp://variable"),
        ({}, {}, "tcp://a"),
    ],
)
def test_precedence(
    offline: Bmq,
    options: dict[str, str],
    variables: dict[str, str],
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offline("contexts", "add", "a", "tcp://a", "--use", "--replace")
    offline("contexts", "add", "b", "tcp://b", "--replace")
    with monkeypatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        assert target_of("test", options, timeout=1).uri == uri
    offline("contexts", "use", "--none")
    assert target_of("test", {}, timeout=1).uri == "tcp://localhost:30114"


def test_context_with_a_default_domain_completes_queues(offline: Bmq) -> None:
    orders = "bmq://bmq.test.mem.priority/orders"
    with BackgroundBroker() as broker:
        offline("contexts", "add", "here", broker.uri, "--domain", "bmq.test.mem.priority", "--use")
        assert offline("post", "orders", "hello", "-q").status == 0
        assert [each["queue"] for each in offline("tail", "orders", "--json").json] == [orders]
        assert [each["uri"] for each in offline("queues", "--json").json] == [orders]
        assert offline("stat", "bmq.test.mem.priority").status == 0, "a domain stays a domain"
        ran = offline("doctor", "--json")
        assert (ran.status, [each["ok"] for each in ran.json]) == (0, [True] * 3)
    assert offline("doctor", "--context", "here", "--timeout", "2").status == 3


def test_address_of_doctor_gets_no_credentials_of_a_context(offline: Bmq, no_keyring: None) -> None:
    with BackgroundBroker() as broker:
        offline("contexts", "add", "here", "tcp://127.0.0.1:1", "--user", "ann", "--password-env", "NOTHING")
        offline("contexts", "use", "here")
        ran = offline("doctor", broker.uri)
    assert "without credentials" in ran.out


# ---- passwords


def test_password_goes_into_the_keyring(
    offline: Bmq, keyring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BMQ_PASSWORD", SECRET)
    ran = offline("contexts", "add", "prod", "tcps://a", "--user", "ann")
    monkeypatch.delenv("BMQ_PASSWORD")
    assert (ran.status, SECRET in ran.err + ran.out) == (0, False)
    assert keyring.kept == {("bmq:prod", "ann"): SECRET}
    assert SECRET not in contexts_file().read_text(encoding="utf-8")
    assert credentials(context="prod") == f"ann:{SECRET}"
    monkeypatch.setattr(keyring, "get_password", locked)
    monkeypatch.setattr(keyring, "delete_password", locked)
    with pytest.raises(BadInput, match=r"locked.*Unlock the keyring"):
        credentials(context="prod")
    ran = offline("contexts", "remove", "prod")
    assert (ran.status, "keeps the old password" in ran.err) == (1, True)
    assert read().entries == {}


def test_remove_and_replace_delete_the_password(
    offline: Bmq, keyring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BMQ_PASSWORD", SECRET)
    for status, more in ((0, ["--user", "ann"]), (2, []), (0, ["--user", "bob", "--replace"])):
        assert offline("contexts", "add", "a", "tcp://a", *more).status == status
    assert list(keyring.kept) == [("bmq:a", "bob")]
    offline("contexts", "remove", "a")
    assert keyring.kept == {}


def test_password_goes_into_the_private_file(
    offline: Bmq, no_keyring: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(SECRET + "\n"))
    ran = offline("contexts", "add", "prod", "tcp://a", "--user", "ann", "--password-stdin")
    assert "this system has no keyring" in ran.err
    assert credentials(context="prod") == f"ann:{SECRET}"
    if os.name != "nt":
        assert contexts_file().stat().st_mode & 0o777 == 0o600
    for words in (["list"], ["list", "--json"], ["show", "prod"]):
        ran = offline("contexts", *words)
        assert SECRET not in ran.out + ran.err
        assert "ann" in ran.out
    assert SECRET not in repr(read())
    assert SECRET not in repr(target_of("test", {"context": "prod"}, timeout=1))
    # Another user's session does not get this password.
    with pytest.raises(BadInput, match="no password for bob"):
        credentials(context="prod", user="bob")


@sweep("mode", [0o644, 0o620, 0o606])
def test_file_that_others_can_read_is_refused(offline: Bmq, mode: int) -> None:
    offline("contexts", "add", "a", "tcp://a")
    contexts_file().chmod(mode)
    for words in (["queues"], ["contexts", "list"], ["contexts", "add", "b", "tcp://b"]):
        ran = offline(*words)
        assert (ran.status, f"chmod 600 {contexts_file()}" in ran.err) == (2, True)
    assert target_of("test", {"broker": "tcp://x"}, timeout=1).uri == "tcp://x", "not needed, not read"


@sweep(
    "content",
    [
        "", "{", "[]", "null", '{"version": 2}', '{"version": 1, "contexts": []}', "\ufeff{}",
        '{"version": 1, "contexts": {"a": {}}}', '{"version": 1, "contexts": {"a": {"uri": 5}}}',
        '{"version": 1, "contexts": {"a": {"uri": "tcp://a", "passwort": "' + SECRET + '"}}}',
        '{"version": 1, "current": "b", "contexts": {}}', "[" * 100_000,
    ],
)  # fmt: skip
def test_broken_file_is_named(offline: Bmq, content: str) -> None:
    contexts_file().parent.mkdir(parents=True, exist_ok=True)
    contexts_file().write_text(content, encoding="utf-8")
    contexts_file().chmod(0o600)
    ran = offline("contexts", "list")
    assert ran.status == 2
    assert str(contexts_file()) in ran.err
    assert SECRET not in ran.err


# ---- edits


def test_edits_at_the_same_time_lose_nothing() -> None:
    def add(start: int) -> None:
        for index in range(start, start + 10):
            with edit() as contexts:
                contexts.entries[f"c{index}"] = {"uri": "tcp://a"}

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add, range(0, 40, 10)))
    assert len(read().entries) == 40
    assert [each.name for each in contexts_file().parent.iterdir() if each.name.startswith(".")] == []


def test_failed_edit_changes_nothing(offline: Bmq, monkeypatch: pytest.MonkeyPatch) -> None:
    offline("contexts", "add", "a", "tcp://a")

    def files() -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in contexts_file().parent.iterdir()}

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    before = files()
    monkeypatch.setattr(Path, "replace", full)
    ran = offline("contexts", "add", "b", "tcp://b")
    assert (ran.status, "No space left" in ran.err) == (2, True)
    assert files() == before


def test_edit_waits_for_another_edit_for_a_limited_time(
    offline: Bmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_file, "PATIENCE", 0.05)
    with edit(), ThreadPoolExecutor(1) as thread:
        assert "another bmq contexts" in thread.submit(offline, "contexts", "use", "--none").result().err


def test_file_on_windows_is_among_the_applications(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("APPDATA", str(tmp_path))
    monkeypatch.setattr(context_file, "os", SimpleNamespace(name="nt", environ=os.environ))
    assert contexts_file() == tmp_path / "bmq" / "contexts.json"


@sweep(
    "words, error",
    [
        ("contexts add - tcp://a", "the name of a context"),
        ("contexts add a nonsense", "tcp://HOST"),
        ("contexts add a tcp://ann:" + SECRET + "@host", "no user and password"),
        ("contexts add a tcp://a --ca /nowhere", "certificates cannot be used"),
        ("contexts add a tcps://a --key /nowhere", "a key needs a certificate"),
        ("contexts add a tcp://a --domain !", "--domain must be"),
        ("contexts add a tcp://a --store file", "a password needs a user"),
        ("contexts add a tcp://a --user u --store paper", "keyring or file"),
        ("contexts add a tcp://a --user u:v --store file", "without a colon"),
        ("contexts add a tcp://a --user u", "no password for u"),
        ("contexts add a tcp://a --user u --password-env A --password-stdin", "give one of"),
        ("contexts add a tcp://a --user u --password-env A --store file", "stores a password"),
        ("contexts use", "or --none"),
        ("contexts use a --none", "or --none"),
        ("contexts use a", "no context has the name 'a'"),
        ("contexts remove a", "no context has the name 'a'"),
        ("contexts show", "no context is in use"),
        ("contexts show a", "no context has the name 'a'"),
        ("queues --broker tcp://x --context y", "give one broker"),
        ("queues --context nobody", "'nobody'"),
    ],
)
def test_odd_values(offline: Bmq, words: str, error: str) -> None:
    ran = offline(*words.split())
    assert (ran.status, ran.out) == (2, "")
    assert error in " ".join(ran.err.split())
    assert SECRET not in ran.err
    assert not contexts_file().exists()


@sweep("name", ["a b", "", "\x1b"])
def test_odd_names_are_refused(offline: Bmq, name: str) -> None:
    assert "the name of a context" in " ".join(offline("contexts", "add", name, "tcp://a").err.split())


def test_the_keyring_needs_its_library(offline: Bmq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    monkeypatch.setenv("BMQ_PASSWORD", SECRET)
    ran = offline("contexts", "add", "a", "tcp://a", "--user", "ann", "--store", "keyring")
    assert (ran.status, "pip install 'bmq[keyring]'" in " ".join(ran.err.split())) == (2, True)
