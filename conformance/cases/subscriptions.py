# SPDX-License-Identifier: Apache-2.0
"""Subscriptions: expressions, priorities, several of a queue, changes under flow."""

from __future__ import annotations

from collections.abc import Sequence

from bmq.wire.constants import Compression, PropertyType
from bmq.wire.control import ConfigureStream, StreamParameters, Subscription
from bmq.wire.properties import PropertyInput, PropertyValue
from conformance.bench import Bench
from conformance.case import Cases, Level, check
from conformance.peer import subscription
from conformance.scene import A, B, C, P, play

__all__ = ["GROUP"]

GROUP = Cases(6, "Subscriptions", domains=("priority",))

_M, _S, _O = Level.MUST, Level.SHOULD, Level.OBSERVED


def _char(value: bytes) -> PropertyValue:
    return PropertyValue(PropertyType.CHAR, value)


def _short(value: int) -> PropertyValue:
    return PropertyValue(PropertyType.SHORT, value)


def _int(value: int) -> PropertyValue:
    return PropertyValue(PropertyType.INT32, value)


# ---- 6.1 the truth table

_Values = dict[str, PropertyInput]

#: Number, level, expression, properties, whether the message matches.
_TRUTH: list[tuple[int, str, Level, str, _Values, bool]] = [
    (1, "9.6", _M, "i == 42", {"i": _int(42)}, True),
    (2, "9.6", _M, "i == 42", {"i": _int(41)}, False),
    (3, "9.6", _M, "i != 42", {"i": _int(41)}, True),
    (4, "9.6", _M, "i > 41 && i < 43", {"i": _int(42)}, True),
    (5, "9.6", _M, "i >= 42 || i <= 1", {"i": _int(2)}, False),
    (6, "9.7", _M, "i - 1 == 41", {"i": _int(42)}, True),
    (7, "9.7", _M, "i * 2 + 1 == 85", {"i": _int(42)}, True),
    (8, "9.7", _M, "i % 5 == -2", {"i": _int(-42)}, True),
    (9, "9.7", _M, "i / 5 == -8", {"i": _int(-42)}, True),
    (10, "9.10", _M, "missing == 1", {"i": _int(1)}, False),
    (11, "9.10", _M, "!(missing == 1)", {"i": _int(1)}, False),
    (12, "9.10", _M, "missing == 1 || i == 1", {"i": _int(1)}, False),
    (13, "9.8", _M, "i == 1 || missing == 1", {"i": _int(1)}, True),
    (14, "9.11", _M, "exists(missing) || i == 1", {"i": _int(1)}, True),
    (15, "9.11", _M, "exists(i)", {"i": _int(1)}, True),
    (16, "9.11", _M, "!exists(i)", {"j": _int(1)}, True),
    (17, "9.6", _M, 's == "foo"', {"s": "foo"}, True),
    (18, "9.6", _M, 's == "foo"', {"s": "Foo"}, False),
    (19, "9.6", _M, 's < "zig" && s > "bar"', {"s": "foo"}, True),
    (20, "9.2", _O, r's == "a\"b"', {"s": r"a\"b"}, True),
    (21, "9.2", _O, r's == "a\"b"', {"s": 'a"b'}, False),
    (22, "9.9", _M, "b == true", {"b": True}, True),
    (23, "9.12", _M, "b", {"b": True}, True),
    (24, "9.12", _M, "!b", {"b": False}, True),
    (25, "9.2", _O, "~b", {"b": False}, True),
    (26, "9.9", _O, "b == c", {"b": True, "c": True}, False),
    (27, "9.13", _O, "exists(bin)", {"bin": b"x"}, False),
    (28, "9.12", _M, "ch == 65", {"ch": _char(b"A")}, True),
    (29, "9.12", _M, "sh == -3", {"sh": _short(-3)}, True),
    (30, "9.12", _M, "l == 9223372036854775807", {"l": 2**63 - 1}, True),
    (31, "9.10", _O, "i / z == 0", {"i": _int(1), "z": _int(0)}, False),
    (32, "9.2", _M, "a.b > 4", {"a.b": _int(5)}, True),
    (33, "9.10", _O, "i", {"i": _int(1)}, False),
    (34, "9.13", _O, "9223372036854775807 + i < 0", {"i": _int(1)}, True),
    (35, "9.2", _O, "i == 042", {"i": _int(42)}, True),
    (36, "9.5", _O, "i = 42", {"i": _int(7)}, True),
    (37, "9.5", _O, "x >", {"i": _int(7)}, True),
    (38, "9.10", _M, 's == "1"', {"s": _int(1)}, False),
    (39, "9.10", _M, "i == 1", {"i": "1"}, False),
    (40, "9.5", _O, "true", {}, True),
    (41, "9.5", _O, "false", {"i": _int(1)}, True),
    (42, "9.7", _M, "-i == 5", {"i": _int(-5)}, True),
    (43, "9.2", _M, "(i == 1 || i == 2) && s == \"x\"", {"i": _int(2), "s": "x"}, True),
    (44, "9.2", _M, "i == 1 || i == 2 && s == \"x\"", {"i": _int(1), "s": "y"}, True),
]  # fmt: skip


