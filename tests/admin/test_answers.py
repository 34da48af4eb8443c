# SPDX-License-Identifier: Apache-2.0
"""Answers of another type, and answers with forged texts: an error of their command, and nothing else."""

from __future__ import annotations

import copy
import json
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

import bmq
from bmq._json import orjson
from bmq.admin import Admin, Depth, Internals
from bmq.cli.exporter import Exporter
from bmq.cli.target import BrokerTarget
from bmq.client.address import BrokerAccess, parse_addresses
from bmq.console import RemoteBroker
from bmq.console.findings import DeadLetters
from bmq.console.watch import Watch
from bmq.delays import check
from tests.sweeps import sweep

URI = "tcp://127.0.0.1:1"
CLUSTER, DOMAIN = "planets", "bmq.test.persistent.priority"
ORDERS = f"bmq://{DOMAIN}/orders"
RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "cluster" / "answers.json").read_text("utf-8")
)["node0"]
FILE = {"positionBytes": 1, "sizeBytes": 2, "outstandingBytes": 1}
STORED = {"queueUri": ORDERS, "numMessages": 1, "numBytes": 2, "isPersistent": True, "partitionId": 0}
PARTITION = {
    "partitionId": 0,
    "state": "OPEN",
    "summary": {
        "primaryNodeDescription": "[node0, 1]",
        "primaryLeaseId": 1,
        "sequenceNum": 2,
        "isAvailable": True,
        "fileSets": [{"dataFileName": "x", "aliasedBlobBufferCount": 1}],
        "activeFileSet": {"dataFile": FILE, "journalFile": FILE, "qlistFile": FILE},
        "totalMappedBytes": 9,
        "numOutstandingRecords": 1,
        "numUnreceiptedMessages": 1,
        "naglePacketCount": 1,
        "storageContent": {"storages": [STORED]},
    },
}
PURGED = {"queue": {"queueUri": ORDERS, "appId": "", "numMessagesPurged": 1, "numBytesPurged": 1}}
ANSWERS: dict[str, Any] = RECORDED | {
    f"CLUSTERS CLUSTER {CLUSTER} STORAGE SUMMARY": {"clusterStorageSummary": {"fileStores": [PARTITION]}},
    f"DOMAINS DOMAIN {DOMAIN} QUEUE orders PURGE *": {
        "responses": [{"sourceNodeDescription": "node0", "result": {"purgedQueues": {"queues": [PURGED]}}}]
    },
}
CALLS: dict[str, Callable[[Admin], Awaitable[Any]]] = {
    "CLUSTERS LIST": lambda admin: admin.clusters(),
    f"CLUSTERS CLUSTER {CLUSTER} STATUS": lambda admin: admin.cluster_status(CLUSTER),
    f"CLUSTERS CLUSTER {CLUSTER} QUEUEHELPER": lambda admin: admin.queues(),
    f"CLUSTERS CLUSTER {CLUSTER} STORAGE SUMMARY": lambda admin: admin.cluster_storage(CLUSTER),
    f"DOMAINS DOMAIN {DOMAIN} INFOS": lambda admin: admin.domain(DOMAIN),
    f"DOMAINS DOMAIN {DOMAIN} QUEUE orders INTERNALS": lambda admin: admin.queue(ORDERS).internals(),
    f"DOMAINS DOMAIN {DOMAIN} QUEUE orders LIST 0 20": lambda admin: admin.queue(ORDERS).messages(0, 20),
    f"DOMAINS DOMAIN {DOMAIN} QUEUE orders PURGE *": lambda admin: admin.queue(ORDERS).purge(),
    "STAT SHOW": lambda admin: admin.statistics(),
}
ODD: list[Any] = [None, [], {}, "x", 10**30, -1, True, 1.5, [[{}]], {"error": None}, {"a": {"a": []}}]


class Recorded(Admin):
    """A client whose broker has recorded answers."""

    def __init__(self) -> None:
        super().__init__(BrokerAccess(parse_addresses(URI)), 5.0, "test")
        self.answers = ANSWERS

    async def command(self, text: str, *, timeout: float | None = None) -> str:
        text = text.removeprefix("ENCODING JSON_COMPACT ")
        answer = self.answers.get(text, {"error": {"message": f"not recorded: {text}"}})
        return answer if isinstance(answer, str) else json.dumps(answer)


def changed(answer: Any, odd: Callable[[], list[Any]]) -> Iterator[Any]:
    """Yield the answer with each of its members replaced in turn, also inside JSON in a text."""
    yield from odd()
    if isinstance(answer, str) and answer[:1] == "{":
        for inside in changed(json.loads(answer), odd):
            yield json.dumps(inside)
    keys = (
        list(answer) if isinstance(answer, dict) else range(len(answer)) if isinstance(answer, list) else ()
    )
    for key in list(keys)[:60]:
        for inside in changed(answer[key], odd):
            made = copy.copy(answer)
            made[key] = inside
            yield made


