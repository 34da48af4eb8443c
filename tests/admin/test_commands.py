# SPDX-License-Identifier: Apache-2.0
"""Each command of brokers: its method, its danger, and its answer in the shape of a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import bmq
from bmq.admin import Admin, Danger, Tunable, TunableChange, danger_of, parsing

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


@pytest.mark.parametrize(
    ("command", "danger"),
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
        (part,) = (await admin.cluster("local").storage()).partitions
        assert (part.id, part.state, part.available) == (0, "open", True)
        assert [(each.uri, each.messages, each.bytes) for each in part.queues] == [(URI, 1, 5)]
        assert (await admin.cluster("local").storage(0)).partitions == (part,)
        assert await admin.cluster("local").stored_queues(PRIORITY) == part.queues
    with pytest.raises(bmq.errors.AdminError, match="Too high partitionId value: '7'"):
        await admin.cluster("local").storage(7)
    with pytest.raises(bmq.errors.AdminError, match="Unknown domain"):
        await admin.cluster("local").stored_queues("no.such.domain")


async def test_partitions_are_disabled_and_enabled(admin: Admin) -> None:
    cluster = admin.cluster("local")
    await cluster.disable_partition(0)
    assert [part.available for part in (await cluster.storage()).partitions] == [False]
    await cluster.enable_partition(0)
    assert [part.available for part in (await cluster.storage()).partitions] == [True]
    await cluster.roll_over()
    await cluster.roll_over(0)


async def test_tunables_are_listed_shown_and_changed(admin: Admin) -> None:
    for settings in (admin.cluster("local").elector, admin.cluster("local").replication):
        (listed,) = await settings.list()
        assert (listed.name, listed.value) == ("QUORUM", 1)
        assert "non-negative integer" in listed.description
        assert await settings.set("quorum", 2) == TunableChange("Quorum", 1, 2)
        assert (await settings.get("QUORUM")).value == 2
        assert [each.value for each in await settings.get_all("QUORUM")] == [2]
        assert await settings.set_all("QUORUM", 1) == (TunableChange("Quorum", 2, 1),)
        for wrong in (-1, 1.5, "many", True, None):
            with pytest.raises(bmq.errors.AdminError, match="must be a non-negative integer"):
                await settings.set("QUORUM", wrong)
        with pytest.raises(bmq.errors.AdminError, match="Unsupported tunable"):
            await settings.get("NOTHING")
        with pytest.raises(bmq.UsageError, match="finite"):
            await settings.set("QUORUM", float("nan"))
    assert await admin.stat_tunables.list() == ()
    with pytest.raises(bmq.errors.AdminError, match="'p' does not exist"):
        await admin.stat_tunables.get("p.PUBLISHINTERVAL")


async def test_a_domain_is_removed_in_two_steps(broker: bmq.broker.Broker, admin: Admin) -> None:
    with pytest.raises(bmq.errors.AdminError, match="doesn't exist"):
        await admin.finish_removal(PRIORITY)
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, write=True)
        await queue.post(b"12345")
        with pytest.raises(bmq.errors.AdminError, match="while there are queues opened"):
            await admin.remove_domain(PRIORITY)
        await queue.close()
        (purged,) = await admin.remove_domain(PRIORITY)
        assert (purged.uri, purged.messages, purged.bytes) == (URI, 1, 5)
        with pytest.raises(bmq.OpenQueueError, match="removing or removed"):
            await session.open_queue(URI, write=True)
        await admin.finish_removal(PRIORITY)
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
            await admin.remove_domain("d")
        await admin.reconfigure("d")
        with pytest.raises(bmq.OpenQueueError, match="removing"):
            await session.open_queue("bmq://d/other", write=True)


async def test_caches_and_configuration(admin: Admin) -> None:
    await admin.clear_resolver_cache()
    await admin.clear_configuration_cache()
    with pytest.raises(bmq.errors.AdminError, match="doesn't exist"):
        await admin.clear_resolver_cache("no.such.domain")
    for wrong in ("ALL", "all", "two words", ""):
        with pytest.raises(bmq.UsageError):
            await admin.clear_configuration_cache(wrong)
    configuration = await admin.broker_configuration()
    assert configuration.content["hostName"] == configuration.host == "localhost"
    assert configuration.version is not None


# ---- answers of other brokers


def test_members_of_newer_brokers_are_ignored_and_kinds_of_values_kept() -> None:
    found = parsing.tunables(
        {
            "tunables": [
                {"name": "a", "value": {"theInteger": 3}, "description": "d", "unit": "new"},
                {"name": "b", "value": {"theBool": False}},
                {"name": "c", "value": {"theDouble": 0.5}},
                {"name": "d", "value": {"theNull": {}}},
                {"name": "e", "value": {"theDuration": {"seconds": 1}}},
            ],
            "more": [],
        }
    )
    assert [each.value for each in found] == [3, False, 0.5, None, "{'seconds': 1}"]
    assert found[0] == Tunable("a", 3, "d")


def test_a_cut_configuration_leaves_the_rest_of_a_domain_readable() -> None:
    """A real broker sends the beginning of the configuration if the file has no consistency."""
    meter = {"numMessages": 1, "messageCapacity": 2, "numBytes": 3, "byteCapacity": 4}
    found = parsing.domain_info(
        {
            "name": "d",
            "configJson": '{"mode": {"fanout": {}}, "consistency": ',
            "clusterName": "local",
            "capacityMeter": meter,
            "storageContent": {},
        }
    )
    assert (found.name, found.mode, found.configuration, found.usage.messages) == ("d", "", {}, 1)


def test_a_closed_partition_has_no_values() -> None:
    (part,) = parsing.cluster_storage({"fileStores": [{"partitionId": 2, "state": "CLOSED"}]}).partitions
    assert (part.id, part.state, part.primary, part.journal.size, part.queues) == (2, "closed", None, 0, ())


MALFORMED: list[Any] = [{}, {"fileStores": [{}]}, {"fileStores": 3}, None]


@pytest.mark.parametrize("content", MALFORMED)
def test_a_malformed_summary_is_a_protocol_error(content: Any) -> None:
    if content == {}:
        assert parsing.cluster_storage(content).partitions == ()
        return
    with pytest.raises(bmq.ProtocolError):
        parsing.cluster_storage(content)


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

    from bmq.admin.asking import ask

    if outcome is None:
        assert await ask(Routing(), "DOMAINS RECONFIGURE d", "success") == {}
        return
    with pytest.raises(bmq.errors.AdminError, match=outcome):
        await ask(Routing(), "DOMAINS RECONFIGURE d", "success")
