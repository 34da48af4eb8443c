# SPDX-License-Identifier: Apache-2.0
"""Admin commands, in JSON, shaped like a real broker's answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

import bmq
from bmq.broker import Broker, DomainConfig, Limits, Mode
from bmq.wire.control import AdminCommand, AdminCommandResponse, ClientType
from tests.broker.core import FANOUT, PRIORITY, Core, CoreClient, domain


def admin(core: Core) -> CoreClient:
    peer = core.connect()
    peer.negotiate(client_type=ClientType.E_TCPADMIN)
    return peer


def say(core: Core, command: str) -> str:
    answer = admin(core).ask(AdminCommand(command=command))
    assert isinstance(answer, AdminCommandResponse)
    return answer.text


def tell(core: Core, command: str) -> Any:
    return json.loads(say(core, f"ENCODING JSON_COMPACT {command}"))


@pytest.fixture
def core() -> Core:
    core = Core()
    sender = core.client()
    sender.open(FANOUT, write=True)
    sender.put(b"hello", b"world!!")
    reader = core.client()
    reader.consume(f"{FANOUT}?id=foo", messages=1)
    other = core.client()
    other.open(PRIORITY, write=True)
    other.put(b"m")
    return core


def test_help_lists_every_command(core: Core) -> None:
    text = say(core, "help")
    commands = [entry["command"] for entry in tell(core, "HELP")["help"]["commands"]]
    assert "DOMAINS DOMAIN <name> PURGE" in commands
    assert all(command in text for command in commands)


def test_infos_shows_configuration_and_use(core: Core) -> None:
    info = tell(core, "DOMAINS DOMAIN bmq.test.mem.fanout INFOS")["domainInfo"]
    assert info["name"] == "bmq.test.mem.fanout"
    assert json.loads(info["configJson"])["mode"] == {"fanout": {"appIDs": ["foo", "bar", "baz"]}}
    meter = info["capacityMeter"]
    assert (meter["numMessages"], meter["numBytes"], meter["messageCapacity"]) == (2, 12, 4_000_000)
    assert info["queueUris"] == [FANOUT]
    (storage,) = info["storageContent"]["storages"]
    assert (storage["queueUri"], storage["numMessages"], storage["isPersistent"]) == (FANOUT, 2, False)


def test_a_purge_makes_room_for_a_consumer_that_was_full(core: Core) -> None:
    reader = core.client()
    reader.consume(f"{FANOUT}?id=baz")
    assert reader.payloads == [b"hello", b"world!!"]
    say(core, "DOMAINS DOMAIN bmq.test.mem.fanout QUEUE q PURGE *")
    sender = core.client()
    sender.open(FANOUT, write=True)
    sender.put(b"new")
    assert reader.payloads == [b"new"]


def test_reconfigure_reloads_the_domain() -> None:
    core = Core()
    sender, foo, new = core.client(), core.client(), core.client()
    sender.open(FANOUT, write=True)
    foo.consume(f"{FANOUT}?id=foo")
    new.consume(f"{FANOUT}?id=new")
    sender.put(b"before")
    name = "bmq.test.mem.fanout"
    core.source.configured[name] = domain(name, app_ids=("bar", "baz", "new"))
    assert tell(core, f"DOMAINS RECONFIGURE {name}") == {"success": {}}
    sender.put(b"after")
    assert new.payloads == [b"after"], "a new application sees only what is posted from then on"
    assert foo.payloads == [b"before"], "one that was taken out gets nothing more"
    core.source.configured[name] = domain()
    answer = say(core, f"DOMAINS RECONFIGURE {name}")
    assert "mode" in answer
    assert core.node.domains[name].config.app_ids == ("bar", "baz", "new"), "old settings stay"


def test_idle_queues_can_be_forgotten_at_once() -> None:
    core = Core()
    peer = core.client()
    peer.open(PRIORITY, write=True)
    peer.disconnect()
    assert core.node.queues
    assert tell(core, "CLUSTERS CLUSTER local FORCE_GC_QUEUES") == {"success": {}}
    assert not core.node.queues


def test_statistics_report_the_waiting_times() -> None:
    core = Core()
    sender, reader = core.client(), core.client()
    sender.open(FANOUT, write=True)
    first, second = sender.put(b"one", b"two")
    core.advance(3)
    reader.consume(f"{FANOUT}?id=foo", messages=10)
    core.advance(2)
    reader.confirm(first, sub_id=1)
    core.advance(2)
    reader.confirm(second, sub_id=1)
    stats = json.loads(tell(core, "STAT SHOW")["stats"])
    entry = stats["domainQueues"]["domains"]["bmq.test.mem.fanout"][FANOUT]
    foo, bar = entry["appIds"]["foo"]["values"], entry["appIds"]["bar"]["values"]
    for values in (entry["values"], foo):
        assert (values["queue_queue_time_avg"], values["queue_queue_time_max"]) == (3e9, 3e9)
        assert (values["queue_confirm_time_avg"], values["queue_confirm_time_max"]) == (3e9, 4e9)
    assert (bar["queue_queue_time_max"], bar["queue_confirm_time_max"]) == (0, 0)
    assert (foo["queue_content_msgs"], bar["queue_content_msgs"]) == (0, 2)
    assert (foo["queue_content_bytes"], bar["queue_bytes_current"]) == (0, 6)


async def test_the_posts_of_a_test_are_those_that_the_queue_accepted() -> None:
    config = DomainConfig(name="small", mode=Mode.PRIORITY, queue_limits=Limits(messages=2))
    async with Broker(domains=[config], posts_kept=100) as broker, bmq.connect(broker.uri) as session:
        queue = await session.open_queue("bmq://small/queue", write=True)
        report = await queue.post_many([b"%d" % number for number in range(6)])
        posted = broker.posted("bmq://small/queue")
        assert [each.payload for each in posted] == [b"0", b"1", b"2"]
        assert len(posted) + len(report.failures) == 6
        assert [each.guid for each in posted] == [
            each.guid for each in broker.queues["bmq://small/queue"].messages
        ]


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("", "Unable to decode command (rc: -1, error: 'Empty input')"),
        (
            "NOPE",
            'Unable to decode command (rc: -1, error: \'Invalid command. Send "HELP" for list of commands. '
            "Invalid command word: NOPE')",
        ),
        ("DOMAINS DOMAIN nope INFOS", "Domain 'nope' doesn't exist"),
        ("DOMAINS RECONFIGURE nope", "Domain 'nope' doesn't exist"),
        (
            "DOMAINS DOMAIN bmq.test.mem.priority QUEUE nope PURGE *",
            "Queue was not found in a storage 'bmq://bmq.test.mem.priority/nope'",
        ),
        (
            "DOMAINS DOMAIN bmq.test.mem.fanout QUEUE q LIST x y",
            "Unable to decode command (rc: -1, error: 'Invalid offset: X')",
        ),
    ],
)
def test_invalid_commands_are_refused(core: Core, command: str, answer: str) -> None:
    assert say(core, command) == answer
    assert tell(core, command) == {"error": {"message": answer}}


def test_json_is_printed_as_requested(core: Core) -> None:
    text = say(core, "ENCODING JSON_PRETTY DOMAINS DOMAIN bmq.test.mem.priority INFOS")
    assert text.startswith('{\n  "domainInfo"')
    assert say(core, "DOMAINS DOMAIN bmq.test.mem.priority INFOS") == text


def test_an_admin_session_serves_no_queues(core: Core) -> None:
    peer = admin(core)
    peer.put(b"m")
    peer.confirm(bytes(16))
    assert peer.receive() == []
    assert not peer.session.closed
