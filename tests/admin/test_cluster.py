# SPDX-License-Identifier: Apache-2.0
"""The admin client and the nodes of a cluster: the primary of a queue answers questions about the queue."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

import bmq
from bmq.admin import Usage
from bmq.admin.explanation import Explanation
from tests.fakes.broker import Peer
from tests.fakes.cluster import DOMAIN, ORDERS, OTHER, RecordedCluster

LOOK = ["CLUSTERS LIST", "CLUSTERS CLUSTER planets STATUS", "CLUSTERS CLUSTER planets QUEUEHELPER"]


@pytest.fixture
def cluster() -> Iterator[RecordedCluster]:
    with RecordedCluster() as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("asked", "node", "is_primary", "is_proxy"),
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


@pytest.mark.parametrize("first", ["node0", "node1", "node2", "proxy"])
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
    for name in ("node1", "node2", "proxy"):
        asked = [each for each in cluster[name].asked if " QUEUE " in each]
        assert set(asked) <= {f"DOMAINS DOMAIN {DOMAIN} QUEUE other INTERNALS"}, "only for its own clients"


async def test_clients_behind_another_node_are_found_at_its_address(cluster: RecordedCluster) -> None:
    async with bmq.admin.connect(cluster.uris("node0", "node1", "node2")) as admin:
        clients = {each.description: each for each in (await admin.queue(ORDERS).internals()).clients}
    assert clients.keys() == {"node1", "node2"}
    for name, readers, writers in (("node1", 0, 1), ("node2", 1, 0)):
        (behind,) = clients[name].behind
        assert behind.description not in clients
        assert (behind.readers, behind.writers) == (readers, writers)
    cluster["node2"].stop()
    async with bmq.admin.connect(cluster.uris("node0", "node1", "node2")) as admin:
        clients = {each.description: each for each in (await admin.queue(ORDERS).internals()).clients}
    assert clients["node1"].behind
    assert clients["node2"].behind == ()


async def test_an_explanation_names_the_reader_behind_a_node(cluster: RecordedCluster) -> None:
    async with bmq.admin.connect(cluster.uris("node0", "node1", "node2")) as admin:
        internals = await admin.queue(ORDERS).internals()
        domain = await admin.domain(DOMAIN)
    explanation = Explanation(internals, domain)
    (node,) = [each for each in internals.clients if each.readers]
    (reader,) = node.behind
    (app,) = internals.depth.apps
    assert [each.client for each in explanation.readers(app)] == [f"{reader.description} (behind node2)"]
    holding = [each for each in explanation.words(app) if "not confirmed" in each]
    assert not holding or f"{reader.description} (behind node2)" in holding[0]


async def test_an_explanation_counts_lost_messages(cluster: RecordedCluster) -> None:
    async with bmq.admin.connect(cluster.uris("node0")) as admin:
        queue = admin.queue(ORDERS)
        explanation = Explanation(await queue.internals(), await admin.domain(DOMAIN))
        counted = await queue.statistics()
    assert counted is not None
    assert counted.expired == 0
    assert not [each for each in explanation.head(counted) if "expired" in each]
    (expired, rejected) = list(explanation.head(replace(counted, expired=20, rejected=1)))[-2:]
    assert re.match(
        r"20 messages expired since the broker began to count: the time to live \(now \S+ s\) ", expired
    )
    assert rejected.startswith("1 message was deleted after too many deliveries")
    assert "3 posts were refused" in list(explanation.head(replace(counted, refused=3)))[-1]


async def test_an_explanation_names_the_full_quota(cluster: RecordedCluster) -> None:
    async with bmq.admin.connect(cluster.uris("node0")) as admin:
        internals = await admin.queue(ORDERS).internals()
        domain = await admin.domain(DOMAIN)
    full, empty = Usage(401, 400, 0, 0), Usage(0, 0, 0, 0)
    for queue, whole, named in ((empty, full, "domain"), (full, full, "queue"), (empty, empty, "")):
        explanation = Explanation(replace(internals, usage=queue), replace(domain, usage=whole))
        found = [each for each in explanation.head() if "at its quota" in each]
        assert [each.split()[1] for each in found] == ([named] if named else [])
        assert all("quota of 400 messages" in each for each in found)


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
        cluster["node0"].answers[f"DOMAINS DOMAIN {DOMAIN} QUEUE {name} PURGE *"] = {
            "purgedQueues": {
                "queues": [
                    {
                        "queue": {
                            "queueUri": f"bmq://{DOMAIN}/{name}",
                            "appId": "",
                            "numMessagesPurged": 1,
                            "numBytesPurged": 1,
                        }
                    }
                ]
            }
        }
    async with bmq.admin.connect(cluster.uris("node2", "node0")) as admin:
        assert [each.uri for each in await admin.purge_domain(DOMAIN)] == [ORDERS, OTHER]


@pytest.mark.parametrize("primary", ["** NULL **", "** none **", "", None])
async def test_partition_without_primary_is_reported(cluster: RecordedCluster, primary: str | None) -> None:
    for name in ("node0", "node1", "node2"):
        for each in cluster[name].answers[LOOK[1]]["clusterStatus"]["partitionsInfo"]["partitions"]:
            each["primaryNode"] = primary
    async with bmq.admin.connect(cluster.uris("node0", "node1")) as admin:
        standing = await admin.queue(ORDERS).standing()
        assert standing.primary is None
        assert "knows no primary" in standing.gap
        assert "no primary at the moment" in await admin.gap()


async def test_partitions_with_two_primaries(cluster: RecordedCluster) -> None:
    for name in ("node0", "node1", "node2"):
        partitions = cluster[name].answers[LOOK[1]]["clusterStatus"]["partitionsInfo"]["partitions"]
        partitions[1]["primaryNode"] = "[node1, 2]"
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


async def test_a_broker_without_other_nodes_is_asked_once_more_at_most() -> None:
    async with bmq.broker.Broker() as broker, bmq.admin.connect(broker.uri) as admin:
        async with bmq.connect(broker.uri) as session:
            queue = await session.open_queue("bmq://bmq.test.mem.priority/q", write=True)
            asked: list[str] = []
            answer = broker._node.admin

            def listen(command: str, now: float) -> str:
                asked.append(command.removeprefix("ENCODING JSON_COMPACT "))
                return answer(command, now)

            broker._node.admin = listen  # type: ignore[method-assign]
            standing = await admin.queue(queue.uri).standing()
            await admin.queue(queue.uri).depth()
        assert standing.is_primary
        assert standing.gap == "" == await admin.gap()
        assert asked == ["CLUSTERS LIST", "DOMAINS DOMAIN bmq.test.mem.priority QUEUE q INTERNALS"]
