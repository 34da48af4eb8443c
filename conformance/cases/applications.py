# SPDX-License-Identifier: Apache-2.0
"""Several applications of a fanout queue in one session, and the counts of deliveries."""

from __future__ import annotations

from bmq.wire.control import CloseQueue, ConfigureStream, Disconnect, StreamParameters
from conformance.bench import Bench
from conformance.case import Cases, Level, check, fail
from conformance.peer import Peer, handle, subscription

__all__ = ["GROUP"]

GROUP = Cases(13, "Applications and attempts", domains=("fanout",))

_S, _O = Level.SHOULD, Level.OBSERVED
_APPS = ("foo", "bar", "baz")


async def _session(bench: Bench, apps: tuple[str, ...] = _APPS, *, write: bool = True) -> tuple[Peer, str]:
    """A session with applications of a new queue as qId 0: the subIds are 1, 2, 3 and the sIds 10, 20, 30."""
    peer, uri = await bench.client(), bench.uri("fanout")
    if write:
        await peer.open(uri, read=False)
    for sub_id, app in enumerate(apps, 1):
        await _reads(peer, uri, app, sub_id)
    return peer, uri


async def _reads(peer: Peer, uri: str, app: str, sub_id: int) -> None:
    await peer.open(f"{uri}?id={app}", write=False, sub_id=sub_id)
    await peer.configure(0, subscription(sub_id * 10), app_id=app)


async def _leaves(peer: Peer, uri: str, app: str, sub_id: int, *, final: bool = False) -> None:
    await peer.close(f"{uri}?id={app}", write=False, sub_id=sub_id, final=final)


async def _ids(peer: Peer, count: int) -> list[int]:
    """The ids of the next deliveries, until there are enough, in any number of PUSH messages."""
    found: list[int] = []
    while len(found) < count:
        found += (await peer.push()).push.sub_ids
    return sorted(found)


# ---- 13.1 applications of one session


@GROUP.case("13.1.1", "13.17")
async def _three(bench: Bench) -> None:
    """Three applications of one session receive each message.

    Sends: foo, bar and baz in one session, 3 PUT.
    Expects: deliveries with the sIds 10, 20 and 30 for each message.
    """
    peer, _ = await _session(bench)
    for number in range(3):
        peer.post(b"%d" % number)
    check(await _ids(peer, 9), [10, 10, 10, 20, 20, 20, 30, 30, 30], "ids")
    await peer.no_push()


@GROUP.case("13.1.2", "14.4")
async def _one_of_three(bench: Bench) -> None:
    """A confirmation with one subId leaves the message to the other applications.

    Sends: a PUT to foo, bar and baz of one session, a CONFIRM with subQueueId 2, the end of the connection.
    Expects: the message for foo and baz in another session, not for bar.
    """
    peer, uri = await _session(bench)
    guid = peer.post(b"x")
    await _ids(peer, 3)
    peer.confirm(guid, sub_id=2)
    await peer.barrier()
    other = await bench.client()
    await other.open(uri, read=False)
    peer.drop()
    for sub_id, app in enumerate(_APPS, 1):
        await _reads(other, uri, app, sub_id)
    check(await _ids(other, 2), [10, 30], "ids")
    await other.no_push()


@GROUP.case("13.1.3", "13.12")
async def _returns(bench: Bench) -> None:
    """An application that closes returns its own messages alone.

    Sends: a PUT to foo and bar of one session, closeQueue of foo; a reader of foo in another session.
    Expects: the message for foo in the other session, no second delivery to bar.
    """
    peer, uri = await _session(bench, ("foo", "bar"))
    peer.post(b"x")
    await _ids(peer, 2)
    other = await bench.client()
    await other.open(uri, read=False)
    await _leaves(peer, uri, "foo", 1)
    await _reads(other, uri, "foo", 1)
    check((await other.push()).payload, b"x", "payload")
    await peer.no_push()


