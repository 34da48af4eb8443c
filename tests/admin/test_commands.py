# SPDX-License-Identifier: Apache-2.0
"""Each command of brokers: its method, its danger, and its answer in the shape of a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import pytest

import bmq
from bmq.admin import Admin, Danger, DomainInfo, danger_of
from tests.fakes.cluster import RecordedCluster
from tests.sweeps import sweep

PRIORITY = "bmq.test.mem.priority"
URI = f"bmq://{PRIORITY}/orders"


@pytest.fixture
async def broker() -> AsyncIterator[bmq.broker.Broker]:
    async with bmq.broker.Broker() as broker:
        yield broker


@pytest.fixture
async def admin(broker: bmq.broker.Broker) -> AsyncIterator[Admin]:
    async with bmq.admin.connect(broker.uri) as admin:
        yield admin


DANGERS = {
    Danger.READS: [
        "",
        "HELP",
        "domains domain d infos",
        "DOMAINS DOMAIN PURGE INFOS",  # a domain with this name
        "CLUSTERS CLUSTER c STATE ELECTOR GET_ALL QUORUM",
        '{"domains": {"domain": {"name": "purge", "command": {"info": {}}}}}',
        "{broken",
    ],
    Danger.CHANGES: ["DOMAINS RECONFIGURE d"],
    Danger.DELETES: [
        "  domains   domain d\tqueue q purge *",
        "ENCODING JSON_COMPACT DOMAINS REMOVE d",
        "CLUSTERS CLUSTER c STORAGE WIPE",  # of a newer broker
        '{"domains": {"domain": {"name": "d", "command": {"purge": {}}}}}',
        '{"domains": {"remove": {"domain": "d"}}}',
    ],
    Danger.INTERRUPTS: [
        "DOMAINS REMOVE d FINALIZE",
        "CLUSTERS CLUSTER c STORAGE PARTITION ALL ROLLOVER",
        "CLUSTERS CLUSTER c STATE ELECTOR SET_ALL QUORUM 1",
        "SHUTDOWN",
        '{"clusters": {"cluster": {"command": {"state": {"elector": {"setTunable": {}}}}}}}',
    ],
}


@sweep("danger", DANGERS)
def test_the_danger_of_a_command(danger: Danger) -> None:
    assert [each for each in DANGERS[danger] if danger_of(each) is not danger] == []


async def test_partitions_are_disabled_and_enabled(admin: Admin) -> None:
    for action, available in (("DISABLE", False), ("ENABLE", True), ("ROLLOVER", True)):
        answer = await admin.query(f"CLUSTERS CLUSTER local STORAGE PARTITION 0 {action}")
        assert answer == {"success": {}}
        assert [part.available for part in await admin.cluster_storage("local")] == [available]


async def test_settings_are_changed(admin: Admin) -> None:
    for scope in ("CLUSTERS CLUSTER local STATE ELECTOR", "CLUSTERS CLUSTER local STORAGE REPLICATION"):
        change = (await admin.query(f"{scope} SET quorum 2"))["tunableConfirmation"]
        assert change == {"name": "Quorum", "oldValue": {"theInteger": 1}, "newValue": {"theInteger": 2}}
        assert (await admin.query(f"{scope} GET_ALL QUORUM"))["tunable"]["value"] == {"theInteger": 2}
        assert "tunableConfirmation" in await admin.query(f"{scope} SET_ALL QUORUM 1")


@sweep(
    "command, said",
    [
        ("CLUSTERS CLUSTER local STORAGE PARTITION 7 SUMMARY", "Too high partitionId value: '7'"),
        ("CLUSTERS CLUSTER local STORAGE DOMAIN no.such.domain QUEUE_STATUS", "Unknown domain"),
        *(
            (f"CLUSTERS CLUSTER local STATE ELECTOR SET QUORUM {value}", "must be a non-negative integer")
            for value in ("-1", "1.5", "many", "true", "null")
        ),
        ("STAT GET p.PUBLISHINTERVAL", "'p' does not exist"),
        (f"DOMAINS REMOVE {PRIORITY} FINALIZE", "doesn't exist"),
    ],
)
async def test_wrong_commands_are_refused(admin: Admin, command: str, said: str) -> None:
    with pytest.raises(bmq.errors.AdminError, match=said):
        await admin.query(command)


async def test_a_domain_is_removed_in_two_steps(broker: bmq.broker.Broker, admin: Admin) -> None:
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, write=True)
        await queue.post(b"12345")
        with pytest.raises(bmq.errors.AdminError, match="while there are queues opened"):
            await admin.query(f"DOMAINS REMOVE {PRIORITY}")
        await queue.close()
        (purged,) = (await admin.query(f"DOMAINS REMOVE {PRIORITY}"))["purgedQueues"]["queues"]
        assert (purged["queue"]["queueUri"], purged["queue"]["numMessagesPurged"]) == (URI, 1)
        with pytest.raises(bmq.OpenQueueError, match="removing or removed"):
            await session.open_queue(URI, write=True)
        await admin.query(f"DOMAINS REMOVE {PRIORITY} FINALIZE")
        await session.open_queue(URI, write=True)
        assert (await admin.queue(URI).depth()).messages == 0


async def test_a_refused_removal_keeps_the_domain_closed(broker: bmq.broker.Broker, admin: Admin) -> None:
    """As on a real broker: the refusal does not take back the first step."""
    async with bmq.connect(broker.uri) as session:
        await session.open_queue(URI, write=True)
        with pytest.raises(bmq.errors.AdminError, match="queues opened"):
            await admin.query(f"DOMAINS REMOVE {PRIORITY}")
        await admin.reconfigure(PRIORITY)
        with pytest.raises(bmq.OpenQueueError, match="removing"):
            await session.open_queue(f"{URI}2", write=True)


# ---- answers of other brokers


def test_a_cut_configuration_leaves_the_rest_of_a_domain_readable() -> None:
    """A real broker sends the beginning of the configuration if the file has no consistency."""
    answer = {
        "name": "d",
        "configJson": '{"mode": {"fanout": {}}, "consistency": ',
        "clusterName": "local",
        "capacityMeter": {"numMessages": 1, "messageCapacity": 2, "numBytes": 3, "byteCapacity": 4},
        "storageContent": {},
    }
    found = DomainInfo._read(answer)
    assert (found.name, found.mode, found.configuration, found.usage.messages) == ("d", "", {}, 1)


@sweep("second, outcome", [({"success": {}}, None), ({"error": {"message": "no disk"}}, "n1: no disk")])
async def test_a_command_routed_to_all_nodes_succeeds_if_all_do(
    second: dict[str, Any], outcome: str | None
) -> None:
    results = [("n0", {"success": {}}), ("n1", second)]
    answer = {"responses": [{"sourceNodeDescription": node, "result": each} for node, each in results]}
    with RecordedCluster() as cluster:
        cluster["node0"].answers["DOMAINS RECONFIGURE d"] = answer
        async with bmq.admin.connect(cluster.uris("node0")) as admin:
            with nullcontext() if outcome is None else pytest.raises(bmq.errors.AdminError, match=outcome):
                await admin.reconfigure("d")
