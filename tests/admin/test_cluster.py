# SPDX-License-Identifier: Apache-2.0
"""The admin client and the nodes of a cluster: the primary of a queue answers questions about the queue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import bmq
from bmq.admin import Client, Usage
from bmq.admin.explanation import Explanation
from tests.fakes.broker import Peer
from tests.fakes.cluster import DOMAIN, ORDERS, OTHER, RecordedCluster
from tests.sweeps import sweep

NODES = ("node0", "node1", "node2")


@pytest.fixture
def cluster() -> Iterator[RecordedCluster]:
    with RecordedCluster() as cluster:
        yield cluster


@sweep(
    "asked, node, is_primary, is_proxy",
    [("node0", "node0", True, False), ("node1", "node1", False, False), ("proxy", "", False, True)],
)
async def test_standing_names_node_and_primary(
    cluster: RecordedCluster, asked: str, node: str, is_primary: bool, is_proxy: bool
) -> None:
    async with bmq.admin.connect(cluster.uris(asked)) as admin:
        standing = await admin.queue(ORDERS).standing()
    assert (standing.broker, standing.node) == (cluster.uris(asked), node)
    assert (standing.is_primary, standing.is_proxy) == (is_primary, is_proxy)
    assert standing.primary == (None if is_proxy else "node0")
    assert standing.active_node == ("node1" if is_proxy else None)
    assert bool(standing.gap) is not is_primary


@sweep("first", ["node0", "node1", "node2", "proxy"])
async def test_the_primary_answers_whichever_address_is_first(cluster: RecordedCluster, first: str) -> None:
    others = [name for name in ("node2", "node0", "proxy", "node1") if name != first]
    async with bmq.admin.connect(cluster.uris(first, *others)) as admin:
        assert admin.broker == cluster.uris(first)
        queue = admin.queue(OTHER)
        assert (await queue.standing()).broker == cluster.uris("node0")
        assert (await queue.depth()).messages == 3
        assert (await queue.internals()).mode == "priority"
        assert (await queue.messages()).total == 3
        assert await admin.queues() == (ORDERS, OTHER)
        assert await admin.gap() == ""
        assert (await admin.domain(DOMAIN)).usage.messages == 9
        assert [each.name for each in await admin.domains()] == [DOMAIN]
        figures = {each.uri: each for each in (await admin.statistics()).queues}
    assert (figures[ORDERS].posted, figures[ORDERS].consumers, figures[ORDERS].producers) == (6, 1, 1)


async def test_clients_behind_another_node_are_found_at_its_address(cluster: RecordedCluster) -> None:
    async def clients() -> dict[str, Client]:
        async with bmq.admin.connect(cluster.uris(*NODES)) as admin:
            return {each.description: each for each in (await admin.queue(ORDERS).internals()).clients}

    found = await clients()
    assert found.keys() == {"node1", "node2"}
    for name, readers, writers in (("node1", 0, 1), ("node2", 1, 0)):
        (behind,) = found[name].behind
        assert behind.description not in found
        assert (behind.readers, behind.writers) == (readers, writers)
    cluster["node2"].stop()
    found = await clients()
    assert found["node1"].behind
    assert found["node2"].behind == ()


async def test_an_explanation_counts_lost_messages_and_names_the_full_quota(cluster: RecordedCluster) -> None:
    async with bmq.admin.connect(cluster.uris("node0")) as admin:
        queue = admin.queue(ORDERS)
        internals, domain = await queue.internals(), await admin.domain(DOMAIN)
        counted = await queue.statistics()
    assert counted is not None

    def said(of_queue: int = 0, of_domain: int = 0, **counts: int) -> str:
        full, whole = (Usage(messages, 400, 0, 0) for messages in (of_queue, of_domain))
        explanation = Explanation(replace(internals, usage=full), replace(domain, usage=whole))
        return "\n".join(explanation.head(replace(counted, **counts)))

    assert not re.search("expired|rejected|refused|quota", said())
    lost = r"20 messages expired since the broker began to count: the time to live \(now \S+ s\) "
    assert re.search(lost, said(expired=20))
    assert "1 message was deleted after too many deliveries" in said(rejected=1)
    assert "3 posts were refused" in said(refused=3)
    for usage, named in (((0, 401), "domain"), ((401, 401), "queue")):
        assert re.findall(r"The (\w+) is at its quota of 400 messages", said(*usage)) == [named]


async def test_an_application_has_no_more_messages_than_its_queue(cluster: RecordedCluster) -> None:
    # After the expiry of messages that a consumer held, a real broker counts them for the application.
    answer = cluster["node0"].answers[f"DOMAINS DOMAIN {DOMAIN} QUEUE orders INTERNALS"]
    storage = answer["queueInternals"]["state"]["storage"]
    for held in (4, 0):
        storage["numMessages"] = held
        async with bmq.admin.connect(cluster.uris("node0")) as admin:
            depth = await admin.queue(ORDERS).depth()
        assert [each.messages for each in depth.apps] == [held]


async def test_not_found_names_the_primary(cluster: RecordedCluster) -> None:
    async with bmq.admin.connect(cluster.uris("node2")) as admin:
        with pytest.raises(
            bmq.errors.AdminError, match=r"not found.*node2 is not the primary.*\(node0 is\)"
        ) as error:
            await admin.queue(OTHER).internals()
        assert error.value.command.endswith("INTERNALS")
        assert error.value.broker_message.startswith("Queue 'other'")
        with pytest.raises(bmq.errors.AdminError, match=r"'none' was not found on domain '[a-z.]+'$"):
            await admin.queue(f"bmq://{DOMAIN}/none").internals()  # the cluster has none: no more to say


async def test_proxy_identifies_itself(cluster: RecordedCluster) -> None:
    async with bmq.admin.connect(cluster.uris("proxy")) as admin:
        for question in (
            admin.queue(ORDERS).internals(),
            admin.queue(ORDERS).messages(),
            admin.queue(ORDERS).purge(),
            admin.domain(DOMAIN),
            admin.purge_domain(DOMAIN),
        ):
            with pytest.raises(bmq.errors.AdminError, match=r"is a proxy \(its active node is node1\)"):
                await question
        assert "is a proxy" in await admin.gap()


async def test_a_domain_is_purged_at_the_primaries(cluster: RecordedCluster) -> None:
    for name in ("orders", "other"):
        uri = f"bmq://{DOMAIN}/{name}"
        purged = {"queueUri": uri, "appId": "", "numMessagesPurged": 1, "numBytesPurged": 1}
        cluster["node0"].answers[f"DOMAINS DOMAIN {DOMAIN} QUEUE {name} PURGE *"] = {
            "purgedQueues": {"queues": [{"queue": purged}]}
        }
    async with bmq.admin.connect(cluster.uris("node2", "node0")) as admin:
        assert [each.uri for each in await admin.purge_domain(DOMAIN)] == [ORDERS, OTHER]


def partitions(cluster: RecordedCluster) -> Iterator[list[dict[str, Any]]]:
    """The partitions in the status of each node."""
    for name in NODES:
        status = cluster[name].answers["CLUSTERS CLUSTER planets STATUS"]["clusterStatus"]
        yield status["partitionsInfo"]["partitions"]


@sweep("primary", ["** NULL **", "** none **", "", None])
async def test_partition_without_primary_is_reported(cluster: RecordedCluster, primary: str | None) -> None:
    for known in partitions(cluster):
        for each in known:
            each["primaryNode"] = primary
    async with bmq.admin.connect(cluster.uris("node0", "node1")) as admin:
        standing = await admin.queue(ORDERS).standing()
        assert standing.primary is None
        assert "knows no primary" in standing.gap
        assert "no primary at the moment" in await admin.gap()


async def test_partitions_with_two_primaries(cluster: RecordedCluster) -> None:
    for known in partitions(cluster):
        known[1]["primaryNode"] = "[node1, 2]"
    async with bmq.admin.connect(cluster.uris("node2", "node1", "node0")) as admin:
        assert (await admin.queue(ORDERS).standing()).node == "node0"
        assert (await admin.queue(OTHER).standing()).node == "node1"
        assert await admin.gap() == ""
    async with bmq.admin.connect(cluster.uris("node0")) as admin:
        assert (await admin.queue(ORDERS).standing()).gap == ""
        assert "node1 is the primary of some queues" in await admin.gap()


async def test_hung_node_does_not_delay_the_answers_of_others(cluster: RecordedCluster) -> None:
    async with Peer() as hung:
        hung.hold = {"clientIdentity"}
        uri = f"{cluster.uris('node1')},{hung.uri},{cluster.uris('node0')}"
        async with bmq.admin.connect(uri, timeout=3) as admin:
            for _ in range(3):
                assert (await admin.queue(ORDERS).standing()).node == "node0"
        assert len(hung.connections) == 1, "a silent node is left alone for a while"


async def test_statistics_are_asked_for_again_after_too_often(cluster: RecordedCluster) -> None:
    node = cluster["node0"]
    said = iter([{"error": {"message": "too often"}}, node.answers["STAT SHOW"]])

    class Answers(dict[str, Any]):
        def get(self, command: str, default: Any = None) -> Any:
            return next(said) if command == "STAT SHOW" else super().get(command, default)

    node.answers = Answers(node.answers)
    async with bmq.admin.connect(cluster.uris("node0")) as admin:
        assert (await admin.statistics()).queues
