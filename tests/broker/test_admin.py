# SPDX-License-Identifier: Apache-2.0
"""Admin commands, in JSON, shaped like a real broker's answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bmq.wire.control import AdminCommand, AdminCommandResponse, ClientType
from tests.broker.core import FANOUT, Core, domain
from tests.sweeps import sweep


def say(core: Core, command: str) -> str:
    return core.node.admin(command, core.now)


def tell(core: Core, command: str) -> Any:
    return json.loads(say(core, f"ENCODING JSON_COMPACT {command}"))


@pytest.fixture
def core() -> Core:
    core = Core()
    core.producer(FANOUT).put(b"hello", b"world!!")
    core.consumer(f"{FANOUT}?id=foo", messages=1)
    core.producer().put(b"m")
    return core


def test_reconfigure_reloads_the_domain() -> None:
    core = Core()
    sender = core.producer(FANOUT)
    foo, new = core.consumer(f"{FANOUT}?id=foo"), core.consumer(f"{FANOUT}?id=new")
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
    core.producer().disconnect()
    assert core.node.queues
    assert tell(core, "CLUSTERS CLUSTER local FORCE_GC_QUEUES") == {"success": {}}
    assert not core.node.queues


def test_statistics_report_the_waiting_times() -> None:
    core = Core()
    first, second = core.producer(FANOUT).put(b"one", b"two")
    core.advance(3)
    reader = core.consumer(f"{FANOUT}?id=foo")
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


@sweep(
    "command, answer",
    [
        ("", "Unable to decode command (rc: -1, error: 'Empty input')"),
        (
            "NOPE",
            'Unable to decode command (rc: -1, error: \'Invalid command. Send "HELP" for list of commands. '
            "Invalid command word: NOPE')",
        ),
        ("DOMAINS DOMAIN nope INFOS", "Domain 'nope' doesn't exist"),
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


def test_an_admin_session_serves_no_queues(core: Core) -> None:
    peer = core.connect()
    peer.negotiate(client_type=ClientType.E_TCPADMIN)
    peer.put(b"m")
    peer.confirm(bytes(16))
    assert peer.receive() == []
    assert not peer.session.closed
    answer = peer.ask(AdminCommand(command="HELP"))
    assert isinstance(answer, AdminCommandResponse)
    assert "CLUSTERS LIST" in answer.text
