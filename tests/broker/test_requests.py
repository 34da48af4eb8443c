# SPDX-License-Identifier: Apache-2.0
"""openQueue, configureStream, closeQueue: every refusal with its status and text (broker semantics 2.11)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bmq.broker._domain import DomainSource
from bmq.wire.control import (
    ControlBody,
    OpenQueue,
    QueueHandleParameters,
    Status,
    StatusCategory,
)
from tests.broker.core import FANOUT, PRIORITY, Core, CoreClient, domain, subscription
from tests.sweeps import sweep

INVALID, REFUSED, UNKNOWN = (
    StatusCategory.E_INVALID_ARGUMENT,
    StatusCategory.E_REFUSED,
    StatusCategory.E_UNKNOWN,
)


def parameters(**given: Any) -> QueueHandleParameters:
    return QueueHandleParameters(**({"uri": PRIORITY, "flags": 2, "read_count": 1} | given))


def open_with(peer: CoreClient, **given: Any) -> ControlBody:
    return peer.ask(OpenQueue(handle_parameters=parameters(**given)))


def status(category: StatusCategory, code: int, message: str) -> Status:
    return Status(category=category, code=code, message=message)


@sweep(
    "uri, reason",
    [
        ("tcp://d/q", 'Invalid scheme: uri must start with "bmq://"'),
        ("bmq:///q", "the domain is missing"),
        ("bmq://d", "the queue name is missing"),
        ("bmq://d/q?x=1", "the only possible query is ?id=APPID"),
    ],
)
def test_bad_uris_are_refused_with_the_reason(uri: str, reason: str) -> None:
    answer = open_with(Core().client(), uri=uri)
    assert isinstance(answer, Status)
    assert (answer.category, answer.code) == (REFUSED, 0)
    assert reason in answer.message


def test_a_stopping_broker_refuses() -> None:
    core = Core()
    peer = core.client()
    core.node.stopping = True
    assert open_with(peer) == status(REFUSED, -11, "Node is stopping")


def test_a_final_close_releases_every_application() -> None:
    core = Core()
    peer, other = core.client(), core.client()
    for number, app in enumerate(("foo", "bar"), 1):
        peer.open(f"{FANOUT}?id={app}", read=True, sub_id=number)
        peer.configure(subscription(number), app_id=app)
    peer.open(FANOUT, write=True)
    peer.put(b"m")
    peer.close(FANOUT, write=True)
    other.consume(f"{FANOUT}?id=bar")
    assert other.payloads == [b"m"]
    assert len(core.node.queues[FANOUT].handles) == 1


def test_domain_files_of_a_real_broker_are_read(tmp_path: Path) -> None:
    """Files of a real broker: a definition, a redirection, two redirections, and unusable files."""
    directory = tmp_path / "domains"
    directory.mkdir()
    real = domain().parameters()
    for name, content in {
        "good": {"definition": {"location": "local", "parameters": real, "later": 1}},
        "other.name": {"redirect": "good"},
        "twice": {"redirect": "other.name"},
        "nothing": {"definition": {"location": "local", "parameters": real | {"mode": {}}}},
        "unsupported": {
            "definition": {
                "parameters": real
                | {"subscriptions": [{"appId": "", "expression": {"version": "E_UNDEFINED", "text": "x"}}]}
            }
        },
        "wrong": {
            "definition": {
                "parameters": real
                | {"subscriptions": [{"appId": "", "expression": {"version": "E_VERSION_1", "text": "x >"}}]}
            }
        },
    }.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    (directory / "broken.json").write_text("{")
    core = Core()
    core.node.source = DomainSource({}, tmp_path)

    def answer(name: str) -> tuple[StatusCategory, int, str] | None:
        body = open_with(core.client(), uri=f"bmq://{name}/q")
        return (body.category, body.code, body.message) if isinstance(body, Status) else None

    assert answer("good") is None
    assert answer("other.name") is None
    assert set(core.node.queues) == {"bmq://good/q"}, "a redirection is the same queue"
    missing = answer("missing")
    there = "broken, good, nothing, other.name, twice, unsupported, wrong"
    assert missing == (
        UNKNOWN,
        -1,
        f"Domain file 'domains/missing.json' doesn't exist; the domains of this broker: {there}",
    )
    for name, category, code, start in (
        ("broken", UNKNOWN, -2, "Error while decoding domain configuration"),
        ("nothing", UNKNOWN, -2, "Error while decoding domain configuration"),
        ("twice", UNKNOWN, -3, "Too many redirections"),
        ("unsupported", REFUSED, -10, "Attempt failed. Details: "),
        ("wrong", REFUSED, -10, "Attempt failed. Details: "),
    ):
        got = answer(name)
        assert got is not None
        assert got[:2] == (category, code)
        assert got[2].startswith(start)
        assert str(tmp_path) not in got[2], "a stranger is told no path of this machine"