@GROUP.case("13.1.4", "7.9")
async def _another_id(bench: Bench) -> None:
    """An application may open again with another subId.

    Sends: foo with subId 1, closeQueue, foo with subId 7; a PUT.
    Expects: a PUSH with the new sId; the CONFIRM with subQueueId 7 counts.
    """
    peer, uri = await _session(bench, ("foo", "bar"))
    await _leaves(peer, uri, "foo", 1)
    await _reads(peer, uri, "foo", 7)
    guid = peer.post(b"x")
    check(await _ids(peer, 2), [20, 70], "ids")
    peer.confirm(guid, sub_id=7)
    await _leaves(peer, uri, "foo", 7)
    await _reads(peer, uri, "foo", 8)
    await peer.no_push()


@GROUP.case("13.1.5", "8.4")
async def _one_stream(bench: Bench) -> None:
    """configureStream concerns one application.

    Sends: foo and bar in one session, configureStream of foo without subscriptions, a PUT.
    Expects: a PUSH with the sId of bar alone.
    """
    peer, _ = await _session(bench, ("foo", "bar"))
    await peer.configure(0, app_id="foo")
    peer.post(b"x")
    check((await peer.push()).push.sub_ids, (20,), "ids")
    await peer.no_push()


@GROUP.case("13.1.6", "8.6")
async def _not_open(bench: Bench) -> None:
    """An application of a queue that is open with others is refused before its openQueue.

    Sends: foo in a session, configureStream with the appId bar.
    Expects: E_UNKNOWN.
    """
    peer, _ = await _session(bench, ("foo",))
    parameters = StreamParameters(app_id="bar", subscriptions=(subscription(1),))
    status = await peer.refused(ConfigureStream(q_id=0, stream_parameters=parameters))
    check(status.category.name, "E_UNKNOWN", "category")


@GROUP.case("13.1.7", "15.3", _O)
async def _twice(bench: Bench) -> None:
    """A closed application is refused, and the others stay.

    Sends: foo and bar in one session, closeQueue of foo twice, a PUT.
    Expects: a status for the second closeQueue, and a PUSH for bar.
    """
    peer, uri = await _session(bench, ("foo", "bar"))
    await _leaves(peer, uri, "foo", 1)
    parameters = handle(f"{uri}?id=foo", write=False, sub_id=1)
    await peer.refused(CloseQueue(handle_parameters=parameters, is_final=False))
    peer.post(b"x")
    check((await peer.push()).push.sub_ids, (20,), "ids")


@GROUP.case("13.1.8", "15.3")
async def _producer_stays(bench: Bench) -> None:
    """Readers of one session leave the producer open.

    Sends: a producer and foo in one session, closeQueue of foo, a PUT.
    Expects: an ACK with the status 0.
    """
    peer, uri = await _session(bench, ("foo",))
    await _leaves(peer, uri, "foo", 1)
    peer.post(b"x")
    check((await peer.ack()).status, 0, "status")


@GROUP.case("13.1.9", "15.3")
async def _readers_stay(bench: Bench) -> None:
    """A producer that closes leaves the readers open.

    Sends: a producer and foo in one session, closeQueue of the producer; a PUT of another session.
    Expects: the message for foo.
    """
    peer, uri = await _session(bench, ("foo",))
    other = await bench.client()
    await other.open(uri, read=False)
    await peer.accepted(CloseQueue(handle_parameters=handle(uri, read=False), is_final=False))
    other.post(b"x")
    check((await peer.push()).push.sub_ids, (10,), "ids")


@GROUP.case("13.1.10", "13.12")
async def _disconnects(bench: Bench) -> None:
    """A disconnect returns the messages of every application.

    Sends: a PUT to foo and bar of one session, disconnect; foo and bar in another session.
    Expects: the message for both.
    """
    peer, uri = await _session(bench, ("foo", "bar"))
    peer.post(b"x")
    await _ids(peer, 2)
    other = await bench.client()
    await other.open(uri, read=False)
    await peer.accepted(Disconnect())
    for sub_id, app in enumerate(("foo", "bar"), 1):
        await _reads(other, uri, app, sub_id)
    check(await _ids(other, 2), [10, 20], "ids")


# ---- 13.2 attempts