async def _truth(bench: Bench, text: str, values: _Values, matches: bool) -> None:
    peer, _ = await bench.consumer(subscription(1, text, priority=2), subscription(2, priority=1))
    peer.post(b"x", properties=values)
    check((await peer.push()).push.sub_ids, (1,) if matches else (2,), "sIds")


def _shown(values: _Values) -> str:
    plain = {name: v.value if isinstance(v, PropertyValue) else v for name, v in values.items()}
    return ", ".join(f"{name} = {value!r}" for name, value in plain.items()) or "no properties"


for _place, _statement, _level, _text, _values, _matches in _TRUTH:
    GROUP.add(
        f"6.1.{_place}",
        _statement,
        _level,
        f"`{_text}` {'matches' if _matches else 'does not match'} {_shown(_values)}",
        f"a subscription `{_text}` above one without an expression, and a PUT with {_shown(_values)}",
        f"a PUSH with the sId of the {'first' if _matches else 'second'} subscription",
        _truth,
        _text,
        _values,
        _matches,
    )


# ---- 6.2 priorities


GROUP.rows(play, [
    ("6.2.2", "8.14", _M, "A lower priority takes over",
     "consumers with the priorities 2 and 1; the first closes its queue; a PUT", "the delivery to priority 1",
     A.opens(), B.reads(subscription(2, priority=1)), A.configures(subscription(1, priority=2)), P.writes(), A.leaves(), P.posts(1),
     B.gets(1)),
    ("6.3.4", "13.11", _M, "A message without a match waits",
     "a subscription `x == 1`, PUT with x = 2, then a subscription `x == 2`", "no PUSH at first, and the message after the change",
     A.opens(subscription(1, "x == 1")), A.posts_x(2), A.gets_nothing(), A.configures(subscription(2, "x == 2")), A.gets(2, s_ids=(2,))),
    ("6.4.4", "14.11", _M, "Unconfirmed messages of a replaced subscription can be confirmed",
     "a PUT, configureStream with another sId, a CONFIRM; a consumer in another session", "no second delivery",
     A.opens(subscription(1)), A.posts(1), A.gets(1), A.configures(subscription(2)), A.confirms(1), B.opens(write=False),
     A.leaves(), B.configures(subscription(1)), B.gets_nothing()),
    ("6.4.5", "13.14", _O, "A redelivered message without a consumer holds back new ones",
     "`x == 1` leaves with an unconfirmed message; `x == 2` stays; PUT with x = 2; then `x == 1` again", "no PUSH for `x == 2` until the first message has a consumer",
     A.opens(), B.opens(subscription(1, "x == 2")), A.configures(subscription(1, "x == 1")), A.posts_x(1), A.gets(1), A.leaves(),
     B.posts_x(2), B.gets_nothing(), C.reads(subscription(1, "x == 1")), C.gets(1), B.gets(2)),
])  # fmt: skip


