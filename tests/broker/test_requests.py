# SPDX-License-Identifier: Apache-2.0
"""openQueue, configureStream, closeQueue: every refusal with its status and text (broker semantics 2.11)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bmq.broker._domain import DomainSource
from bmq.wire.control import (
    CloseQueue,
    CloseQueueResponse,
    ConfigureStreamResponse,
    ControlBody,
    OpenQueue,
    OpenQueueResponse,
    QueueHandleParameters,
    Status,
    StatusCategory,
    SubQueueIdInfo,
)
from tests.broker.core import BROADCAST, FANOUT, PRIORITY, Core, CoreClient, domain, subscription
from tests.transcripts import probes

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


def measured(name: str) -> Status:
    given = probes()["errors"][name]
    return status(StatusCategory[given["category"]], given["code"], given["message"])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"uri": "bmw://d/q"}, measured("bad uri")),
        ({"flags": 2, "read_count": 0}, measured("flags without counts")),
        ({"flags": 1, "admin_count": 1}, status(INVALID, 0, "adminCount must be 0")),
        (
            {"flags": 4},
            status(INVALID, 0, "Read flag and readCount must both be set accordingly"),
        ),
        (
            {"flags": 6},
            status(INVALID, 0, "Write flag and writeCount must both be set accordingly"),
        ),
        (
            {"q_id": 4294967286},
            status(INVALID, 0, "qId must not be set from the reserved queue ids range"),
        ),
        (
            {
                "uri": FANOUT,
                "flags": 4,
                "read_count": 0,
                "write_count": 1,
                "sub_id_info": SubQueueIdInfo(sub_id=1, app_id="foo"),
            },
            status(INVALID, 0, "AppId should not be specified in the URI if queue is opened in write mode"),
        ),
        (
            {"uri": FANOUT},
            status(UNKNOWN, -1, "Reader of a fanout queue requires an appId to be specified."),
        ),
        ({"sub_id_info": SubQueueIdInfo(sub_id=1, app_id="foo")}, measured("app on priority")),
        (
            {"uri": BROADCAST, "sub_id_info": SubQueueIdInfo(sub_id=1, app_id="foo")},
            measured("app on priority"),
        ),
    ],
)
def test_refused_opens(given: dict[str, Any], expected: Status) -> None:
    core = Core()
    assert open_with(core.client(), **given) == expected
    assert not core.node.queues, "a refused open leaves nothing behind"


def test_an_unknown_domain_is_refused() -> None:
    core = Core()
    core.source.missing = Path("/etc/local/bmq")
    assert open_with(core.client(), uri="bmq://no.such/q") == measured("unknown domain")


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("bmq://", "Missing domain"),
        ("bmq:///q", "Missing domain"),
        ("bmq://d", "Missing queue"),
        ("bmq://d/", "Missing queue"),
        ("bmq://d/?id=a", "Missing queue"),
        ("bmq://d/q/r", "Path parsing failed: unsupported char (int)47"),
        ("bmq://d/q?x=1", 'Query parsing failed: unsupported query "x"'),
        ("bmq://d/q?id", "Query parsing failed: no separator found"),
        ("bmq://d/q?id=", 'Query parsing failed: missing value after "="'),
        ("bmq://d/q?id=a b", "Query parsing failed: unsupported char (int)32"),
        (f"bmq://d/{'q' * 65}", "Queue name exceeds 64 characters"),
        ("bmq://a b/q", "Domain parsing failed: unsupported char (int)32"),
        ("bmq://d.~/q", "Empty tier"),
        ("bmq://d.~x_/q", "Tier parsing failed: unsupported char (int)95"),
    ],
)
def test_bad_uris_are_refused_with_the_reason_a_real_broker_gives(uri: str, reason: str) -> None:
    assert open_with(Core().client(), uri=uri) == status(REFUSED, 0, reason)


@pytest.mark.parametrize(("uri", "flags"), [(PRIORITY, 2), (BROADCAST, 7)])
def test_open_response_has_the_queues_parameters(uri: str, flags: int) -> None:
    answer = open_with(Core().client(), uri=uri)
    assert isinstance(answer, OpenQueueResponse)
    assert answer.routing_configuration.flags == flags
    assert answer.deduplication_time_ms == 300_000
    assert answer.original_request.handle_parameters == parameters(uri=uri)


def test_open_response_has_fanout_flags_and_deduplication_window() -> None:
    core = Core(domain("bmq.test.mem.fanout", deduplication_time_ms=5))
    answer = core.client().open(FANOUT, write=True)
    assert isinstance(answer, OpenQueueResponse)
    assert (answer.routing_configuration.flags, answer.deduplication_time_ms) == (10, 5)


def test_a_queue_number_in_use_is_refused() -> None:
    peer = Core().client()
    open_with(peer)
    assert open_with(peer, uri=f"{PRIORITY}2") == status(
        INVALID, -1, "queueId is already in use for a different queue"
    )


def test_opening_again_adds_the_counts() -> None:
    peer = Core().client()
    assert isinstance(open_with(peer), OpenQueueResponse)
    assert isinstance(open_with(peer), OpenQueueResponse)


def test_a_stopping_broker_refuses() -> None:
    core = Core()
    peer = core.client()
    core.node.stopping = True
    assert open_with(peer) == status(REFUSED, -11, "Node is stopping")


def test_configuring_an_unopened_queue_is_refused() -> None:
    core = Core()
    peer = core.client()
    assert peer.configure(subscription(1), q_id=5) == measured("configure unknown")
    open_with(peer)
    assert peer.configure(subscription(1), app_id="foo") == status(
        UNKNOWN, 0, "No queue with specified appId"
    )


def test_configuring_a_writer_succeeds_without_effect() -> None:
    peer = Core().client()
    peer.open(PRIORITY, write=True)
    assert isinstance(peer.configure(subscription(1)), ConfigureStreamResponse)


def test_refused_closes() -> None:
    peer = Core().client()
    assert peer.close(PRIORITY, 5, read=True) == measured("close unknown")
    open_with(peer)
    nothing = CloseQueue(handle_parameters=parameters(flags=0, read_count=0))
    assert peer.ask(nothing) == status(INVALID, 0, "At least one of [read|write|admin]Count must be > 0")
    unknown = parameters(sub_id_info=SubQueueIdInfo(sub_id=7, app_id="x"))
    assert peer.ask(CloseQueue(handle_parameters=unknown)) == status(
        UNKNOWN, 0, "No subStream of the queue with specified subId"
    )
    assert peer.ask(CloseQueue(handle_parameters=parameters(read_count=2))) == status(
        UNKNOWN, 0, "Failed to release handle."
    )


def test_after_the_final_close_the_number_is_free() -> None:
    peer = Core().client()
    open_with(peer)
    assert peer.close(PRIORITY, read=True) == CloseQueueResponse()
    assert peer.close(PRIORITY, read=True) == status(UNKNOWN, 0, "No queue with specified Id")
    assert isinstance(open_with(peer, uri=f"{PRIORITY}2"), OpenQueueResponse)


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
