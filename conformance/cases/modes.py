# SPDX-License-Identifier: Apache-2.0
"""Fanout, broadcast and application subscriptions."""

from __future__ import annotations

from typing import Any

from conformance.bench import Bench
from conformance.case import Cases, Level, check
from conformance.peer import Peer, open_request, subscription

__all__ = ["GROUP"]

GROUP = Cases(7, "Fanout and broadcast", domains=("fanout",))

_M, _S, _O = Level.MUST, Level.SHOULD, Level.OBSERVED
_BROADCAST = ("broadcast",)


async def _app(bench: Bench, uri: str, app: str, sub_id: int = 1) -> Peer:
    """A session with one application."""
    peer = await bench.client()
    await _join(peer, uri, app, sub_id)
    return peer


async def _join(peer: Peer, uri: str, app: str, sub_id: int = 1, s_id: int = 0) -> None:
    await peer.open(f"{uri}?id={app}", 0, write=False, sub_id=sub_id)
    await peer.configure(0, subscription(s_id or sub_id), app_id=app)


# ---- 7.1 fanout


@GROUP.case("7.1.1", "13.17")
async def _each(bench: Bench) -> None:
    """Each application receives each message.

    Sends: readers foo, bar and baz, a PUT.
    Expects: one delivery to each.
    """
    producer, uri = await bench.queue("fanout", read=False)
    readers = [await _app(bench, uri, app) for app in ("foo", "bar", "baz")]
    producer.post(b"x")
    for reader in readers:
        check(await reader.payloads(1), [b"x"], "payloads")
        await reader.no_push()


@GROUP.case("7.1.2", "13.17")
async def _waits(bench: Bench) -> None:
    """A message waits for an application without a reader.

    Sends: a PUT, a reader of foo, and later a reader of bar.
    Expects: the message for both.
    """
    producer, uri = await bench.queue("fanout", read=False)
    producer.post(b"x")
    await producer.ack()
    for app in ("foo", "bar"):
        reader = await _app(bench, uri, app)
        check(await reader.payloads(1), [b"x"], app)


@GROUP.case("7.1.3", "14.4")
async def _confirms(bench: Bench) -> None:
    """Each application confirms for itself.

    Sends: a CONFIRM of foo; readers of foo and bar afterwards.
    Expects: the message for bar, not for foo.
    """
    producer, uri = await bench.queue("fanout", read=False)
    foo = await _app(bench, uri, "foo")
    producer.post(b"x")
    foo.confirm((await foo.push()).push.guid, sub_id=1)
    await foo.barrier()
    await foo.close(f"{uri}?id=foo", write=False, sub_id=1)
    again, bar = await _app(bench, uri, "foo"), await _app(bench, uri, "bar")
    check(await bar.payloads(1), [b"x"], "payloads")
    await again.no_push()


@GROUP.case("7.1.4", "13.19", _O)
async def _one_push(bench: Bench) -> None:
    """Two applications of one session receive one PUSH.

    Sends: foo with sId 10 and bar with sId 20 in one session, a PUT.
    Expects: one PUSH with both sIds.
    """
    peer, uri = await bench.queue("fanout", read=False)
    for sub_id, app in ((1, "foo"), (2, "bar")):
        await _join(peer, uri, app, sub_id, sub_id * 10)
    peer.post(b"x")
    check(sorted((await peer.push()).push.sub_ids), [10, 20], "sIds")
    await peer.no_push()


@GROUP.case("7.1.5", "13.17")
async def _both(bench: Bench) -> None:
    """Two applications of one session receive each message.

    Sends: foo and bar in one session, a PUT.
    Expects: PUSH messages with both sIds together.
    """
    peer, uri = await bench.queue("fanout", read=False)
    for sub_id, app in ((1, "foo"), (2, "bar")):
        await _join(peer, uri, app, sub_id, sub_id * 10)
    peer.post(b"x")
    seen: list[int] = []
    while len(seen) < 2:
        seen += (await peer.push()).push.sub_ids
    check(sorted(seen), [10, 20], "sIds")


@GROUP.case("7.1.8", "7.24", _O)
async def _unknown_app(bench: Bench) -> None:
    """An unknown application opens, and receives nothing.

    Sends: a reader of the application nobody, a PUT.
    Expects: openQueueResponse, an ACK with the status 0, no PUSH.
    """
    peer, uri = await bench.queue("fanout", read=False)
    await _join(peer, uri, "nobody")
    peer.post(b"x")
    check((await peer.ack()).status, 0, "status")
    await peer.no_push()


@GROUP.case("7.1.9", "13.17")
async def _share(bench: Bench) -> None:
    """Readers of one application share its messages.

    Sends: two readers of foo, 10 PUT.
    Expects: each message once.
    """
    producer, uri = await bench.queue("fanout", read=False)
    readers = [await _app(bench, uri, "foo") for _ in range(2)]
    for number in range(10):
        producer.post(b"%d" % number)
    got = [*await readers[0].payloads(5), *await readers[1].payloads(5)]
    check(sorted(got), [b"%d" % number for number in range(10)], "payloads")