async def _share(
    bench: Bench,
    consumers: tuple[Subscription, Subscription],
    posts: int,
    received: tuple[int, int],
    numbered: bool = False,  # whether each message has its number as the property x
) -> None:
    one, uri = await bench.queue()
    two = await bench.client()
    await two.open(uri, write=False)
    await two.configure(0, consumers[1])
    await one.configure(0, consumers[0])
    posted = [b"%d" % number for number in range(posts)]
    for number, payload in enumerate(posted):
        one.post(payload, properties={"x": number} if numbered else None)
    got: list[bytes] = []
    for peer, count in zip((one, two), received, strict=True):
        if count:
            got += await peer.payloads(count)
    check(len(set(got) & set(posted)), sum(received), "number of different messages")
    for peer in (one, two):
        await peer.no_push()


GROUP.rows(_share, [
    ("6.2.1", "8.13", _M, "The highest priority receives all messages", "consumers with the priorities 2 and 1, 10 PUT",
     "10 deliveries to priority 2, none to priority 1", (subscription(1, priority=2), subscription(2, priority=1)), 10, (10, 0)),
    ("6.2.3", "8.16", _M, "Priorities may be negative", "consumers with the priorities -1 and -2, a PUT", "the delivery to -1",
     (subscription(1, priority=-1), subscription(2, priority=-2)), 1, (1, 0)),
    ("6.2.4", "8.15", _M, "Equal priorities share the messages", "two consumers with one priority, 12 PUT", "each message once, 6 for each consumer",
     (subscription(1), subscription(1)), 12, (6, 6)),
    ("6.2.5", "8.13", _M, "A full consumer does not pass messages to a lower priority",
     "a consumer with the priority 2 and a limit of 1, one with the priority 1, 10 PUT", "one delivery to priority 2, none to priority 1",
     (subscription(1, priority=2, messages=1), subscription(2, priority=1)), 10, (1, 0)),
    ("6.2.6", "8.17", _O, "A full subscription does not pass messages to another expression",
     "`x >= 0` with the priority 2 and a limit of 1, `x < 100` with the priority 1, 10 PUT", "one delivery to priority 2, none to priority 1",
     (subscription(1, "x >= 0", priority=2, messages=1), subscription(2, "x < 100", priority=1)), 10, (1, 0), True),
    ("6.2.7", "8.18", _O, "consumerPriorityCount gives a consumer more messages in turn", "two consumers with the counts 3 and 1, 8 PUT",
     "6 deliveries to the first, 2 to the second", (subscription(1, count=3), subscription(1, count=1)), 8, (6, 2)),
    ("6.2.8", "8.15", _M, "A full consumer leaves messages to an equal one", "two consumers with one priority, one with a limit of 1; 10 PUT",
     "one delivery to the limited consumer, nine to the other", (subscription(1), subscription(1, messages=1)), 10, (9, 1)),
])  # fmt: skip


# ---- 6.3 several subscriptions of one queue


_ONE_OR_REST = (subscription(1, "x == 1", priority=2), subscription(2, priority=1))


async def _match(
    bench: Bench,
    configured: tuple[tuple[Subscription, ...], ...],  # of each configureStream
    posts: Sequence[int],  # the property x of each message
    delivered: list[tuple[bytes, int]],  # x as text, and the sId
    new: bool = True,
) -> None:
    peer, _ = await bench.queue()
    for subscriptions in configured:
        await peer.configure(0, *subscriptions)
    for x in posts:
        peer.post(b"%d" % x, properties={"x": x}, new=new)
    got = [(each.payload, each.push.sub_ids) for each in await peer.pushes(len(delivered))]
    check(got, [(payload, (s_id,)) for payload, s_id in delivered], "deliveries")
    await peer.no_push()


