# SPDX-License-Identifier: Apache-2.0
"""peek, queues, stat, purge, admin, top, explain: reports of a broker and of the nodes of a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

import bmq
from bmq.testing import BackgroundBroker
from tests.cli.conftest import REAL, Aside, Bmq, Ran, Terminal
from tests.fakes.cluster import DOMAIN, ORDERS, OTHER, RecordedCluster
from tests.integration.steps import NewUri
from tests.sweeps import sweep

FANOUT = "bmq.test.mem.fanout"


def test_peek_lists_waiting_messages(run: Bmq, bmq_queue_uri: str) -> None:
    guids = run("post", bmq_queue_uri, *"abcde", "--guids").lines
    ran = run("peek", bmq_queue_uri, "--offset", "1", "--count", "2", "--json")
    assert [(each["place"], each["guid"]) for each in ran.json] == [(1, guids[1]), (2, guids[2])]
    ran = run("peek", bmq_queue_uri, "--offset", "-1")
    assert guids[4] in ran.out
    assert "1 of 5 messages" in ran.err
    assert run("tail", bmq_queue_uri, "--fields", "data").lines == list("abcde"), "nothing was taken"


def test_queues_lists_the_queues(run: Bmq, bmq_new_queue_uri: NewUri) -> None:
    queue = bmq_new_queue_uri(FANOUT)
    run("post", queue, "a", "b")
    run("tail", f"{queue}?id=foo", "--confirm")
    (found,) = [each for each in run("queues", "--json").json if each["uri"] == queue]
    assert (found["messages"], found["mode"], found["readers"]) == (2, "fanout", 0)
    assert {app: each["messages"] for app, each in found["apps"].items()} == {"foo": 0, "bar": 2, "baz": 2}
    lines = [line.split() for line in run("queues", FANOUT, "--apps").lines if line.startswith(queue)]
    assert [line[:3] for line in lines] == [[queue, "foo", "0"], [queue, "bar", "2"], [queue, "baz", "2"]]
    assert run("queues", "no.such.domain").status == 4


def test_stat_shows_the_totals(run: Bmq, aside: Aside, bmq_queue_uri: str) -> None:
    queue = aside.do(aside.session.open_queue(bmq_queue_uri, write=True))
    aside.do(queue.post_many([b"m"] * 7))
    while True:
        found = [each for each in run("stat", "--json").json if each["uri"] == bmq_queue_uri]
        if found and found[0]["posted"] == 7:
            break
    assert (found[0]["messages"], found[0]["producers"]) == (7, 1)
    assert found[0]["values"]["queue_put_msgs_abs"] == 7
    ran = run("stat", bmq_queue_uri)
    assert bmq_queue_uri in ran.out
    assert len(ran.lines) == 2


def test_purge_deletes_the_messages(run: Bmq, bmq_new_queue_uri: NewUri) -> None:
    queue = bmq_new_queue_uri(FANOUT)
    run("post", queue, "a", "b")
    ran = run("purge", queue)
    assert ran.status == 2
    assert "--yes" in ran.err
    (purged,) = run("purge", f"{queue}?id=foo", "--yes", "--json").json
    assert (purged["queue"], purged["appId"], purged["messages"]) == (queue, "foo", 2)
    (purged,) = run("purge", queue, "--yes", "--json").json
    assert purged["messages"] == 2
    assert run("purge", queue.replace("bmq.test", "no.such"), "--yes").status == 4


def test_admin_prints_the_answer(run: Bmq) -> None:
    assert "DOMAINS DOMAIN <name> PURGE" in run("admin", "HELP").out
    ran = run("admin", "--json", "CLUSTERS CLUSTER local STATUS")
    assert ran.json[0]["clusterStatus"]["isHealthy"] is True
    ran = run("admin", "--json", "DOMAINS", "DOMAIN", "no.such.domain", "INFOS")
    assert ran.status == 4
    assert "no.such.domain" in ran.err


def test_top_shows_the_queues_and_the_totals_of_all(
    run: Bmq, aside: Aside, bmq_new_queue_uri: NewUri
) -> None:
    uris = [bmq_new_queue_uri() for _ in range(3)]
    for uri in uris:
        aside.do(aside.do(aside.session.open_queue(uri, write=True)).post_many([b"m"] * 1000))
    ran = run("top", uris[0], "--count", "2", "--interval", "0.2", "--json")
    assert ran.status == 0
    assert {each["uri"] for each in ran.json} == {uris[0]}
    assert run("top", "--sort", "name").status == 2
    while True:
        ran = run("top", "bmq.test.mem.priority", "--count", "1", "--limit", "1", "--sort", "depth")
        if int(ran.lines[0].split(" queue")[0].split()[-1]) >= 3:
            break
    assert "post/s" in ran.out
    assert int(ran.lines[0].split(" message")[0].split()[-1].replace(",", "")) >= 3000
    assert sum(line.startswith("bmq://") for line in ran.lines) == 1
    for uri in uris:
        run("purge", uri, "--yes")


def test_looking_at_an_unknown_queue_creates_no_queue(run: Bmq, bmq_new_queue_uri: NewUri) -> None:
    for verb in ("peek", "stat", "explain", "dead"):
        queue = bmq_new_queue_uri()
        assert run(verb, queue).status == 4, verb
        assert queue not in run("queues").out, verb


# ---- admin asks before a dangerous command

URI = f"bmq://{FANOUT}/dangerous"
PARTITION = "CLUSTERS CLUSTER local STORAGE PARTITION"
#: Commands, and words of the question.
DANGEROUS: list[tuple[str, list[str]]] = [
    (f"DOMAINS DOMAIN {FANOUT} PURGE", ["all queues of the domain", "2 messages", f"{URI}: 2 messages"]),
    (f"domains domain {FANOUT} queue dangerous purge foo", [f"{URI}?id=foo: 2 messages"]),
    (f"ENCODING TEXT DOMAINS DOMAIN {FANOUT} QUEUE dangerous PURGE *", [f"{URI}: 2 messages, 2 B"]),
    (f"DOMAINS REMOVE {FANOUT}", ["refuses clients", "1 queue, 2 messages"]),
    ("DOMAINS REMOVE no.such.domain", ["Domain 'no.such.domain' doesn't exist"]),
    (f"DOMAINS REMOVE {FANOUT} FINALIZE", ["forgets the domain"]),
    (f"{PARTITION} 0 DISABLE", ["until ENABLE", f"{URI}: 2 messages"]),
    (f"{PARTITION} all ROLLOVER", ["new files", "1 queue"]),
    (f"{PARTITION} x DISABLE", ["until ENABLE", "the amounts are unknown"]),
    ("CLUSTERS CLUSTER local STATE ELECTOR SET QUORUM 3", ["the cluster has 1 node"]),
    ("CLUSTERS CLUSTER local STORAGE REPLICATION SET_ALL QUORUM 3", ["the cluster has 1 node"]),
    ('{"domains": {"remove": {"domain": "d"}}}', ["has members that delete"]),
    ("WIPE EVERYTHING", ["unknown to this bmq"]),
]


def test_a_dangerous_command_is_refused_without_a_terminal(offline: Bmq) -> None:
    with BackgroundBroker() as broker:
        offline("post", URI, "a", "b", "--broker", broker.uri)
        for command, shown in DANGEROUS:
            ran = offline("admin", command, "--broker", broker.uri)
            assert (ran.status, ran.out) == (2, ""), command
            for each in ("--yes is required without a terminal", *shown):
                assert each in ran.err, command
            assert broker.call(lambda broker: sum(map(len, broker.queues.values()))) == 2, command


def test_only_yes_confirms(run: Bmq, monkeypatch: pytest.MonkeyPatch) -> None:
    run("post", URI, "a", "b")
    monkeypatch.setattr("bmq.cli.output.has_terminal", lambda: True)
    command = f"DOMAINS DOMAIN {FANOUT} PURGE"
    for answer in ("", "\n", "n\n", "yess\n"):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        ran = run("admin", command)
        assert (ran.status, ran.out) == (1, "")
        assert "Execute the command? [y/N]" in ran.err
    monkeypatch.setattr(sys, "stdin", Terminal("yes\n"))
    assert '"numMessagesPurged": 2' in run("admin", command).out


# ---- explain


class Subject:
    """A queue with consumers, of which the tests ask for an explanation."""

    def __init__(self, run: Bmq, aside: Aside, uri: str) -> None:
        self.run, self.aside, self.uri = run, aside, uri
        self.reader = aside.do(aside.session.open_queue(uri, read=True))

    def subscribe(self, text: str, **options: Any) -> bmq.Consumer:
        return self.aside.do(self.reader.subscribe(text, **options).open())

    def post(self, *arguments: str) -> None:
        assert self.run("post", self.uri, *arguments).status == 0

    def hold(self, consumer: bmq.Consumer | bmq.Queue, count: int) -> None:
        for _ in range(count):
            self.aside.do(consumer.receive(20))

    def explain(self, *arguments: str) -> Ran:
        return self.run("explain", self.uri, *arguments)


@pytest.fixture
def subject(run: Bmq, aside: Aside, bmq_queue_uri: str) -> Subject:
    return Subject(run, aside, bmq_queue_uri)


Subscriptions = list[tuple[str, dict[str, int]]]
#: Subscriptions, posts, number of messages that the first subscription holds, arguments, words of the answer.
EXPLAINED: dict[str, tuple[Subscriptions, list[list[str]], int, list[str], list[str]]] = {
    "a consumer at its limit": (
        [("x >= 0", {"max_unconfirmed_messages": 2, "priority": 3})],
        [[*"abcde", "-p", "x=1"]],
        2,
        ["-p", "x=1"],
        [
            "5 messages wait in the queue",
            "2 of them are delivered and not confirmed",
            "at its limit of unconfirmed messages",
            "2 of 2 (full)",
            "The message waits: the matching consumers are full",
        ],
    ),
    "unmatched messages": (
        [("x == 1", {})],
        [["a", "-p", "x=3"]],
        0,
        [],
        ["no subscription matches", "--property"],
    ),
    "a mover": (
        [("bmq_due <= 1000", {})],
        [["a", "-p", "bmq_due=2000"]],
        0,
        [],
        ["matches a message once it is due"],
    ),
    "complete delivery": (
        [("", {})],
        [["a", "b"]],
        2,
        [],
        ["only confirmations are missing", "omits confirm()"],
    ),
    "an illegal expression": (
        [("x >", {"strict": False})],
        [],
        0,
        ["--empty"],
        ["not legal: matches every message", "The message goes to"],
    ),
}


@pytest.mark.parametrize("case", EXPLAINED)
def test_explain_says_why_messages_wait(subject: Subject, case: str) -> None:
    subscriptions, posts, held, arguments, words = EXPLAINED[case]
    consumers = [subject.subscribe(text, **options) for text, options in subscriptions]
    for each in posts:
        subject.post(*each)
    subject.hold(consumers[0], held)
    ran = subject.explain(*arguments)
    assert [each for each in words if each not in ran.out] == []
    assert subject.explain(*arguments, "--json").json


def test_explain_names_a_consumer_that_holds_purged_messages(subject: Subject) -> None:
    consumer = subject.subscribe("x >= 0", max_unconfirmed_messages=2)
    subject.post("a", "b", "-p", "x=1")
    subject.hold(consumer, 2)
    subject.run("purge", subject.uri, "--yes")
    ran = subject.explain()
    assert "No messages wait in the queue." in ran.out
    assert "which the queue no longer holds" in ran.out


def test_explain_reports_a_returned_message(subject: Subject) -> None:
    subject.subscribe("x == 2")
    subject.post("a", "-p", "x=1")
    subject.run("tail", subject.uri, "--force")
    subject.post("b", "-p", "x=2")
    ran = subject.explain()
    assert "no subscription matches at least one of them" in ran.out
    assert "1 is to be redelivered" in ran.out


def test_explain_shows_the_decision_for_a_message_and_the_order_of_priorities(subject: Subject) -> None:
    subject.subscribe("x == 1", priority=9)
    subject.subscribe("x == 2", priority=4)
    (explained,) = subject.explain("-p", "x=3", "--json").json
    decision = explained["applications"]["__default"]["decision"]
    assert decision["candidates"] == []
    assert "No subscription matches" in decision["text"]
    ran = subject.explain("-p", "x=2")
    assert "The message goes to" in ran.out
    order = [line.split()[0] for line in ran.lines if "x == " in line]
    assert order == ["9", "4", "9", "4"], "in the order of the priorities, in both tables"


def test_explain_without_a_queue_explains_all_queues_with_messages(
    subject: Subject, bmq_new_queue_uri: NewUri
) -> None:
    run, unread, empty = subject.run, bmq_new_queue_uri(), bmq_new_queue_uri()
    subject.subscribe("x == 1")
    subject.post("a", "-p", "x=3")
    run("post", unread, "a", "b")
    run("post", empty, "a")
    run("purge", empty, "--yes")
    ran = run("explain")
    assert f"{unread} (priority) holds 2 messages" in ran.out
    assert "The queue has no consumers" in ran.out
    assert f"{subject.uri} (priority) holds 1 message" in ran.out
    assert "no subscription matches" in ran.out
    assert empty not in ran.out
    assert {unread, subject.uri} <= {each["queue"]["uri"] for each in run("explain", "--json").json}


def test_explain_without_a_queue_begins_with_a_full_queue(run: Bmq, bmq_new_queue_uri: NewUri) -> None:
    deep, full = bmq_new_queue_uri(), bmq_new_queue_uri("bmq.test.small.priority")
    later = deep + ".delayed"
    run("post", deep, *map(str, range(20)))
    run("post", later, "x")
    run("post", full, *map(str, range(20)))
    out = run("explain").out
    assert out.index(full) < out.index(deep)
    assert "The queue is at its quota of 10 messages" in " ".join(out.split())
    assert f"bmq mover {later}" in " ".join(out.split())
    if not REAL:  # which counts nothing for a new queue, for up to a minute
        assert "posts were refused since the broker began to count" in " ".join(out.split())


def test_explain_names_the_member_that_holds_a_key(subject: Subject) -> None:
    """Bucket 2 has a second owner, which waits for the first one."""
    assert "No group reads the queue" in subject.explain("--group-key", "1234").out
    for bucket in (1, 3):
        subject.subscribe(f"(CustomerId - {bucket}) % 4 == 0", priority=-5)
    subject.subscribe("(CustomerId - 2) % 4 == 0", priority=-6)
    subject.subscribe("(CustomerId - 2) % 4 == 0 && CustomerId > 0", priority=-9)
    ran = subject.explain("--group-key", "1233")
    assert "Key 1233 is in bucket 1 of 4." in ran.out
    assert "holds the bucket" in ran.out
    assert "has the bucket next" not in ran.out
    (explained,) = subject.explain("--group-key", "-2", "--json").json
    words = " ".join(explained["applications"]["__default"]["words"])
    assert "Key -2 is in bucket 2 of 4." in words
    assert "has the bucket next" in words
    assert "No member is subscribed to the bucket" in subject.explain("--group-key", "4").out
    assert "'x' is no integer" in subject.explain("--group-key", "x").out


def test_explain_names_the_types_that_it_assumes(subject: Subject) -> None:
    subject.post("a", "-p", "CustomerId:string=1234")
    ran = subject.explain("-p", "CustomerId=1234", "-p", "vip=true", "-p", "n:int32=1")
    assert "CustomerId is taken as INT64; vip is taken as BOOL: " in ran.err
    assert "NAME:TYPE=VALUE" in ran.err
    assert "taken as" not in subject.explain("-p", "CustomerId:string=1234").err


def test_explain_names_a_reader_of_higher_priority(subject: Subject, uri: str) -> None:
    subject.subscribe("x == 1")
    aside = Aside(uri)
    scratch = Subject(subject.run, aside, subject.uri)
    scratch.subscribe("x == 2", priority=10)
    assert "receives nothing" not in subject.explain().out, "other messages"
    scratch.subscribe("x == 1", priority=10)
    (line,) = [line for line in subject.explain().lines if "receives nothing" in line]
    assert "the higher priority (10 instead of 0)" in line
    aside.close()


def test_explain_finds_a_message_by_its_guid(run: Bmq, bmq_new_queue_uri: NewUri) -> None:
    queue = bmq_new_queue_uri(FANOUT)
    guids = run("post", queue, "a", "b", "c", "--guids").lines
    run("tail", f"{queue}?id=foo", "--confirm")
    ran = run("explain", queue, guids[1].lower())
    assert ran.status == 0
    assert "The message is number 2 of 3 waiting messages for bar." in ran.out
    assert "wait for foo" not in ran.out
    assert "No messages wait for application foo." in ran.out
    ran = run("explain", queue, "0" * 32)
    assert ran.status == 1
    assert "does not contain message" in ran.out


def test_explain_shows_one_application_and_names_the_readers_of_others(
    run: Bmq, aside: Aside, bmq_new_queue_uri: NewUri
) -> None:
    queue = bmq_new_queue_uri(FANOUT)
    run("post", queue, "a")
    wrong = aside.do(aside.session.open_queue(f"{queue}?id=foo", read=True))
    aside.do(wrong.subscribe().open())
    shown = run("explain", f"{queue}?id=bar").out
    assert "Application bar has no consumers" in shown
    assert "application foo" not in shown
    assert f"A consumer of bar opens {queue}?id=bar. Clients that read other applications: " in shown
    assert " (foo)." in shown
    ran = run("explain", f"{queue}?id=nope")
    assert ran.status == 2
    assert "foo, bar, baz" in ran.err


# ---- the nodes and the proxy of a cluster

ALL = ("node1", "node2", "proxy", "node0")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RecordedCluster]:
    with RecordedCluster() as cluster:
        yield cluster


@sweep(
    "arguments",
    [
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
    ],
)
def test_the_primary_answers_every_verb_and_one_other_node_is_a_failure(
    offline: Bmq, cluster: RecordedCluster, arguments: list[str]
) -> None:
    expected = offline(*arguments, "-b", cluster.uris("node0"))
    assert expected.status == 0, expected
    ran = offline(*arguments, "-b", cluster.uris(*ALL))
    assert (ran.status, ran.err) == (0, expected.err), ran
    if arguments[0] in ("queues", "stat", "peek"):
        assert ran.out == expected.out
    if arguments[0] in ("explain", "peek"):
        assert f"node0 at {cluster.uris('node0')}, the primary of this queue, answers" in ran.err
    for name in ("node1", "node2", "proxy"):
        ran = offline(*arguments, "-b", cluster.uris(name))
        assert ran.status in (1, 4), (name, ran)
        known = "is a proxy (its active node is node1)" if name == "proxy" else "node0 is"
        assert known in ran.err, (name, ran)
        if "--json" in arguments:
            assert all(each["gap"] for each in ran.json), (name, ran)


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
    assert "(behind node2)" in ran.out
    assert "More clients" not in ran.out


def test_top_names_the_clients_behind_a_node(offline: Bmq, cluster: RecordedCluster) -> None:
    assert "(behind" not in offline("top", ORDERS, "--count", "1", "-b", cluster.uris("node0")).out
    assert "(behind node2)" in offline("top", ORDERS, "--count", "1", "-b", cluster.uris(*ALL)).out


def test_queues_lists_queues_unknown_to_a_node(offline: Bmq, cluster: RecordedCluster) -> None:
    ran = offline("queues", "-b", cluster.uris("node2"))
    assert ran.status == 1
    assert f"1 queue not shown, because only a primary reports its queues: {OTHER}" in ran.err


REFUSALS = [
    "Domain 'nope' doesn't exist",
    "cluster 'nope' not found !",
    "Queue 'none' was not found on domain 'bmq.test'",
    "Unknown command '[ storage = [ ] ]'",
    "Purged 0 message(s)\nErrors encountered: \nNot purging queue [reason: queue is NOT local]",
]
UNKNOWN = [
    "Too high partitionId value: '99'",
    "Unsupported tunable 'NOPE': Issue the LIST_TUNABLES command for the list of supported tunables.",
    "Queue was not found in a storage 'bmq://d/q'",
    "something that a newer broker says",
    "SUCCESSFULLY refused",
    "Failed: rc = -1, reason: none",
    "two\nlines",
    'Response from node "east-1":\nSUCCESS\nResponse from node "east-2":\nno such thing\n',
]
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


@sweep(
    "text, status, said",
    [
        *((text, 4, text) for text in REFUSALS),
        *((text, 4, "may be a refusal") for text in UNKNOWN),
        *((text, 0, "") for text in ("", *ANSWERS.strip().splitlines())),
        *((text, 0, "") for text in ("Queue Internals\n---", '    {\n        "a"')),
    ],
)
def test_the_status_of_admin_tells_a_refusal_in_plain_text(
    offline: Bmq, cluster: RecordedCluster, text: str, status: int, said: str
) -> None:
    cluster["node0"].answers["ASKED"] = text
    ran = offline("admin", "ASKED", "-b", cluster.uris("node0"))
    assert ran.status == status
    assert said in ran.err if said else ran.err == ""
    assert ran.out.strip() == ("" if text in REFUSALS else text.strip())


@sweep("command", ["INFOS", "QUEUE orders INTERNALS"])
def test_explain_without_a_queue_tells_what_it_leaves_out(offline: Bmq, command: str) -> None:
    with RecordedCluster() as cluster:
        uris = cluster.uris(*ALL)
        whole = offline("explain", "-b", uris)
        assert whole.status == 0
        assert f"{ORDERS} (priority) holds" in whole.out
        for node in ALL:
            cluster[node].answers[f"DOMAINS DOMAIN {DOMAIN} {command}"] = {"other": {}}
        ran = offline("explain", "-b", uris)
    assert ran.status == 1
    assert "is left out" in ran.err
    assert ORDERS not in ran.out