@sweep("command", CALLS)
async def test_only_errors_of_bmq_leave_a_call_and_the_next_call_works(command: str) -> None:
    admin = Recorded()
    right = await CALLS[command](admin)
    for answer in changed(ANSWERS[command], lambda: ODD):
        admin._looked = -math.inf
        admin.answers = ANSWERS | {command: answer}
        try:
            found = await CALLS[command](admin)
        except (bmq.errors.AdminError, bmq.ProtocolError):
            continue
        for each in found if isinstance(found, tuple) else (found,):
            msgspec.convert(msgspec.to_builtins(each), type(each))  # it has the declared types
    admin.answers, admin._looked = ANSWERS, -math.inf
    assert await CALLS[command](admin) == right


@sweep("error", [None, [], "no", 5, {"message": None}])
async def test_a_refusal_of_any_type_is_an_admin_error(error: object) -> None:
    admin = Recorded()
    admin.answers = ANSWERS | {"CLUSTERS LIST": {"error": error}}
    with pytest.raises(bmq.errors.AdminError):
        await admin.clusters()


class Surroundings:
    """The exporter and the console, in front of the same recorded broker."""

    def __init__(self) -> None:
        self.admin = Recorded()
        limits: dict[str, Any] = {"max_queues": 100, "max_apps": 20, "max_details": 50, "only": frozenset()}
        target = BrokerTarget(URI, "test", 5.0)
        self.exporter = Exporter(target, parse_addresses(URI), interval=1.0, **limits)
        (self.broker,) = self.exporter._brokers
        self.registry = CollectorRegistry()
        self.registry.register(self.exporter)
        source = RemoteBroker(URI)
        source.admin = self.connect  # type: ignore[method-assign]
        self.watch = Watch(source, 0.001, DeadLetters(("*.dead",)))

    async def connect(self) -> Admin:
        return self.admin

    async def round(self, answers: dict[str, Any]) -> tuple[bool, bool]:
        """Ask once; return whether exporter and console could read the answers."""
        self.admin.answers, self.admin._looked, self.admin._closed = answers, -math.inf, False
        self.broker._admin = self.admin
        self.watch._at = 0.0
        for sight in self.watch._queues.values():
            sight.asked = 0.0
        await self.exporter.ask_all()
        generate_latest(self.registry)
        await self.watch._look_once()
        with suppress(bmq.errors.AdminError, bmq.ProtocolError):
            await check(self.admin, ORDERS)
        for past in (True, False):
            orjson.loads(b"".join(self.watch._written({}, list(self.watch._queues.values()), past=past)))
        return self.broker.view is not None, not self.watch.error


async def test_a_round_of_exporter_and_console_with_any_answer_is_followed_by_a_good_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    generator, both = random.Random(54), Surroundings()
    assert await both.round(ANSWERS) == (True, True)
    for command in RECORDED:
        for answer in changed(ANSWERS[command], lambda: [generator.choice(ODD)]):
            await both.round(ANSWERS | {command: answer})
            assert "a round of the console failed" not in caplog.text, (command, answer)
            assert both.broker.failures.keys() <= {"AdminError", "ProtocolError"}, (command, answer)
    assert await both.round(ANSWERS) == (True, True)
    assert generate_latest(both.registry).decode().count(ORDERS) > 5


WINDOW = {
    "state": "STATE_NORMAL",
    "numMessages": 0,
    "messagesCapacity": 7,
    "numBytes": 0,
    "bytesCapacity": 700,
}
CONSUMER = (
    "[ maxUnconfirmedMessages = 7 maxUnconfirmedBytes = 700 "
    "consumerPriority = -2 consumerPriorityCount = 1 ] "
)
END = '" ] consumers = [ '
BEGIN = '[ sId = 99 expression = [ version = E_VERSION_1 text = "'


def printed(*subscriptions: tuple[str, bool], app: str = "__default") -> str:
    """Return what a real broker prints for expressions, each with or without a consumer."""
    inside = "".join(
        f'[ sId = {number} expression = [ version = E_VERSION_1 text = "{text}{END}'
        f"{CONSUMER if consumer else ''}] ] "
        for number, (text, consumer) in enumerate(subscriptions, 1)
    )
    return f'[ appId = "{app}" subscriptions = [ {inside}] ]'


