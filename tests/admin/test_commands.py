# SPDX-License-Identifier: Apache-2.0
"""Each command of brokers: its method, its danger, and its answer in the shape of a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import bmq
from bmq.admin import Admin, Danger, DomainInfo, danger_of
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


@sweep(
    "command, danger",
    [
        ("HELP", Danger.READS),
        ("domains domain d infos", Danger.READS),
        ("DOMAINS DOMAIN PURGE INFOS", Danger.READS),  # a domain with this name
        ("DOMAINS RECONFIGURE d", Danger.CHANGES),
        ("DOMAINS DOMAIN d PURGE", Danger.DELETES),
        ("  domains   domain d\tqueue q purge *", Danger.DELETES),
        ("ENCODING JSON_COMPACT DOMAINS REMOVE d", Danger.DELETES),
        ("DOMAINS REMOVE d FINALIZE", Danger.INTERRUPTS),
        ("CLUSTERS CLUSTER c STORAGE PARTITION 0 DISABLE", Danger.INTERRUPTS),
        ("CLUSTERS CLUSTER c STORAGE PARTITION ALL ROLLOVER", Danger.INTERRUPTS),
        ("CLUSTERS CLUSTER c STATE ELECTOR SET_ALL QUORUM 1", Danger.INTERRUPTS),
        ("CLUSTERS CLUSTER c STATE ELECTOR GET_ALL QUORUM", Danger.READS),
        ("CLUSTERS CLUSTER c STORAGE WIPE", Danger.DELETES),  # of a newer broker
        ("SHUTDOWN", Danger.INTERRUPTS),
        ("", Danger.READS),
        ('{"domains": {"domain": {"name": "d", "command": {"purge": {}}}}}', Danger.DELETES),
        ('{"domains": {"remove": {"domain": "d"}}}', Danger.DELETES),
        ('{"domains": {"domain": {"name": "purge", "command": {"info": {}}}}}', Danger.READS),
        (
            '{"clusters": {"cluster": {"command": {"state": {"elector": {"setTunable": {}}}}}}}',
            Danger.INTERRUPTS,
        ),
        ("{broken", Danger.READS),
    ],
)
def test_the_danger_of_a_command(command: str, danger: Danger) -> None:
    assert danger_of(command) is danger


async def test_storage_lists_the_files_and_queues(broker: bmq.broker.Broker, admin: Admin) -> None:
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, write=True)
        await queue.post(b"12345")
        (part,) = await admin.cluster_storage("local")
        assert (part.id, part.state, part.available) == (0, "open", True)
        assert [(each.uri, each.messages, each.bytes) for each in part.queues] == [(URI, 1, 5)]
        (stored,) = part.queues
        summary = await admin.query(f"CLUSTERS CLUSTER local STORAGE DOMAIN {PRIORITY} QUEUE_STATUS")
        assert [each["queueUri"] for each in summary["storageContent"]["storages"]] == [stored.uri]
    with pytest.raises(bmq.errors.AdminError, match="Too high partitionId value: '7'"):
        await admin.query("CLUSTERS CLUSTER local STORAGE PARTITION 7 SUMMARY")
    with pytest.raises(bmq.errors.AdminError, match="Unknown domain"):
        await admin.query("CLUSTERS CLUSTER local STORAGE DOMAIN no.such.domain QUEUE_STATUS")


async def test_partitions_are_disabled_and_enabled(admin: Admin) -> None:
    for action, available in (("DISABLE", False), ("ENABLE", True), ("ROLLOVER", True)):
        answer = await admin.query(f"CLUSTERS CLUSTER local STORAGE PARTITION 0 {action}")
        assert answer == {"success": {}}
        assert [part.available for part in await admin.cluster_storage("local")] == [available]


async def test_tunables_are_listed_shown_and_changed(admin: Admin) -> None:
    for scope in ("CLUSTERS CLUSTER local STATE ELECTOR", "CLUSTERS CLUSTER local STORAGE REPLICATION"):
        (listed,) = (await admin.query(f"{scope} LIST_TUNABLES"))["tunables"]["tunables"]
        assert (listed["name"], listed["value"]) == ("QUORUM", {"theInteger": 1})
        assert "non-negative integer" in listed["description"]
        change = (await admin.query(f"{scope} SET quorum 2"))["tunableConfirmation"]
        assert change == {"name": "Quorum", "oldValue": {"theInteger": 1}, "newValue": {"theInteger": 2}}
        for verb in ("GET", "GET_ALL"):
            assert (await admin.query(f"{scope} {verb} QUORUM"))["tunable"]["value"] == {"theInteger": 2}
        assert "tunableConfirmation" in await admin.query(f"{scope} SET_ALL QUORUM 1")
        for wrong in ("-1", "1.5", "many", "true", "null"):
            with pytest.raises(bmq.errors.AdminError, match="must be a non-negative integer"):
                await admin.query(f"{scope} SET QUORUM {wrong}")
        with pytest.raises(bmq.errors.AdminError, match="Unsupported tunable"):
            await admin.query(f"{scope} GET NOTHING")
    assert (await admin.query("STAT LIST_TUNABLES"))["tunables"].get("tunables", []) == []
    with pytest.raises(bmq.errors.AdminError, match="'p' does not exist"):
        await admin.query("STAT GET p.PUBLISHINTERVAL")


async def test_a_domain_is_removed_in_two_steps(broker: bmq.broker.Broker, admin: Admin) -> None:
    with pytest.raises(bmq.errors.AdminError, match="doesn't exist"):
        await admin.query(f"DOMAINS REMOVE {PRIORITY} FINALIZE")
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
        queue = await session.open_queue(URI, write=True)
        assert (await admin.queue(URI).depth()).messages == 0


async def test_a_refused_removal_keeps_the_domain_closed_until_another_configuration() -> None:
    """As on a real broker: the refusal does not take back the first step."""
    config = bmq.broker.DomainConfig("d", bmq.broker.Mode.PRIORITY)
    async with (
        bmq.broker.Broker(domains=[config]) as broker,
        bmq.admin.connect(broker.uri) as admin,
        bmq.connect(broker.uri) as session,
    ):
        await session.open_queue("bmq://d/q", write=True)
        with pytest.raises(bmq.errors.AdminError, match="queues opened"):
            await admin.query("DOMAINS REMOVE d")
        await admin.reconfigure("d")
        with pytest.raises(bmq.OpenQueueError, match="removing"):
            await session.open_queue("bmq://d/other", write=True)


# ---- answers of other brokers


def test_a_cut_configuration_leaves_the_rest_of_a_domain_readable() -> None:
    """A real broker sends the beginning of the configuration if the file has no consistency."""
    meter = {"numMessages": 1, "messageCapacity": 2, "numBytes": 3, "byteCapacity": 4}
    found = DomainInfo._read(
        {
            "name": "d",
            "configJson": '{"mode": {"fanout": {}}, "consistency": ',
            "clusterName": "local",
            "capacityMeter": meter,
            "storageContent": {},
        }
    )
    assert (found.name, found.mode, found.configuration, found.usage.messages) == ("d", "", {}, 1)


ROUTED: list[Any] = [
    ([("n0", {"success": {}}), ("n1", {"success": {}})], None),
    ([("n0", {"success": {}}), ("n1", {"error": {"message": "no disk"}})], "n1: no disk"),
]


@pytest.mark.parametrize(("responses", "outcome"), ROUTED)
async def test_a_command_routed_to_all_nodes_succeeds_if_all_do(
    responses: list[tuple[str, dict[str, Any]]], outcome: str | None
) -> None:
    answer = {"responses": [{"sourceNodeDescription": node, "result": each} for node, each in responses]}

    class Routing(Admin):
        def __init__(self) -> None:
            pass

        async def query(self, text: str, *, timeout: float | None = None) -> dict[str, Any]:
            return answer

    if outcome is None:
        assert await Routing()._ask("DOMAINS RECONFIGURE d", "success") == {}
        return
    with pytest.raises(bmq.errors.AdminError, match=outcome):
        await Routing()._ask("DOMAINS RECONFIGURE d", "success")