@GROUP.case("13.2.1", "13.7", _O, domains=("attempts",))
async def _flags(bench: Bench) -> None:
    """Each further attempt has the flag OUT_OF_ORDER.

    Sends: a PUT in a domain with maxDeliveryAttempts 3; three consumers that lose their connections.
    Expects: the flag with the second and the third delivery, not with the first.
    """
    producer, uri = await bench.queue("attempts", read=False)
    producer.post(b"poison")
    await producer.ack()
    found: list[bool] = []
    for _ in range(3):
        peer = await bench.reader(uri, subscription(1))
        found.append((await peer.push()).again)
        peer.drop()
        await producer.barrier()
    check(found, [False, True, True], "flags")


@GROUP.case("13.2.2", "13.15", _O, domains=("attempts",))
async def _confirmed(bench: Bench) -> None:
    """A confirmed message has used no attempt of the next one.

    Sends: five PUT, each delivered and confirmed before the connection is lost, with maxDeliveryAttempts 3.
    Expects: five deliveries, each of the next message.
    """
    producer, uri = await bench.queue("attempts", read=False)
    for number in range(5):
        producer.post(b"%d" % number)
        await producer.ack()
        peer = await bench.reader(uri, subscription(1))
        got = await peer.push()
        check(got.payload, b"%d" % number, "payload")
        peer.confirm(got.push.guid)
        await peer.barrier()
        peer.drop()


@GROUP.case("13.2.3", "13.15", _O, domains=("attempts",))
async def _behind(bench: Bench) -> None:
    """The message behind a dropped one is delivered.

    Sends: a PUT that three connections lose, and a PUT behind it, with maxDeliveryAttempts 3.
    Expects: the second message alone for the fourth consumer.
    """
    producer, uri = await bench.queue("attempts", read=False)
    for payload in (b"poison", b"good"):
        producer.post(payload)
    await producer.acks(2)
    for _ in range(3):
        peer = await bench.reader(uri, subscription(1, messages=1))
        check((await peer.push()).payload, b"poison", "payload")
        peer.drop()
        await producer.barrier()
    last = await bench.reader(uri, subscription(1))
    check((await last.push()).payload, b"good", "payload")
    await last.no_push()


@GROUP.case("13.2.4", "13.12", _O, domains=("priority",))
async def _among(bench: Bench) -> None:
    """Unconfirmed messages of a closed queue keep their order among later ones.

    Sends: 6 PUT, the first 3 delivered with a limit of 3, closeQueue; a consumer in another session.
    Expects: all 6 messages in order, the first 3 with the flag OUT_OF_ORDER.
    """
    peer, uri = await bench.consumer(subscription(1, messages=3))
    for number in range(6):
        peer.post(b"%d" % number)
    await peer.pushes(3)
    other = await bench.client()
    await other.open(uri, write=False)
    await peer.close(uri)
    await other.configure(0, subscription(1))
    got = await other.pushes(6)
    check([each.payload for each in got], [b"%d" % number for number in range(6)], "payloads")
    if not all(each.again for each in got[:3]):
        raise fail("the flag OUT_OF_ORDER with the first three", [each.again for each in got])


# ---- 13.3 property schemas


@GROUP.case("13.3.1", "12.9", domains=("priority",))
async def _schemas(bench: Bench) -> None:
    """Properties under a known schema id arrive by their names.

    Sends: PUT with other names under the schemaId 1, again and again.
    Expects: each message with its own properties.
    """
    peer, _ = await bench.consumer(subscription(1))
    sequences: list[dict[str, int]] = [{"ab": 1, "cd": 2}, {"xy": 3, "zw": 4}, {"a": 5, "b": 6, "c": 7}]
    for _ in range(2):
        for each in sequences:
            peer.post(b"x", properties=each)
    got = [each.properties for each in await peer.pushes(6)]
    check(got, sequences * 2, "properties")


@GROUP.case("13.3.2", "12.7", _S, domains=("priority",))
async def _new(bench: Bench) -> None:
    """Properties in the new encoding arrive in the new encoding.

    Sends: a PUT in the new encoding to a client that names MESSAGE_PROPERTIES_EX.
    Expects: a PUSH with a schemaId other than 0.
    """
    peer, _ = await bench.consumer(subscription(1))
    peer.post(b"x", properties={"x": 1})
    if (await peer.push()).push.schema_id == 0:
        raise fail("a schemaId other than 0", 0)