@GROUP.case("7.1.10", "15.3")
async def _leaves(bench: Bench) -> None:
    """An application leaves, and the other stays.

    Sends: closeQueue of foo with isFinal false, then a PUT.
    Expects: a PUSH with the sId of bar alone.
    """
    producer, uri = await bench.queue("fanout", read=False)
    peer = await bench.client()
    for sub_id, app in ((1, "foo"), (2, "bar")):
        await _join(peer, uri, app, sub_id, sub_id * 10)
    await peer.close(f"{uri}?id=foo", final=False, write=False, sub_id=1)
    producer.post(b"x")
    check((await peer.push()).push.sub_ids, (20,), "sIds")


@GROUP.case("7.1.11", "8.22")
async def _limits(bench: Bench) -> None:
    """Each application has limits of its own.

    Sends: foo with a limit of 1 and bar with a limit of 10, 5 PUT.
    Expects: one delivery to foo, five to bar.
    """
    producer, uri = await bench.queue("fanout", read=False)
    foo, bar = await bench.client(), await bench.client()
    for peer, app, limit in ((foo, "foo", 1), (bar, "bar", 10)):
        await peer.open(f"{uri}?id={app}", 0, write=False, sub_id=1)
        await peer.configure(0, subscription(1, messages=limit), app_id=app)
    for number in range(5):
        producer.post(b"%d" % number)
    await bar.pushes(5)
    await foo.pushes(1)
    await foo.no_push()


@GROUP.case("7.1.12", "14.5")
async def _wrong_sub(bench: Bench) -> None:
    """A confirmation needs the subId of the application.

    Sends: a CONFIRM of foo with subQueueId 0; a reader of foo in another session.
    Expects: the message again.
    """
    producer, uri = await bench.queue("fanout", read=False)
    foo = await _app(bench, uri, "foo")
    producer.post(b"x")
    foo.confirm((await foo.push()).push.guid)
    await foo.barrier()
    await foo.close(f"{uri}?id=foo", write=False, sub_id=1)
    again = await _app(bench, uri, "foo")
    check(await again.payloads(1), [b"x"], "payloads")


@GROUP.case("7.1.13", "8.27")
async def _expression(bench: Bench) -> None:
    """Expressions belong to an application.

    Sends: foo with `x == 1`, bar without an expression, PUT with x = 1 and x = 2.
    Expects: one delivery to foo, two to bar.
    """
    producer, uri = await bench.queue("fanout", read=False)
    foo, bar = await bench.client(), await _app(bench, uri, "bar")
    await foo.open(f"{uri}?id=foo", 0, write=False, sub_id=1)
    await foo.configure(0, subscription(1, "x == 1"), app_id="foo")
    for x in (1, 2):
        producer.post(b"%d" % x, properties={"x": x})
    check(await bar.payloads(2), [b"1", b"2"], "payloads")
    check(await foo.payloads(1), [b"1"], "payloads")
    await foo.no_push()


# ---- 7.2 broadcast


@GROUP.case("7.2.1", "13.20", domains=_BROADCAST)
async def _everybody(bench: Bench) -> None:
    """Each consumer receives each message.

    Sends: two consumers, 3 PUT.
    Expects: three deliveries to each.
    """
    producer, uri = await bench.queue("broadcast", read=False)
    readers = [await bench.reader(uri, subscription(1)) for _ in range(2)]
    for number in range(3):
        producer.post(b"%d" % number)
    for reader in readers:
        check(await reader.payloads(3), [b"0", b"1", b"2"], "payloads")


@GROUP.case("7.2.2", "13.20", domains=_BROADCAST)
async def _nobody(bench: Bench) -> None:
    """A message without consumers is acknowledged and gone.

    Sends: a PUT without consumers, then a consumer.
    Expects: an ACK with the status 0, no PUSH.
    """
    producer, uri = await bench.queue("broadcast", read=False)
    producer.post(b"x")
    check((await producer.ack()).status, 0, "status")
    await (await bench.reader(uri, subscription(1))).no_push()


@GROUP.case("7.2.3", "13.22", _O, domains=_BROADCAST)
async def _no_limits(bench: Bench) -> None:
    """Limits do not stop broadcast.

    Sends: a consumer with a limit of 1, 5 PUT.
    Expects: five deliveries.
    """
    producer, uri = await bench.queue("broadcast", read=False)
    reader = await bench.reader(uri, subscription(1, messages=1))
    for number in range(5):
        producer.post(b"%d" % number)
    await reader.pushes(5)


@GROUP.case("7.2.4", "13.22", _O, domains=_BROADCAST)
async def _highest(bench: Bench) -> None:
    """Only the highest priority receives broadcast.

    Sends: consumers with the priorities 2, 2 and 1, a PUT.
    Expects: deliveries to the first two.
    """
    producer, uri = await bench.queue("broadcast", read=False)
    readers = [await bench.reader(uri, subscription(1, priority=priority)) for priority in (2, 2, 1)]
    producer.post(b"x")
    for reader in readers[:2]:
        check(await reader.payloads(1), [b"x"], "payloads")
    await readers[2].no_push()


