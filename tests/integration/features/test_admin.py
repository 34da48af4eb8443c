# SPDX-License-Identifier: Apache-2.0
"""The admin client: the same results from an embedded broker and from a real one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

import pytest

import bmq
from bmq.admin import Admin, Window
from bmq.admin.commands import COMMANDS, find_command
from tests.integration.steps import HasUri

FANOUT = "bmq.test.mem.fanout"
NewUri = Callable[..., str]


@pytest.fixture
async def admin(bmq_broker: HasUri) -> AsyncIterator[Admin]:
    async with bmq.admin.connect(bmq_broker.uri) as admin:
        yield admin


async def _posted(session: bmq.Session, uri: str, count: int) -> bmq.Queue:
    queue = await session.open_queue(uri, write=True)
    report = await queue.post_many(
        bmq.PutMessage(b"x" * (n + 1), properties={"number": n}) for n in range(count)
    )
    assert report.acknowledged == count
    return queue


async def test_clusters_and_their_nodes_are_listed(admin: Admin) -> None:
    (cluster,) = await admin.clusters()
    status = await admin.cluster_status(cluster.name)
    assert status.name == cluster.name
    assert status.healthy
    assert len(status.nodes) == len({node.id for node in cluster.nodes}) == len(cluster.nodes)
    assert {node.status for node in status.nodes} == {"AVAILABLE"}
    connected = {node.description: node.connected for node in status.nodes}
    assert connected.pop(status.self_node) is None
    assert all(connected.values())
    assert status.leader in {status.self_node, *connected}
    assert (status.elector_state == "LEADER") is (status.leader == status.self_node)
    assert [p.id for p in status.partitions] == [*range(len(status.partitions))]
    primaries = {node.description: node.primary_for for node in status.nodes}
    assert status.partitions
    for partition in status.partitions:
        assert partition.status == "ACTIVE"
        assert partition.primary is not None
        assert partition.id in primaries[partition.primary]


async def test_domains_and_queues_are_listed(
    admin: Admin, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri(FANOUT)
    await _posted(bmq_session, uri, 3)
    assert uri in await admin.queues()
    assert FANOUT in {domain.name for domain in await admin.domains() if domain.loaded and domain.queues}
    info = await admin.domain(FANOUT)
    (cluster,) = await admin.clusters()
    assert (info.name, info.cluster, info.mode) == (FANOUT, cluster.name, "fanout")
    assert info.app_ids == ("foo", "bar", "baz")
    assert info.usage.messages >= 3
    assert info.usage.message_limit > info.usage.messages
    (stored,) = [queue for queue in info.queues if queue.uri == uri]
    depth = await admin.queue(uri).depth()
    assert (stored.messages, stored.bytes) == (3, depth.bytes)
    # In memory where there is one broker; a cluster takes files only.
    assert stored.persistent is ("fileBacked" in info.configuration["storage"]["config"])


async def test_depth_is_reported_by_application(
    admin: Admin, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri(FANOUT)
    await _posted(bmq_session, uri, 3)
    await admin.queue(uri).purge("foo")
    depth = await admin.queue(uri).depth()
    assert (depth.uri, depth.messages) == (uri, 3)
    assert depth.bytes > 6
    assert {app.app_id: app.messages for app in depth.apps} == {"foo": 0, "bar": 3, "baz": 3}


async def test_messages_are_listed_by_page(
    admin: Admin, bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, write=True)
    guids = [(await queue.post(b"m" * n)).guid for n in (1, 2, 3, 4, 5)]
    asked = admin.queue(bmq_queue_uri)
    page = await asked.messages(1, 2)
    assert ([m.guid for m in page.messages], page.offset, page.total) == (guids[1:3], 1, 5)
    assert [m.guid for m in (await asked.messages(-2)).messages] == guids[3:]
    assert [m.guid async for m in asked.all_messages(page=2)] == guids
    now = datetime.now(UTC)
    assert all(now - timedelta(minutes=2) < m.arrival < now + timedelta(minutes=2) for m in page.messages)
    sizes = [m.size async for m in asked.all_messages()]
    assert sizes == sorted(sizes)


async def test_messages_of_one_application(
    admin: Admin, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri(FANOUT)
    await _posted(bmq_session, uri, 3)
    reader = await bmq_session.open_queue(f"{uri}?id=foo", read=True)
    message = await reader.receive(timeout=20)
    message.confirm()
    await reader.close()
    assert (await admin.queue(f"{uri}?id=foo").messages()).total == 2
    assert (await admin.queue(uri).messages(app_id="bar")).total == 3
    assert (await admin.queue(uri).messages()).total == 3


async def test_purging_deletes_messages(
    admin: Admin, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri(FANOUT)
    await _posted(bmq_session, uri, 4)
    (purged,) = await admin.queue(f"{uri}?id=bar").purge()
    assert (purged.uri, purged.app_id, purged.messages) == (uri, "bar", 4)
    (purged,) = await admin.queue(uri).purge()
    assert (purged.uri, purged.messages) == (uri, 4)
    assert purged.bytes > 0
    assert (await admin.queue(uri).depth()).messages == 0


async def test_internals_list_clients_and_subscriptions(
    admin: Admin, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri(FANOUT)
    reader = await bmq_session.open_queue(f"{uri}?id=foo", read=True)
    text = 'number >= 1 && kind != "a ] [ b"'
    few = reader.subscribe(text, priority=7, max_unconfirmed_messages=2)
    many = reader.subscribe("number == 0", priority=3, max_unconfirmed_messages=50)
    async with few, many:
        queue = await bmq_session.open_queue(uri, write=True)
        await queue.post_many(bmq.PutMessage(b"m", properties={"number": n, "kind": "a"}) for n in range(4))
        for consumer in (many, few, few):
            await consumer.receive(timeout=20)
        internals = await admin.queue(uri).internals()
    assert (internals.uri, internals.mode, internals.depth.messages) == (uri, "fanout", 4)
    (client,) = internals.clients
    assert (client.readers, client.writers) == (1, 1)
    (stream,) = [each for each in client.streams if each.app_id == "foo"]
    assert stream.unconfirmed == 3
    by_text = {each.expression: each for each in stream.subscriptions}
    assert set(by_text) == {text, "number == 0"}
    assert (by_text[text].priority, by_text[text].max_messages) == (7, 2)
    assert by_text[text].window == Window(2, 2, by_text[text].window.bytes, 33554432, True)
    other = by_text["number == 0"]
    assert other.window is not None
    assert (other.priority, other.window.messages, other.window.full) == (3, 1, False)
    states = {app.app_id: (app.status, app.consumers) for app in internals.apps}
    assert states["foo"] == ("alive", 1)
    assert states["bar"] == ("registered", 0)


async def test_statistics_count_messages(
    admin: Admin, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri(FANOUT)
    await _posted(bmq_session, uri, 5)
    async with asyncio.timeout(60):
        while True:
            found = await admin.queue(uri).statistics()
            if found is not None and found.posted == 5 and found.acknowledged == 5:
                break
            await asyncio.sleep(2)  # the more often a real broker is asked, the later it counts
    assert (found.domain, found.messages, found.producers) == (FANOUT, 5, 1)
    assert found.posted_bytes > 5
    assert {app.app_id for app in found.apps} == {"foo", "bar", "baz"}
    assert (await admin.statistics()).time > datetime.now(UTC) - timedelta(days=1)


async def test_a_command_in_the_brokers_own_language(admin: Admin) -> None:
    text = await admin.command("HELP")
    commands = (await admin.query("HELP"))["help"]["commands"]
    assert all(entry["command"] in text for entry in commands)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("DOMAINS DOMAIN nope INFOS", "doesn't exist"),
        ("DOMAINS DOMAIN bmq.test.mem.priority QUEUE never-opened INTERNALS", "not found"),
        ("CLUSTERS CLUSTER nope STATUS", "not found"),
        ("NO SUCH THING", "Invalid command"),
    ],
)
async def test_refused_admin_commands_are_errors(admin: Admin, command: str, words: str) -> None:
    with pytest.raises(bmq.errors.AdminError, match="did not execute") as refused:
        await admin.query(command)
    assert words in refused.value.broker_message
    assert refused.value.command == command


async def test_purging_an_unknown_application_is_an_error(
    admin: Admin, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri(FANOUT)
    await _posted(bmq_session, uri, 1)
    with pytest.raises(bmq.errors.AdminError, match="nope"):
        await admin.queue(uri).purge("nope")
    with pytest.raises(bmq.errors.AdminError, match="nope"):
        await admin.queue(uri).messages(app_id="nope")


# A part of a line of HELP with a choice: [GET|GET_ALL], (<domain>|ALL), [<appId>], [FINALIZE].
_CHOICE = re.compile(r"\[([A-Z_]+(?:\|[A-Z_]+)+)\]|\((<\w+>)\|ALL\)|\[([^]]+)\]")


def _alternatives(line: str) -> list[str]:
    found = _CHOICE.search(line)
    if found is None:
        return [" ".join("x" if each.startswith("<") else each for each in line.split())]
    choices = found[1].split("|") if found[1] else [found[2], "ALL"] if found[2] else ["", found[3]]
    return [each for one in choices for each in _alternatives(line.replace(found[0], one, 1))]


async def test_the_commands_of_the_broker_are_known(admin: Admin) -> None:
    listed = [each["command"] for each in (await admin.query("HELP"))["help"]["commands"]]
    known = {each: find_command(each) for line in listed for each in _alternatives(line)}
    assert [each for each, command in known.items() if command is None] == []
    assert {command.words for command in COMMANDS} - {
        command.words for command in known.values() if command
    } == {("HELP", "PLUMBING")}


async def test_storage_has_the_queues_of_a_domain(
    admin: Admin, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri(FANOUT)
    await _posted(bmq_session, uri, 3)
    (cluster,) = await admin.clusters()
    answer = await admin.query(f"CLUSTERS CLUSTER {cluster.name} STORAGE DOMAIN {FANOUT} QUEUE_STATUS")
    (stored,) = [each for each in answer["storageContent"]["storages"] if each["queueUri"] == uri]
    assert stored["numMessages"] == 3
    storage = await admin.cluster_storage(cluster.name)
    assert [part.id for part in storage] == [*range(len(storage))]
    assert {part.state for part in storage} == {"open"}
    number: int = stored["partitionId"]
    part = storage[number]
    assert uri in [each.uri for each in part.queues]
    assert part.available
    assert part.primary is not None
    for file in (part.data, part.journal, part.queue_list):
        assert 0 <= file.outstanding <= file.used <= file.size


async def test_settings_of_elector_and_replication(admin: Admin) -> None:
    (cluster,) = await admin.clusters()
    for scope in ("STATE ELECTOR", "STORAGE REPLICATION"):
        prefix = f"CLUSTERS CLUSTER {cluster.name} {scope}"
        (quorum,) = (await admin.query(f"{prefix} LIST_TUNABLES"))["tunables"]["tunables"]
        value = quorum["value"]["theInteger"]
        assert quorum["name"] == "QUORUM"
        assert quorum["description"]
        for verb in ("GET", "GET_ALL"):
            assert (await admin.query(f"{prefix} {verb} quorum"))["tunable"]["value"] == quorum["value"]
        change = (await admin.query(f"{prefix} SET QUORUM {value}"))["tunableConfirmation"]
        assert change["oldValue"] == change["newValue"] == quorum["value"]
        with pytest.raises(bmq.errors.AdminError, match="non-negative integer"):
            await admin.query(f"{prefix} SET QUORUM -1")
        with pytest.raises(bmq.errors.AdminError, match="Unknown tunable"):
            await admin.query(f"{prefix} SET NOTHING 1")
        with pytest.raises(bmq.errors.AdminError, match="Unsupported tunable"):
            await admin.query(f"{prefix} GET NOTHING")
    assert "tunables" in await admin.query("STAT LIST_TUNABLES")
    with pytest.raises(bmq.errors.AdminError, match="Unsupported tunable"):
        await admin.query("STAT GET NOTHING")


async def test_caches_are_cleared(admin: Admin) -> None:
    await admin.clear_caches()
    for command in ("DOMAINS RESOLVER", "CONFIGPROVIDER"):
        with pytest.raises(bmq.errors.AdminError, match="doesn't exist"):
            await admin.query(f"{command} CACHE_CLEAR no.such.domain")
