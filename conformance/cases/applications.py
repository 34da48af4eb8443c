# SPDX-License-Identifier: Apache-2.0
"""Several applications of a fanout queue in one session, and the counts of deliveries."""

from __future__ import annotations

from functools import partial

from bmq.wire.control import CloseQueue, ConfigureStream, StreamParameters
from conformance.bench import Bench
from conformance.case import Cases, Level, check, fail
from conformance.peer import handle, subscription
from conformance.scene import A, Actor, B, P, Step, play

__all__ = ["GROUP"]

GROUP = Cases(13, "Applications and attempts", domains=("fanout",))

_M, _S, _O = Level.MUST, Level.SHOULD, Level.OBSERVED


def _readers(who: Actor, *apps: str) -> list[Step]:
    """Read applications in one session: the subIds are 1, 2, 3 and the sIds 10, 20, 30."""
    return [who.reads(app=app, sub_id=place, s_id=10 * place) for place, app in enumerate(apps, 1)]


def _session(*apps: str) -> list[Step]:
    """Write to the queue and read applications in the session A."""
    return [A.writes(), *_readers(A, *apps)]


# ---- 13.1 applications of one session


GROUP.rows(partial(play, kind="fanout"), [
    ("13.1.1", "13.17", _M, "Three applications of one session receive each message",
     "foo, bar and baz in one session, 3 PUT", "deliveries with the sIds 10, 20 and 30 for each message",
     *_session("foo", "bar", "baz"), A.posts(0, 1, 2), A.gets_s_ids(*(10, 20, 30) * 3), A.gets_nothing()),
    ("13.1.2", "14.4", _M, "A confirmation with one subId leaves the message to the other applications",
     "a PUT to foo, bar and baz of one session, a CONFIRM with subQueueId 2, the end of the connection", "the message for foo and baz in another session, not for bar",
     *_session("foo", "bar", "baz"), A.posts(1), A.gets_s_ids(10, 20, 30), A.confirms(1, sub_id=2), B.writes(), A.drops(),
     *_readers(B, "foo", "bar", "baz"), B.gets_s_ids(10, 30), B.gets_nothing()),
    ("13.1.3", "13.12", _M, "An application that closes returns its own messages alone",
     "a PUT to foo and bar of one session, closeQueue of foo; a reader of foo in another session", "the message for foo in the other session, no second delivery to bar",
     *_session("foo", "bar"), A.posts(1), A.gets_s_ids(10, 20), B.writes(), A.leaves("foo", final=False), *_readers(B, "foo"), B.gets(1),
     A.gets_nothing()),
    ("13.1.4", "7.9", _M, "An application may open again with another subId",
     "foo with subId 1, closeQueue, foo with subId 7; a PUT", "a PUSH with the new sId; the CONFIRM with subQueueId 7 counts",
     *_session("foo", "bar"), A.leaves("foo", final=False), A.reads(app="foo", sub_id=7, s_id=70), A.posts(1), A.gets_s_ids(20, 70),
     A.confirms(1, sub_id=7), A.leaves("foo", final=False), A.reads(app="foo", sub_id=8, s_id=80), A.gets_nothing()),
    ("13.1.5", "8.4", _M, "configureStream concerns one application",
     "foo and bar in one session, configureStream of foo without subscriptions, a PUT", "a PUSH with the sId of bar alone",
     *_session("foo", "bar"), A.configures(app="foo"), A.posts(1), A.gets(1, s_ids=(20,)), A.gets_nothing()),
    ("13.1.8", "15.3", _M, "Readers of one session leave the producer open",
     "a producer and foo in one session, closeQueue of foo, a PUT", "an ACK with the status 0",
     *_session("foo"), A.leaves("foo", final=False), A.posts(1), A.acks(0)),
    ("13.1.10", "13.12", _M, "A disconnect returns the messages of every application",
     "a PUT to foo and bar of one session, disconnect; foo and bar in another session", "the message for both",
     *_session("foo", "bar"), A.posts(1), A.gets_s_ids(10, 20), B.writes(), A.disconnects(), *_readers(B, "foo", "bar"),
     B.gets_s_ids(10, 20)),
])  # fmt: skip