@GROUP.case("7.2.5", "13.21", domains=_BROADCAST)
async def _no_redelivery(bench: Bench) -> None:
    """A lost connection redelivers nothing.

    Sends: a consumer that loses its connection with an unconfirmed message; another consumer.
    Expects: one delivery to the other consumer.
    """
    producer, uri = await bench.queue("broadcast", read=False)
    one, two = [await bench.reader(uri, subscription(1)) for _ in range(2)]
    producer.post(b"x")
    await one.push()
    await two.push()
    one.drop()
    await two.no_push()


@GROUP.case("7.2.6", "14.12", domains=_BROADCAST)
async def _confirm(bench: Bench) -> None:
    """A confirmation of a broadcast message is ignored.

    Sends: a CONFIRM, and a PUT.
    Expects: the next message.
    """
    producer, uri = await bench.queue("broadcast", read=False)
    reader = await bench.reader(uri, subscription(1))
    producer.post(b"1")
    reader.confirm((await reader.push()).push.guid)
    producer.post(b"2")
    check(await reader.payloads(1), [b"2"], "payloads")


# ---- 7.3 application subscriptions


@GROUP.case("7.3.1", "13.23", domains=("app-fanout",))
async def _admits(bench: Bench) -> None:
    """An application receives what its subscription admits.

    Sends: foo with `x == 1` and bar with `x == 2` in the domain, PUT with x = 1, 2 and 3.
    Expects: x = 1 to foo, x = 2 to bar.
    """
    producer, uri = await bench.queue("app-fanout", read=False)
    foo, bar = await _app(bench, uri, "foo"), await _app(bench, uri, "bar")
    for x in (1, 2, 3):
        producer.post(b"%d" % x, properties={"x": x})
    check(await producer.statuses(3), [0, 0, 0], "statuses")
    for peer, payload in ((foo, b"1"), (bar, b"2")):
        check(await peer.payloads(1), [payload], "payloads")
        await peer.no_push()


@GROUP.case("7.3.2", "13.23", domains=("app-fanout",))
async def _unfiltered(bench: Bench) -> None:
    """An application without a subscription receives all.

    Sends: a reader of baz, PUT with x = 1 and without properties.
    Expects: both messages.
    """
    producer, uri = await bench.queue("app-fanout", read=False)
    baz = await _app(bench, uri, "baz")
    producer.post(b"1", properties={"x": 1})
    producer.post(b"none")
    check(await baz.payloads(2), [b"1", b"none"], "payloads")


@GROUP.case("7.3.3", "13.23", domains=("app-priority",))
async def _gone(bench: Bench) -> None:
    """A message that no subscription admits is acknowledged and gone.

    Sends: PUT with x = -1, without properties and with x = 1 in a domain with `x > 0`.
    Expects: three ACK messages with the status 0, and the third message.
    """
    peer, _ = await bench.consumer(subscription(1), kind="app-priority")
    peer.post(b"neg", properties={"x": -1})
    peer.post(b"none")
    peer.post(b"pos", properties={"x": 1})
    check(await peer.statuses(3), [0, 0, 0], "statuses")
    check(await peer.payloads(1), [b"pos"], "payloads")


@GROUP.case("7.3.4", "13.23", domains=("app-priority",))
async def _both_apply(bench: Bench) -> None:
    """The expression of the consumer applies as well.

    Sends: a consumer with `y == 1` in a domain with `x > 0`, PUT with all combinations.
    Expects: only the message that both admit.
    """
    peer, _ = await bench.consumer(subscription(1, "y == 1"), kind="app-priority")
    for x, y in ((-1, 0), (-1, 1), (1, 0), (1, 1)):
        peer.post(b"%d %d" % (x, y), properties={"x": x, "y": y})
    check(await peer.payloads(1), [b"1 1"], "payloads")
    await peer.no_push()


# ---- refused applications


async def _refused(bench: Bench, kind: str, app: str, how: dict[str, Any], expected: str) -> None:
    peer = await bench.client()
    status = await peer.refused(open_request(bench.uri(kind, app), **how))
    found = f"{status.category.name} {status.code}" if " " in expected else status.category.name
    check(found, expected, "status")


GROUP.reactions(_refused, [
    ("7.1.6", "7.21", _M, "A reader without an application is refused", "openQueue for reading without subIdInfo", "E_UNKNOWN -1", "fanout", "", {"write": False}),
    ("7.1.7", "7.22", _M, "A producer with an application is refused", "openQueue for writing with subIdInfo", "E_INVALID_ARGUMENT", "fanout", "foo",
     {"read": False, "sub_id": 1}),
], expects="the status {}", domains=("fanout",))  # fmt: skip
GROUP.reactions(_refused, [
    ("7.2.7", "7.22", _M, "An application of a broadcast queue is refused", "openQueue for reading with subIdInfo", "E_UNKNOWN -1", "broadcast", "foo",
     {"write": False, "sub_id": 1}),
], expects="the status {}", domains=("broadcast",))  # fmt: skip
