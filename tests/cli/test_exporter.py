# SPDX-License-Identifier: Apache-2.0
"""``bmq exporter``: what brokers report, as metrics."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

import bmq
from bmq.cli.exporter import Exporter, Labels
from bmq.cli.target import BrokerTarget
from bmq.client.address import parse_addresses
from tests.cli.conftest import Bmq
from tests.fakes.cluster import DOMAIN, ORDERS, OTHER, RecordedCluster
from tests.sweeps import sweep

ROOT = Path(__file__).parents[2]
QUEUE = "bmq://bmq.test.mem.priority/orders"
FANOUT = "bmq://bmq.test.mem.fanout/orders"
#: Names in upstream's plugin, as Prometheus has them: counters, times, and the rest.
COUNTERS = (
    "put_msgs put_bytes push_msgs push_bytes ack_msgs nack_msgs nack_noquorum_msgs confirm_msgs reject_msgs "
    "gc_msgs"
)
TIMES = "ack_time_avg ack_time_max confirm_time_avg confirm_time_max queue_time_avg queue_time_max"
GAUGES = "content_msgs content_bytes cfg_msgs cfg_bytes producers consumers"


class Metrics:
    """The samples of one scrape."""

    def __init__(self, exporter: Exporter) -> None:
        registry = CollectorRegistry()
        registry.register(exporter)
        text = generate_latest(registry).decode()
        self.families: list[Metric] = list(text_string_to_metric_families(text))
        self.samples: list[Sample] = [sample for family in self.families for sample in family.samples]

    def all(self, name: str, **labels: str) -> list[Sample]:
        return [
            sample
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def __call__(self, name: str, **labels: str) -> float:
        (sample,) = self.all(name, **labels)
        return sample.value


async def collect(uri: str, rounds: int = 1, **limits: Any) -> Metrics:
    """Ask brokers a number of times, and scrape."""
    chosen: dict[str, Any] = {"max_queues": 1000, "max_apps": 20, "max_details": 200, "only": frozenset()}
    target = BrokerTarget(uri, "bmq exporter", 5.0)
    exporter = Exporter(target, parse_addresses(uri), interval=15.0, **{**chosen, **limits})
    try:
        for _ in range(rounds):
            await exporter.ask_all()
        return Metrics(exporter)
    finally:
        await exporter.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RecordedCluster]:
    with RecordedCluster() as cluster:
        yield cluster


async def post(broker: bmq.broker.Broker, **messages: int) -> None:
    """Post messages to queues of the domain, from a session that has ended when the brokers are asked."""
    async with bmq.connect(broker.uri) as session:
        for name, count in messages.items():
            queue = await session.open_queue(QUEUE.replace("orders", name), write=True)
            await queue.post_many([b"x"] * count)


async def test_depth_and_counters_of_a_queue(bmq_broker: bmq.broker.Broker, bmq_session: bmq.Session) -> None:
    queue = await bmq_session.open_queue(QUEUE, read=True, write=True)
    await queue.post_many([b"abc"] * 5)
    (await queue.receive()).confirm()
    held = await queue.receive()
    await queue.flush()
    metrics = await collect(bmq_broker.uri)
    for name, value in {"put_msgs_total": 5, "put_bytes_total": 15, "consumers": 1, "producers": 1}.items():
        assert metrics(f"bmq_queue_{name}", queue=QUEUE, role="primary") == value
    content = metrics("bmq_queue_content_msgs", queue=QUEUE)
    assert content == metrics("bmq_queue_app_unconfirmed_msgs", queue=QUEUE, app_id="__default")
    assert metrics("bmq_domain_content_msgs", domain="bmq.test.mem.priority") == content
    assert metrics.all("bmq_queue_app_undelivered_msgs") == []
    assert 0 <= metrics("bmq_queue_oldest_message_age_seconds", queue=QUEUE) < 60
    ttl = metrics("bmq_queue_ttl_seconds", queue=QUEUE)
    assert ttl - 60 < metrics("bmq_queue_oldest_message_ttl_seconds", queue=QUEUE) <= ttl
    assert metrics("bmq_broker_up", broker=bmq_broker.uri) == 1
    held.confirm()


async def test_undelivered_messages_have_a_reason(bmq_broker: bmq.broker.Broker) -> None:
    await post(bmq_broker, orders=3)

    async def undelivered(reason: str) -> float:
        metrics = await collect(bmq_broker.uri)
        return metrics("bmq_queue_app_undelivered_msgs", queue=QUEUE, reason=reason)

    assert await undelivered("no_consumer") == 3
    async with bmq.connect(bmq_broker.uri) as other:
        reader = await other.open_queue(QUEUE, read=True)
        async with reader.subscribe("x == 1"):
            assert await undelivered("unmatched") == 3
        async with reader.subscribe(max_unconfirmed_messages=1) as consumer:
            await consumer.wait()
            assert await undelivered("full") == 2


async def test_limits_and_chosen_domains(bmq_broker: bmq.broker.Broker, bmq_session: bmq.Session) -> None:
    await post(bmq_broker, orders=1)
    await (await bmq_session.open_queue(FANOUT, write=True)).post(b"x")
    metrics = await collect(bmq_broker.uri, max_apps=2, only=frozenset({"bmq.test.mem.fanout"}))
    assert len(metrics.all("bmq_queue_app_content_msgs", queue=FANOUT)) == 2
    assert metrics("bmq_exporter_left_out_apps") == 1
    assert [each.labels["queue"] for each in metrics.all("bmq_queue_content_msgs")] == [FANOUT]
    assert metrics("bmq_exporter_commands_total", command="DOMAIN INFOS") == 1


async def test_queues_beyond_the_limit_are_counted_and_stay_in_the_sum_of_the_domain(
    bmq_broker: bmq.broker.Broker,
) -> None:
    await post(bmq_broker, one=1, three=3, two=2)
    metrics = await collect(bmq_broker.uri, max_queues=2)
    shown = [each.labels["queue"].rpartition("/")[2] for each in metrics.all("bmq_queue_content_msgs")]
    assert shown == ["three", "two"], "the deepest queues"
    assert metrics("bmq_exporter_left_out_queues") == 1
    assert metrics("bmq_domain_content_msgs", domain="bmq.test.mem.priority") == 6
    assert metrics("bmq_domain_queues", domain="bmq.test.mem.priority") == 3
    nothing = await collect(bmq_broker.uri, max_queues=0)
    assert nothing.all("bmq_queue_content_msgs") == nothing.all("bmq_domain_queues") == []
    assert nothing("bmq_exporter_left_out_domains") == 1


async def test_queues_take_turns_for_their_details(bmq_broker: bmq.broker.Broker) -> None:
    await post(bmq_broker, one=1, two=1, three=1)
    for rounds in (1, 2, 3):
        metrics = await collect(bmq_broker.uri, rounds, max_details=1)
        assert len(metrics.all("bmq_queue_oldest_message_age_seconds")) == rounds
        assert metrics("bmq_exporter_commands_total", command="QUEUE INTERNALS") == rounds


@sweep("first", ["node0", "node1", "proxy"])
async def test_a_queue_of_a_cluster_has_the_figures_of_its_primary(
    cluster: RecordedCluster, first: str
) -> None:
    names = (first, *(name for name in ("node0", "node1", "node2", "proxy") if name != first))
    metrics = await collect(cluster.uris(*names))
    for uri, messages, size in ((ORDERS, 6, 60), (OTHER, 3, 3)):
        assert metrics("bmq_queue_content_msgs", queue=uri, node="node0", role="primary") == messages
        assert metrics("bmq_queue_content_bytes", queue=uri) == size
        assert metrics("bmq_queue_put_msgs_total", queue=uri) == messages
    assert metrics("bmq_domain_cfg_msgs", domain=DOMAIN, node="node0") == 4_000_000
    for name in ("node0", "node1", "node2"):
        assert metrics("bmq_cluster_healthiness", node=name) == 1
        leader = metrics("bmq_cluster_elector_state", node=name, state="leader")
        assert leader == (name == "node0")
        for partition in ("0", "1"):
            assert metrics("bmq_cluster_partition_primary", node=name, partition=partition, primary="node0")
            assert metrics("bmq_cluster_partition_primary_active", node=name, partition=partition) == 1
        assert len(metrics.all("bmq_cluster_peer_available", node=name)) == 2
    proxy = cluster.uris("proxy")
    assert metrics("bmq_cluster_proxy_upstream", node=proxy, upstream="node1") == 1
    assert metrics("bmq_broker_info", broker=proxy, role="proxy") == 1


async def test_no_series_has_two_samples(cluster: RecordedCluster, bmq_broker: bmq.broker.Broker) -> None:
    async with bmq.broker.Broker() as other:
        for broker in (bmq_broker, other):
            await post(broker, orders=1)
        uris = [bmq_broker.uri, other.uri, cluster.uris("node0"), cluster.uris("node1", "proxy")]
        same = cluster.uris("node0").replace("127.0.0.1", "localhost")
        metrics = await collect(",".join([*uris, same]))
    series = [(sample.name, *sorted(sample.labels.items())) for sample in metrics.samples]
    assert len(series) == len(set(series))
    assert sum(sample.value for sample in metrics.all("bmq_broker_up")) == 6
    nodes = [sample.labels["node"] for sample in metrics.all("bmq_queue_content_msgs", queue=QUEUE)]
    assert sorted(nodes) == sorted([bmq_broker.uri, other.uri]), "localhost is not unique"


async def test_a_replica_and_a_proxy_alone_report_their_role(cluster: RecordedCluster) -> None:
    replica = await collect(cluster.uris("node1"))
    assert {each.labels["role"] for each in replica.all("bmq_queue_put_msgs_total")} == {"replica"}
    assert replica.all("bmq_queue_content_msgs") == []
    proxy = await collect(cluster.uris("proxy"))
    assert {each.labels["role"] for each in proxy.all("bmq_queue_put_msgs_total")} == {"proxy"}


async def test_a_lost_primary_is_a_sample_of_zero() -> None:
    with RecordedCluster() as cluster:
        status = cluster["node1"].answers["CLUSTERS CLUSTER planets STATUS"]["clusterStatus"]
        partition = status["partitionsInfo"]["partitions"][0]
        del partition["primaryNode"]
        partition["primaryStatus"] = "UNDEFINED"
        metrics = await collect(cluster.uris("node1"))
        assert metrics("bmq_cluster_partition_primary_active", partition="0") == 0
        assert metrics.all("bmq_cluster_partition_primary", partition="0") == []


async def test_a_broker_that_is_down_is_a_sample_and_not_an_error(
    cluster: RecordedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        absent = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
        metrics = await collect(f"{absent},{cluster.uris('node0')}", 2)
    assert metrics("bmq_broker_up", broker=absent) == 0
    assert metrics("bmq_exporter_failed_rounds_total", broker=absent, error="ConnectionFailed") == 2
    assert metrics("bmq_broker_up", broker=cluster.uris("node0")) == 1
    assert metrics("bmq_queue_content_msgs", queue=ORDERS) == 6
    assert capsys.readouterr().err.count("does not answer") == 1, "one line for all failures in a row"


async def with_answer(command: str, answer: object, rounds: int = 1) -> tuple[Metrics, Metrics]:
    """Scrape a node that gives another answer to a command; scrape again with the right answer."""
    with RecordedCluster() as cluster:
        answers = cluster["node0"].answers
        right, answers[command] = answers[command], answer
        metrics = await collect(cluster.uris("node0"), rounds)
        answers[command] = right
        return metrics, await collect(cluster.uris("node0"))


@sweep(
    "command, answer",
    [
        ("CLUSTERS LIST", {"error": {"message": "no"}}),
        ("CLUSTERS LIST", {"clusterList": {"clusters": [{"name": "planets"}]}}),
        ("STAT SHOW", {"stats": "[]"}),
        ("STAT SHOW", "not JSON"),
        ("CLUSTERS CLUSTER planets STATUS", {"clusterStatus": {}}),
    ],
)
async def test_a_malformed_answer_fails_the_round_alone(command: str, answer: object) -> None:
    metrics, after = await with_answer(command, answer)
    assert (metrics("bmq_broker_up"), after("bmq_broker_up")) == (0, 1)


@sweep(
    "command, answer",
    [
        (f"DOMAINS DOMAIN {DOMAIN} INFOS", {"other": {}}),
        (f"DOMAINS DOMAIN {DOMAIN} QUEUE orders INTERNALS", {"queueInternals": {}}),
    ],
)
async def test_an_unreadable_queue_or_domain_is_left_out_alone(
    command: str, answer: object, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics, after = await with_answer(command, answer, rounds=3)
    assert metrics("bmq_broker_up") == metrics("bmq_exporter_unreadable") == 1
    assert metrics("bmq_queue_put_msgs_total", queue=ORDERS) == 6
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert (after("bmq_broker_up"), after("bmq_exporter_unreadable")) == (1, 0)


@sweep(
    "command, missing",
    [
        ("INFOS", "bmq_domain_content_msgs"),
        ("QUEUE orders INTERNALS", "bmq_queue_app_content_msgs"),
    ],
)
async def test_a_removed_queue_or_domain_fails_nothing(command: str, missing: str) -> None:
    gone = {"error": {"message": "gone"}}
    metrics, _ = await with_answer(f"DOMAINS DOMAIN {DOMAIN} {command}", gone)
    assert metrics("bmq_broker_up") == 1
    assert metrics("bmq_queue_put_msgs_total", queue=ORDERS) == 6
    assert [each for each in metrics.all(missing) if each.labels.get("queue", ORDERS) == ORDERS] == []


def test_a_name_keeps_its_place_until_it_is_gone_everywhere() -> None:
    labels = Labels(2)
    assert labels.choose("one", ["a", "b", "c"]) == {"a", "b"}
    assert labels.choose("two", ["c", "b"]) == {"b"}
    assert labels.left_out == 1
    assert labels.choose("one", ["c", "b"]) == {"b", "c"}
    assert labels.choose("two", ["d"]) == frozenset()
    assert labels.left_out == 1
    labels.forget("two")
    assert labels.left_out == 0


async def test_the_plugin_names_are_kept(cluster: RecordedCluster) -> None:
    metrics = await collect(cluster.uris("node0"))
    names = {sample.name for sample in metrics.samples}
    wanted = [*GAUGES.split(), *(f"{each}_seconds" for each in TIMES.split())]
    wanted += [f"{each}_total" for each in COUNTERS.split()]
    assert names >= {f"bmq_queue_{each}" for each in wanted}
    page = (ROOT / "docs" / "operate" / "prometheus.md").read_text(encoding="utf-8")
    for name in [sample.name for sample in metrics.samples]:
        assert f"`{name}`" in page, f"docs/operate/prometheus.md does not describe {name}"


# the verb


def test_a_missing_extra_is_named(
    offline: Bmq, cluster: RecordedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    ran = offline("exporter", cluster.uris("node0"))
    assert ran.status == 2
    assert "pip install 'bmq[cli,prometheus]'" in ran.err