@GROUP.case("13.1.6", "8.6")
async def _not_open(bench: Bench) -> None:
    """An application of a queue that is open with others is refused before its openQueue.

    Sends: foo in a session, configureStream with the appId bar.
    Expects: E_UNKNOWN.
    """
    scene = await play(bench, *_session("foo"), kind="fanout")
    parameters = StreamParameters(app_id="bar", subscriptions=(subscription(1),))
    status = await A.peer(scene).refused(ConfigureStream(q_id=0, stream_parameters=parameters))
    check(status.category.name, "E_UNKNOWN", "category")


@GROUP.case("13.1.7", "15.3", _O)
async def _twice(bench: Bench) -> None:
    """A closed application is refused, and the others stay.

    Sends: foo and bar in one session, closeQueue of foo twice, a PUT.
    Expects: a status for the second closeQueue, and a PUSH for bar.
    """
    scene = await play(bench, *_session("foo", "bar"), A.leaves("foo", final=False), kind="fanout")
    peer = A.peer(scene)
    parameters = handle(scene.named("foo"), write=False, sub_id=1)
    await peer.refused(CloseQueue(handle_parameters=parameters, is_final=False))
    peer.post(b"x")
    check((await peer.push()).push.sub_ids, (20,), "ids")


@GROUP.case("13.1.9", "15.3")
async def _readers_stay(bench: Bench) -> None:
    """A producer that closes leaves the readers open.

    Sends: a producer and foo in one session, closeQueue of the producer; a PUT of another session.
    Expects: the message for foo.
    """
    scene = await play(bench, *_session("foo"), B.writes(), kind="fanout")
    peer = A.peer(scene)
    await peer.accepted(CloseQueue(handle_parameters=handle(scene.uri, read=False), is_final=False))
    B.peer(scene).post(b"x")
    check((await peer.push()).push.sub_ids, (10,), "ids")


# ---- 13.2 attempts


GROUP.rows(partial(play, kind="attempts"), [
    ("13.2.1", "13.7", _O, "Each further attempt has the flag OUT_OF_ORDER",
     "a PUT in a domain with maxDeliveryAttempts 3; three consumers that lose their connections", "the flag with the second and the third delivery, not with the first",
     P.writes(), P.posts(1), P.acks(0), A.reads(), A.gets(1, again=False), A.drops(),
     *(A.reads(), A.gets(1, again=True), A.drops()) * 2),
    ("13.2.2", "13.15", _O, "A confirmed message has used no attempt of the next one",
     "five PUT, each delivered and confirmed before the connection is lost, with maxDeliveryAttempts 3", "five deliveries, each of the next message",
     P.writes(), *(step for n in range(5) for step in (P.posts(n), P.acks(0), A.reads(), A.gets(n), A.confirms(n), A.drops()))),
    ("13.2.3", "13.15", _O, "The message behind a dropped one is delivered",
     "a PUT that three connections lose, and a PUT behind it, with maxDeliveryAttempts 3", "the second message alone for the fourth consumer",
     P.writes(), P.posts(b"poison", b"good"), P.acks(0, 0), *(A.reads(subscription(1, messages=1)), A.gets(b"poison"), A.drops()) * 3,
     B.reads(), B.gets(b"good"), B.gets_nothing()),
], domains=("attempts",))  # fmt: skip


GROUP.rows(play, [
    ("13.2.4", "13.12", _O, "Unconfirmed messages of a closed queue keep their order among later ones",
     "6 PUT, the first 3 delivered with a limit of 3, closeQueue; a consumer in another session", "all 6 messages in order, the first 3 with the flag OUT_OF_ORDER",
     A.opens(subscription(1, messages=3)), A.posts(*range(6)), A.gets(0, 1, 2), B.opens(write=False), A.leaves(),
     B.configures(subscription(1)), B.gets(0, 1, 2, again=True), B.gets(3, 4, 5)),
], domains=("priority",))  # fmt: skip


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