def internals(
    *subscriptions: tuple[str, bool], app: str = "__default", parameters: str = "", text: str = ""
) -> dict[str, Any]:
    groups = [{"id": 1, "expression": text} for text, consumer in subscriptions if consumer]
    stream = {
        "appId": app,
        "parametersJson": text or printed(*subscriptions, app=app),
        "unconfirmedMonitors": [WINDOW] * len(groups),
        "numUnconfirmedMessages": 0,
    }
    handle = {
        "clientDescription": "0x7ff63c020a80  ~ shop",
        "parametersJson": parameters or '[ uri = "bmq://d/q" readCount = 1 writeCount = 0 adminCount = 0 ]',
        "subStreams": [stream],
    }
    return {
        "state": {
            "uri": "bmq://d/q",
            "storage": {"numMessages": 3, "numBytes": 30},
            "handles": [handle],
        },
        "queue": {
            "localQueue": {
                "queueEngine": {"fanout": {"mode": "priority", "Routing": {"subscriptionGroups": groups}}}
            }
        },
    }


@sweep(
    "texts",
    [
        [],
        [""],
        ["x == 1", "y == 2", "z"],
        ['x == "a ] ] [ b" && y != "[ sId = 1"', 'x == ""'],
        ['x == " ] consumer = [ "'],
    ],
)
def test_texts_of_any_kind_are_read(texts: list[str]) -> None:
    (client,) = Internals._read(internals(*((text, True) for text in texts))).clients
    (stream,) = client.streams
    assert [each.expression for each in stream.subscriptions] == texts
    assert all(each.priority == -2 for each in stream.subscriptions)
    assert (client.readers, client.writers) == (1, 0)


FORGED = {
    "two subscriptions in one text": f"x{END}{CONSUMER}] ] {BEGIN}y",
    "a subscription without consumers before": f"x{END}] ] {BEGIN}y",
    "the end of all": f"x{END}{CONSUMER}] ] ] ]",
    "a long number": f'x == "{END}] ] [ sId = {"9" * 5000} expression = [ version = E text = " || y == "',
    "a long priority": f"x{END}{CONSUMER.replace('-2', '9' * 5000)}] ] {BEGIN}y",
    "a number of 20 digits": f"x{END}{CONSUMER}] ] {BEGIN.replace('99', '9' * 20)}y",
}


@sweep("consumer", [True, False])
@sweep("text", FORGED.values())
def test_a_text_never_passes_for_another_subscription(text: str, consumer: bool) -> None:
    for others in ([], [("a == 1", True)]):
        content = internals((text, consumer), *others)
        with pytest.raises(bmq.ProtocolError):
            Internals._read(content)
        assert Depth._read(content).messages == 3, "the depth needs no subscription"


def test_the_name_of_an_application_never_passes_for_counts() -> None:
    name = "x readCount = 9 writeCount = 9 ]"
    parameters = (
        f'[ uri = "bmq://d/q" qId = 0 subIdInfo = [ subId = 1 appId = "{name}" ] flags = 2 '
        "readCount = 1 writeCount = 0 adminCount = 0 ]"
    )
    (client,) = Internals._read(internals(("x", True), app=name, parameters=parameters)).clients
    assert (client.readers, client.writers) == (1, 0)
    assert client.streams[0].app_id == name
    with pytest.raises(bmq.ProtocolError):
        Internals._read(internals(parameters=parameters.replace("= 1 w", f"= {'9' * 5000} w")))


@sweep("text", ["[ ", '[ appId = "__default" subscriptions = [ ] ] more', "nothing"])
def test_a_text_of_another_form_is_a_protocol_error(text: str) -> None:
    with pytest.raises(bmq.ProtocolError):
        Internals._read(internals(text=text))


async def test_a_client_hides_only_its_own_queue(bmq_broker: bmq.broker.Broker) -> None:
    uris = [f"bmq://bmq.test.mem.priority/{name}" for name in ("forged", "other")]
    async with bmq.connect(bmq_broker.uri) as session, bmq.admin.connect(bmq_broker.uri) as admin:
        forged, other = [
            await session.open_queue(uri, read=True, write=True, default_subscription=False) for uri in uris
        ]
        text = (
            f'x == "{END}] ] [ sId = {"9" * 5000} expression = [ version = E text = " || y == '
            f'"{END}{CONSUMER}] ] ] "'
        )
        async with forged.subscribe(text, strict=False), other.subscribe("x == 1"):
            for queue in (forged, other):
                await queue.post(b"x")
            with pytest.raises(bmq.ProtocolError):
                await admin.queue(uris[0]).internals()
            assert (await admin.queue(uris[0]).depth()).messages == 1
            (client,) = (await admin.queue(uris[1]).internals()).clients
            assert [each.expression for each in client.streams[0].subscriptions] == ["x == 1"]
