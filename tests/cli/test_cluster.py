# SPDX-License-Identifier: Apache-2.0
"""The verbs that ask a broker about itself, against the nodes and the proxy of a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Bmq
from tests.fakes.cluster import DOMAIN, ORDERS, OTHER, RecordedCluster

ALL = ("node1", "node2", "proxy", "node0")
VERBS = [
    ["explain", ORDERS],
    ["explain", OTHER],
    ["explain", ORDERS, "--json"],
    ["peek", ORDERS],
    ["peek", OTHER, "--json"],
    ["queues"],
    ["queues", DOMAIN, "--apps"],
    ["queues", "--json"],
    ["stat"],
    ["stat", ORDERS],
    ["stat", DOMAIN, "--json"],
    ["top", "--count", "1"],
    ["top", OTHER, "--count", "1", "--json"],
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RecordedCluster]:
    with RecordedCluster() as cluster:
        yield cluster


@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
def test_no_verb_succeeds_with_the_answer_of_one_node(
    offline: Bmq, cluster: RecordedCluster, arguments: list[str]
) -> None:
    for name in ("node1", "node2", "proxy"):
        ran = offline(*arguments, "-b", cluster.uris(name))
        assert ran.status in (1, 4), (name, ran)
        known = "is a proxy (its active node is node1)" if name == "proxy" else "node0 is"
        assert known in ran.err, (name, ran)
        if ran.out and "--json" in arguments:
            assert all(each["gap"] for each in map(json.loads, ran.lines)), (name, ran)


@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
def test_every_verb_prints_the_answer_of_the_primary(
    offline: Bmq, cluster: RecordedCluster, arguments: list[str]
) -> None:
    expected = offline(*arguments, "-b", cluster.uris("node0"))
    assert expected.status == 0, expected
    ran = offline(*arguments, "-b", cluster.uris(*ALL))
    assert ran.status == 0, ran
    if arguments[0] in ("queues", "stat", "peek"):
        assert ran.out == expected.out
    assert ran.err == expected.err
    if arguments[0] in ("explain", "peek"):
        assert f"node0 at {cluster.uris('node0')}, the primary of this queue, answers" in ran.err


def test_explain_lists_readers_on_other_nodes(offline: Bmq, cluster: RecordedCluster) -> None:
    there = offline("explain", ORDERS, "-b", cluster.uris("node1"))
    assert there.status == 1
    assert "this answer covers node1 only" in there.err
    ran = offline("explain", ORDERS, "-b", cluster.uris("node1", "node0"))
    assert ran.status == 0
    assert "The queue has no consumers" not in ran.out
    assert "1 client has it open" in ran.out
    assert "More clients may have it open behind node2" in ran.out
    ran = offline("explain", ORDERS, "-b", cluster.uris(*ALL))
    assert "2 clients have it open" in ran.out
    assert "More clients" not in ran.out


def test_top_names_the_clients_behind_a_node(offline: Bmq, cluster: RecordedCluster) -> None:
    alone = offline("top", ORDERS, "--count", "1", "-b", cluster.uris("node0"))
    assert "(behind" not in alone.out
    ran = offline("top", ORDERS, "--count", "1", "-b", cluster.uris(*ALL))
    assert ran.status == 0
    assert "(behind node2)" in ran.out


def test_queues_lists_queues_unknown_to_a_node(offline: Bmq, cluster: RecordedCluster) -> None:
    ran = offline("queues", "-b", cluster.uris("node2"))
    assert ran.status == 1
    assert f"1 queue not shown, because only a primary reports its queues: {OTHER}" in ran.err


@pytest.mark.parametrize(
    "refusal",
    [
        "Domain 'nope' doesn't exist",
        "cluster 'nope' not found !",
        "Queue 'none' was not found on domain 'bmq.test'",
        "Unknown command '[ storage = [ ] ]'",
        "Purged 0 message(s)\nErrors encountered: \nNot purging queue [reason: queue is NOT local]",
    ],
)
def test_refusals_in_plain_text_have_status_4(offline: Bmq, cluster: RecordedCluster, refusal: str) -> None:
    cluster["node0"].answers["REFUSED"] = refusal
    ran = offline("admin", "REFUSED", "-b", cluster.uris("node0"))
    assert (ran.status, ran.out) == (4, "")
    assert refusal in ran.err


@pytest.mark.parametrize(
    "refusal",
    [
        "Too high partitionId value: '99'",
        "Unsupported tunable 'NOPE': Issue the LIST_TUNABLES command for the list of supported tunables.",
        "Queue was not found in a storage 'bmq://d/q'",
        "something that a newer broker says",
        "SUCCESSFULLY refused",
        "Failed: rc = -1, reason: none",
        "two\nlines",
        'Response from node "east-1":\nSUCCESS\nResponse from node "east-2":\nno such thing\n',
    ],
)
def test_an_unknown_text_has_status_4(offline: Bmq, cluster: RecordedCluster, refusal: str) -> None:
    cluster["node0"].answers["REFUSED"] = refusal
    ran = offline("admin", "REFUSED", "-b", cluster.uris("node0"))
    assert ran.status == 4
    assert ran.out.strip() == refusal.strip()
    assert "may be a refusal" in ran.err


ANSWERS = """
SUCCESS
HELP - Show list of supported commands
Domain: d
Printing 1 message(s) [0-0 / 1] (total: 1.95 KB)
GUID                              Size        Timestamp (UTC)
Purged 1 message(s) for a total of 1.95 KB from 1 queue(s):
No queue purged.
The following clusters are active:
Cluster ('local') :
Storage Summary:
QUORUM..: 1
Quorum = 1
Quorum set to 1 from 1
"""


@pytest.mark.parametrize(
    "answer", ["", *ANSWERS.strip().splitlines(), "Queue Internals\n---", '    {\n        "a"']
)
def test_an_answer_of_a_broker_has_status_0(offline: Bmq, cluster: RecordedCluster, answer: str) -> None:
    cluster["node0"].answers["ASKED"] = answer
    ran = offline("admin", "ASKED", "-b", cluster.uris("node0"))
    assert (ran.status, ran.err) == (0, "")


@pytest.mark.parametrize("command", ["INFOS", "QUEUE orders INTERNALS"])
def test_explain_without_a_queue_tells_what_it_leaves_out(offline: Bmq, command: str) -> None:
    with RecordedCluster() as cluster:
        uris = cluster.uris(*ALL)
        whole = offline("explain", "-b", uris)
        assert whole.status == 0
        assert f"{ORDERS} (priority) holds" in whole.out
        for node in ALL:
            cluster[node].answers[f"DOMAINS DOMAIN {ORDERS.split('/')[2]} {command}"] = {"other": {}}
        ran = offline("explain", "-b", uris)
    assert ran.status == 1
    assert "is left out" in ran.err
    assert ORDERS not in ran.out
