# SPDX-License-Identifier: Apache-2.0
"""peek, queues, stat, purge, admin, top, explain: a broker's reports about itself."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import bmq
from tests.cli.conftest import REAL, Aside, Bmq

FANOUT = "bmq.test.mem.fanout"
NewUri = Callable[..., str]


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


def test_top_shows_the_queues(run: Bmq, aside: Aside, bmq_queue_uri: str) -> None:
    queue = aside.do(aside.session.open_queue(bmq_queue_uri, write=True))
    aside.do(queue.post_many([b"m"] * 3))
    ran = run("top", bmq_queue_uri, "--count", "2", "--interval", "0.2", "--json")
    assert ran.status == 0
    assert all(each["uri"] == bmq_queue_uri for each in ran.json)
    ran = run("top", bmq_queue_uri, "--count", "1")
    assert "post/s" in ran.out
    assert run("top", "--sort", "name").status == 2


def test_totals_of_top_are_over_all_queues(run: Bmq, aside: Aside, bmq_new_queue_uri: NewUri) -> None:
    uris = [bmq_new_queue_uri() for _ in range(3)]
    for uri in uris:
        aside.do(aside.do(aside.session.open_queue(uri, write=True)).post_many([b"m"] * 1000))
    while True:
        ran = run("top", "bmq.test.mem.priority", "--count", "1", "--limit", "1", "--sort", "depth")
        if int(ran.lines[0].split(" queue")[0].split()[-1]) >= 3:
            break
    assert int(ran.lines[0].split(" message")[0].split()[-1].replace(",", "")) >= 3000
    assert sum(line.startswith("bmq://") for line in ran.lines) == 1
    for uri in uris:
        run("purge", uri, "--yes")


def test_looking_at_an_unknown_queue_creates_no_queue(run: Bmq, bmq_new_queue_uri: NewUri) -> None:
    for verb in ("peek", "stat", "explain", "dead"):
        queue = bmq_new_queue_uri()
        assert run(verb, queue).status == 4, verb
        assert queue not in run("queues").out, verb


# ---- explain


@pytest.fixture
def reader(aside: Aside, bmq_queue_uri: str) -> bmq.Queue:
    return aside.do(aside.session.open_queue(bmq_queue_uri, read=True))


def _subscribe(aside: Aside, reader: bmq.Queue, text: str, **options: int) -> bmq.Consumer:
    return aside.do(reader.subscribe(text, **options).open())


def test_explain_names_a_consumer_at_its_limit(
    run: Bmq, aside: Aside, reader: bmq.Queue, bmq_queue_uri: str
) -> None:
    consumer = _subscribe(aside, reader, "x >= 0", max_unconfirmed_messages=2, priority=3)
    run("post", bmq_queue_uri, *"abcde", "-p", "x=1")
    aside.do(consumer.receive(20))
    aside.do(consumer.receive(20))
    ran = run("explain", bmq_queue_uri, "-p", "x=1")
    assert "5 messages wait in the queue" in ran.out
    assert "2 of them are delivered and not confirmed" in ran.out
    assert "at its limit of unconfirmed messages" in ran.out
    assert "2 of 2 (full)" in ran.out
    assert "The message waits: the matching consumers are full" in ran.out


def test_explain_names_a_consumer_that_holds_purged_messages(
    run: Bmq, aside: Aside, reader: bmq.Queue, bmq_queue_uri: str
) -> None:
    consumer = _subscribe(aside, reader, "x >= 0", max_unconfirmed_messages=2)
    run("post", bmq_queue_uri, *"ab", "-p", "x=1")
    aside.do(consumer.receive(20))
    aside.do(consumer.receive(20))
    run("purge", bmq_queue_uri, "--yes")
    ran = run("explain", bmq_queue_uri)
    assert "No messages wait in the queue." in ran.out
    assert "which the queue no longer holds" in ran.out


def test_explain_reports_a_returned_message(
    run: Bmq, aside: Aside, reader: bmq.Queue, bmq_queue_uri: str
) -> None:
    _subscribe(aside, reader, "x == 2")
    run("post", bmq_queue_uri, "a", "-p", "x=1")
    run("tail", bmq_queue_uri, "--force")
    run("post", bmq_queue_uri, "b", "-p", "x=2")
    ran = run("explain", bmq_queue_uri)
    assert "no subscription matches at least one of them" in ran.out
    assert "1 is to be redelivered" in ran.out


def test_explain_reports_unmatched_messages(
    run: Bmq, aside: Aside, reader: bmq.Queue, bmq_queue_uri: str
) -> None:
    _subscribe(aside, reader, "x == 1", priority=9)
    _subscribe(aside, reader, "x == 2", priority=4)
    run("post", bmq_queue_uri, "a", "-p", "x=3")
    ran = run("explain", bmq_queue_uri)
    assert "no subscription matches" in ran.out
    assert "--property" in ran.out
    ran = run("explain", bmq_queue_uri, "-p", "x=3", "--json")
    (explained,) = ran.json
    decision = explained["applications"]["__default"]["decision"]
    assert decision["candidates"] == []
    assert "No subscription matches" in decision["text"]
    ran = run("explain", bmq_queue_uri, "-p", "x=2")
    assert "The message goes to" in ran.out
    order = [line.split()[0] for line in ran.lines if "x == " in line]
    assert order == ["9", "4", "9", "4"], "in the order of the priorities, in both tables"


def test_explain_tells_that_a_mover_waits_until_messages_are_due(
    run: Bmq, aside: Aside, reader: bmq.Queue, bmq_queue_uri: str
) -> None:
    _subscribe(aside, reader, "bmq_due <= 1000")
    run("post", bmq_queue_uri, "a", "-p", "bmq_due=2000")
    assert "matches a message once it is due" in run("explain", bmq_queue_uri).out


def test_explain_without_a_queue_explains_all_queues_with_messages(
    run: Bmq, aside: Aside, reader: bmq.Queue, bmq_queue_uri: str, bmq_new_queue_uri: NewUri
) -> None:
    _subscribe(aside, reader, "x == 1")
    unread, empty = bmq_new_queue_uri(), bmq_new_queue_uri()
    run("post", bmq_queue_uri, "a", "-p", "x=3")
    run("post", unread, "a", "b")
    run("post", empty, "a")
    run("purge", empty, "--yes")
    ran = run("explain")
    assert f"{unread} (priority) holds 2 messages" in ran.out
    assert "The queue has no consumers" in ran.out
    assert f"{bmq_queue_uri} (priority) holds 1 message" in ran.out
    assert "no subscription matches" in ran.out
    assert empty not in ran.out
    assert {unread, bmq_queue_uri} <= {each["queue"]["uri"] for each in run("explain", "--json").json}


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


def test_explain_names_the_member_that_holds_a_key(
    run: Bmq, aside: Aside, reader: bmq.Queue, bmq_queue_uri: str
) -> None:
    """Bucket 2 has a second owner, which waits for the first one."""
    assert "No group reads the queue" in run("explain", bmq_queue_uri, "--group-key", "1234").out
    for bucket in (1, 3):
        _subscribe(aside, reader, f"(CustomerId - {bucket}) % 4 == 0", priority=-5)
    _subscribe(aside, reader, "(CustomerId - 2) % 4 == 0", priority=-6)
    _subscribe(aside, reader, "(CustomerId - 2) % 4 == 0 && CustomerId > 0", priority=-9)
    ran = run("explain", bmq_queue_uri, "--group-key", "1233")
    assert "Key 1233 is in bucket 1 of 4." in ran.out
    assert "holds the bucket" in ran.out
    assert "has the bucket next" not in ran.out
    (explained,) = run("explain", bmq_queue_uri, "--group-key", "-2", "--json").json
    words = " ".join(explained["applications"]["__default"]["words"])
    assert "Key -2 is in bucket 2 of 4." in words
    assert "has the bucket next" in words
    assert "No member is subscribed to the bucket" in run("explain", bmq_queue_uri, "--group-key", "4").out
    assert "'x' is no integer" in run("explain", bmq_queue_uri, "--group-key", "x").out


def test_explain_names_the_types_that_it_assumes(run: Bmq, bmq_queue_uri: str) -> None:
    run("post", bmq_queue_uri, "a", "-p", "CustomerId:string=1234")
    ran = run("explain", bmq_queue_uri, "-p", "CustomerId=1234", "-p", "vip=true", "-p", "n:int32=1")
    assert "CustomerId is taken as INT64; vip is taken as BOOL: " in ran.err
    assert "NAME:TYPE=VALUE" in ran.err
    assert "taken as" not in run("explain", bmq_queue_uri, "-p", "CustomerId:string=1234").err
    run("purge", bmq_queue_uri, "--yes")


def test_explain_reports_complete_delivery(
    run: Bmq, aside: Aside, reader: bmq.Queue, bmq_queue_uri: str
) -> None:
    run("post", bmq_queue_uri, "a", "b")
    aside.do(reader.receive(20))
    aside.do(reader.receive(20))
    shown = run("explain", bmq_queue_uri).out
    assert "only confirmations are missing" in shown
    assert "omits confirm()" in shown


def test_explain_names_a_reader_of_higher_priority(
    run: Bmq, aside: Aside, reader: bmq.Queue, bmq_queue_uri: str, uri: str
) -> None:
    _subscribe(aside, reader, "x == 1")
    other = Aside(uri)
    scratch = other.do(other.session.open_queue(bmq_queue_uri, read=True))
    _subscribe(other, scratch, "x == 2", priority=10)
    assert "receives nothing" not in run("explain", bmq_queue_uri).out, "other messages"
    _subscribe(other, scratch, "x == 1", priority=10)
    (line,) = [line for line in run("explain", bmq_queue_uri).lines if "receives nothing" in line]
    assert "the higher priority (10 instead of 0)" in line
    other.close()


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


def test_explain_shows_a_single_application(run: Bmq, bmq_new_queue_uri: NewUri) -> None:
    queue = bmq_new_queue_uri(FANOUT)
    run("post", queue, "a")
    ran = run("explain", f"{queue}?id=bar")
    assert "application bar" in ran.out
    assert "application foo" not in ran.out
    ran = run("explain", f"{queue}?id=nope")
    assert ran.status == 2
    assert "foo, bar, baz" in ran.err


def test_explain_names_the_readers_of_other_applications(
    run: Bmq, aside: Aside, bmq_new_queue_uri: NewUri
) -> None:
    queue = bmq_new_queue_uri(FANOUT)
    run("post", queue, "a")
    wrong = aside.do(aside.session.open_queue(f"{queue}?id=foo", read=True))
    aside.do(wrong.subscribe().open())
    shown = run("explain", f"{queue}?id=bar").out
    assert "Application bar has no consumers" in shown
    assert f"A consumer of bar opens {queue}?id=bar. Clients that read other applications: " in shown
    assert " (foo)." in shown


def test_illegal_expression_of_another_client_is_shown(
    run: Bmq, aside: Aside, reader: bmq.Queue, bmq_queue_uri: str
) -> None:
    aside.do(reader.subscribe("x >", strict=False).open())
    ran = run("explain", bmq_queue_uri, "--empty")
    assert "not legal: matches every message" in ran.out
    assert "The message goes to" in ran.out
    assert json.loads(run("explain", bmq_queue_uri, "--empty", "--json").out)