GROUP.rows(_match, [
    ("6.3.1", "13.2", _M, "Each message has the sId of its subscription", "subscriptions `x == 0` and `x == 1`, a PUT for each", "a PUSH with each sId",
     ((subscription(11, "x == 0"), subscription(12, "x == 1")),), (0, 1), [(b"0", 11), (b"1", 12)]),
    ("6.3.5", "13.11", _M, "A message without a match lets others pass", "a subscription `x == 1`, PUT with x = 2 and x = 1", "the second message",
     ((subscription(1, "x == 1"),),), (2, 1), [(b"1", 1)]),
    ("6.3.6", "8.12", _M, "Fifty subscriptions of one queue work", "50 subscriptions `x == n`, a PUT for each", "50 deliveries, each with its sId",
     (tuple(subscription(n + 1, f"x == {n}") for n in range(50)),), range(50), [(b"%d" % n, n + 1) for n in range(50)]),
    ("6.3.7", "9.14", _M, "Properties in the old encoding match, too", "a subscription `x == 1`, a PUT in the old encoding with x = 1", "the message", (_ONE_OR_REST,),
     (1,), [(b"1", 1)], False),
    ("6.4.1", "8.4", _M, "configureStream replaces all subscriptions", "a subscription `x == 1`, then a subscription `x == 2`; PUT with x = 1 and x = 2",
     "only the second message", ((subscription(1, "x == 1"),), (subscription(2, "x == 2"),)), (1, 2), [(b"2", 2)]),
])  # fmt: skip


@GROUP.case("6.3.2", "8.19")
async def _once(bench: Bench) -> None:
    """A message of two subscriptions is delivered once.

    Sends: subscriptions `x >= 0` and `x < 10` with one priority, a PUT with x = 5.
    Expects: one PUSH with one sId.
    """
    peer, _ = await bench.consumer(subscription(1, "x >= 0"), subscription(2, "x < 10"))
    peer.post(b"x", properties={"x": 5})
    check(len((await peer.push()).push.sub_ids), 1, "number of sIds")
    await peer.no_push()


@GROUP.case("6.3.3", "8.19")
async def _wins(bench: Bench) -> None:
    """The subscription of the higher priority wins.

    Sends: `x >= 0` with the priority 5 and `x == 0` with the priority 10, PUT with x = 0 and x = 1.
    Expects: x = 0 with the second sId, x = 1 with the first.
    """
    peer, _ = await bench.consumer(
        subscription(5, "x >= 0", priority=5), subscription(10, "x == 0", priority=10)
    )
    for x in (0, 1):
        peer.post(b"%d" % x, properties={"x": x})
    pairs = {(each.payload, each.push.sub_ids) for each in await peer.pushes(2)}
    check(pairs == {(b"0", (10,)), (b"1", (5,))}, True, f"deliveries {sorted(pairs)}:")


@GROUP.case("6.3.8", "9.14")
async def _compressed(bench: Bench) -> None:
    """A compressed payload does not hide the properties.

    Sends: a subscription `x == 1`, a compressed PUT in the new encoding with x = 1.
    Expects: the message.
    """
    peer, _ = await bench.consumer(*_ONE_OR_REST)
    # A short payload would not be compressed.
    peer.post(b"x" * 5000, properties={"x": 1}, compression=Compression.ZLIB)
    check((await peer.push()).push.sub_ids, (1,), "sIds")


# ---- 6.4 changes


@GROUP.case("6.4.2", "8.9", _O)
async def _refused(bench: Bench) -> None:
    """A refused change keeps the subscriptions.

    Sends: a subscription, then configureStream with an invalid priority; a PUT.
    Expects: the message with the first sId.
    """
    peer, _ = await bench.consumer(subscription(1))
    parameters = StreamParameters(subscriptions=(subscription(2, priority=-(2**31)),))
    await peer.refused(ConfigureStream(q_id=0, stream_parameters=parameters))
    peer.post(b"x")
    check((await peer.push()).push.sub_ids, (1,), "sIds")


@GROUP.case("6.4.3", "8.8")
async def _under_flow(bench: Bench) -> None:
    """Changes under flow lose nothing.

    Sends: 200 PUT with 20 changes of the subscription between them.
    Expects: 200 different messages.
    """
    peer, _ = await bench.queue()
    for number in range(200):
        if number % 10 == 0:
            await peer.configure(0, subscription(number + 1, "x >= 0" if number % 20 else ""))
        peer.post(b"%d" % number, properties={"x": number})
    await peer.configure(0, subscription(999))
    got: dict[bytes, None] = {}
    while len(got) < 200:
        got[(await peer.push()).payload] = None
    check(sorted(map(int, got)), list(range(200)), "messages")
