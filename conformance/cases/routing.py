# SPDX-License-Identifier: Apache-2.0
"""The choice of the consumer: full subscriptions, and messages for the next matching subscription.

:data:`SPILLING` is the table of ``docs/explain/routing.md``; the tests of
:class:`bmq.subscriptions.RoutingTable` compare the predictions of the class with the table.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bmq.wire.properties import PropertyInput
from conformance.bench import Bench
from conformance.case import Cases, Level, check
from conformance.peer import Peer, subscription
from conformance.scene import A, play

__all__ = ["GROUP", "SPILLING", "Spilling", "Sub"]

GROUP = Cases(8, "Routing", domains=("priority",))

_M, _O = Level.MUST, Level.OBSERVED


# ---- 8.1 full subscriptions


class Sub(NamedTuple):
    """A consumer with a single subscription.

    Attributes:
        name: name of the consumer.
        text: the expression; empty for every message.
        priority: the priority.
        window: maxUnconfirmedMessages.
    """

    name: str
    text: str
    priority: int
    window: int = 100


class Spilling(NamedTuple):
    """A situation, and the messages received by consumers without confirmations.

    Attributes:
        title: the situation, in a sentence.
        subs: the consumers, in the order of arrival.
        posted: the property ``x`` of each message.
        expected: the received values of ``x`` by consumer; an absent consumer receives no message.
        statement: the statement of ``docs/protocol/protocol.md``.
    """

    title: str
    subs: tuple[Sub, ...]
    posted: tuple[int, ...]
    expected: dict[str, list[int]]
    statement: str = "8.17"


_A, _B = Sub("A", "x >= 0", 10, 1), Sub("B", "x > -1", 5)
_ONE, _TWO = Sub("A", "x == 1", 10, 1), Sub("D", "x == 2", 5)
_ALL = Sub("S", "", -100)
_SIX = (0, 1, 2, 3, 4, 5)
_MIXED = (1, 1, 2, 2, 1, 2)


def _idle(priority: int) -> Sub:
    return Sub("C", "x == 100", priority)


#: The situations, by number of the case.
SPILLING: Final[dict[str, Spilling]] = {
    "8.1.1": Spilling("Messages wait for a full consumer of two", (_A, _B), _SIX, {"A": [0]}),
    "8.1.2": Spilling(
        "Messages pass a full consumer beside a free one of its priority",
        (_A, _B, _idle(10)), _SIX, {"A": [0], "B": [2, 3, 4, 5]},
    ),
    "8.1.3": Spilling(
        "Messages pass a full consumer beside a free one that came first",
        (_idle(10), _A, _B), _SIX, {"A": [0], "B": [2, 3, 4, 5]},
    ),
    "8.1.4": Spilling(
        "Messages pass a full consumer below a free one", (_A, _B, _idle(20)), _SIX, {"A": [0], "B": [2, 3, 4, 5]}
    ),
    "8.1.5": Spilling(
        "Messages wait for a full consumer above a free one", (_A, _B, _idle(7)), _SIX, {"A": [0]}
    ),
    "8.1.6": Spilling(
        "Messages wait for a full consumer above two others", (_A, _B, _idle(1)), _SIX, {"A": [0]}
    ),
    "8.1.7": Spilling(
        "Messages wait for a full consumer above one with the same expression",
        (_A, _B._replace(text=_A.text), _idle(10)), _SIX, {"A": [0]}, "8.13",
    ),
    "8.1.8": Spilling(
        "A full consumer leaves messages to one of its priority",
        (_A, _B._replace(priority=10)), _SIX, {"A": [0], "B": [1, 2, 3, 4, 5]}, "8.15",
    ),
    "8.1.9": Spilling(
        "A full subscription holds back messages for another expression below", (_ONE, _TWO), _MIXED, {"A": [1]}
    ),
    "8.1.10": Spilling(
        "An expression below receives messages until the subscription above is full",
        (_ONE, _TWO), (2, *_MIXED), {"A": [1], "D": [2]},
    ),
    "8.1.11": Spilling(
        "A full subscription lets messages for another expression of its priority pass",
        (_ONE, _TWO._replace(priority=10)), _MIXED, {"A": [1], "D": [2, 2, 2]},
    ),
    "8.1.12": Spilling(
        "A full subscription lets messages for another expression above pass",
        (_ONE, _TWO._replace(priority=20)), _MIXED, {"A": [1], "D": [2, 2, 2]},
    ),
    "8.1.13": Spilling(
        "A full subscription holds back messages for a consumer of all messages below",
        (_ONE, _ALL), _MIXED, {"A": [1]},
    ),
    "8.1.14": Spilling(
        "A consumer of all messages below two expressions receives what passes",
        (_ONE, _TWO._replace(priority=10), _ALL),
        (1, 1, 1, 2, 3, 1, 2), {"A": [1], "D": [2, 2], "S": [1, 3, 1]},
    ),
}  # fmt: skip


async def _spilling(bench: Bench, found: Spilling) -> None:
    producer, uri = await bench.queue(read=False)
    consumers: dict[str, Peer] = {}
    for sub in found.subs:
        consumers[sub.name] = peer = await bench.reader(
            uri, subscription(1, sub.text, priority=sub.priority, messages=sub.window)
        )
    for x in found.posted:
        producer.post(b"%d" % x, properties={"x": x})
    await producer.acks(len(found.posted))
    for name, peer in consumers.items():
        expected = found.expected.get(name, [])
        got = [int(payload) for payload in await peer.payloads(len(expected))]
        check(got, expected, f"deliveries to {name}")
    for peer in consumers.values():
        await peer.no_push()


def _sub_shown(sub: Sub) -> str:
    text = f"`{sub.text}`" if sub.text else "no expression"
    limit = ", limit 1" if sub.window == 1 else ""
    return f"{sub.name} ({text}, priority {sub.priority}{limit})"


for _number, _found in SPILLING.items():
    _received = (f"{', '.join(map(str, xs))} to {name}" for name, xs in _found.expected.items())
    GROUP.add(
        _number,
        _found.statement,
        _O,
        _found.title,
        f"consumers {', '.join(map(_sub_shown, _found.subs))}, which confirm nothing; "
        f"PUT with x = {', '.join(map(str, _found.posted))}",
        f"deliveries {', '.join(_received)}",
        _spilling,
        _found,
    )


# ---- 8.2 expressions that match nothing or everything

_VALUES: tuple[PropertyInput, ...] = (-1, 0, 1, 2, 5, 6, 2**40, "", "a", 'a"b', "1", True, False)


async def _never(bench: Bench, text: str) -> None:
    peer, _ = await bench.consumer(subscription(1, text), subscription(2, "end == true"))
    for value in _VALUES:
        peer.post(b"-", properties={"x": value, "y": 2})
    peer.post(b"-", properties={"y": 2})
    peer.post(b"end", properties={"end": True})
    last = await peer.push()
    check((last.payload, last.push.sub_ids), (b"end", (2,)), "delivery")


async def _always(bench: Bench, text: str) -> None:
    peer, _ = await bench.consumer(subscription(1, text))
    numbers = [value for value in _VALUES if isinstance(value, int) and not isinstance(value, bool)]
    for value in numbers:
        peer.post(b"%d" % value, properties={"x": value})
    check(await peer.payloads(len(numbers)), [b"%d" % value for value in numbers], "payloads")


GROUP.rows(_never, [
    ("8.2.1", "9.8", _M, "`x == 1 && x == 2` matches nothing", "a subscription `x == 1 && x == 2`", "no PUSH with the sId of the subscription", "x == 1 && x == 2"),
    ("8.2.2", "9.8", _M, "`x > 5 && x < 6` matches nothing", "a subscription `x > 5 && x < 6`", "no PUSH with the sId of the subscription", "x > 5 && x < 6"),
    ("8.2.3", "9.6", _M, '`x < ""` matches nothing', 'a subscription `x < ""`', "no PUSH with the sId of the subscription", 'x < ""'),
    ("8.2.4", "9.6", _M, "`x < x` matches nothing", "a subscription `x < x`", "no PUSH with the sId of the subscription", "x < x"),
    ("8.2.5", "9.10", _O, '`x + 1 == "a"` matches nothing', 'a subscription `x + 1 == "a"`', "no PUSH with the sId of the subscription", 'x + 1 == "a"'),
    ("8.2.6", "9.8", _O, "`x == 1 && 2` matches nothing", "a subscription `x == 1 && 2`", "no PUSH with the sId of the subscription", "x == 1 && 2"),
    ("8.2.7", "9.9", _O, "`(x == 1) == (y == 2)` matches nothing", "a subscription `(x == 1) == (y == 2)`", "no PUSH with the sId of the subscription",
     "(x == 1) == (y == 2)"),
    ("8.2.8", "9.10", _O, "`x / 0 == 1` matches nothing", "a subscription `x / 0 == 1`", "no PUSH with the sId of the subscription", "x / 0 == 1"),
    ("8.2.9", "9.2", _O, '`x == "a\\"b"` matches nothing', 'a subscription `x == "a\\"b"`', "no PUSH with the sId of the subscription", r'x == "a\"b"'),
], sends="{}; PUT with numbers, texts and booleans as x, and one without x")  # fmt: skip
GROUP.rows(_always, [
    ("8.2.10", "9.8", _M, "`x != 1 || x != 2` matches every number", "a subscription `x != 1 || x != 2`", "all seven messages", "x != 1 || x != 2"),
    ("8.2.11", "9.6", _M, "`x == x` matches every number", "a subscription `x == x`", "all seven messages", "x == x"),
], sends="{}, PUT with seven numbers as x")  # fmt: skip


GROUP.rows(play, [
    ("8.2.12", "9.5", _O, "An operator without spaces before a number does not compile",
     "a subscription `i-1 == 41` above one without an expression, and a PUT with i = 7", "a PUSH with the sId of the first subscription, as for every expression with a mistake",
     A.opens(subscription(1, "i-1 == 41", priority=2), subscription(2, priority=1)), A.posts(1, i=7), A.gets(1, s_ids=(1,))),
    ("8.3.2", "13.7", _O, "A message that waited for a match has the flag OUT_OF_ORDER",
     "a subscription `x == 0`, PUT without x and with x = 0; then a subscription without an expression", "the first message without a match, after the change, with the flag",
     A.opens(subscription(1, "x == 0")), A.posts(b"later"), A.posts(b"now", x=0), A.gets(b"now"), A.configures(subscription(2)),
     A.gets(b"later", s_ids=(2,), again=True)),
])  # fmt: skip


@GROUP.case("8.2.13", "9.11")
async def _tags(bench: Bench) -> None:
    """An expression and its negation share all messages.

    Sends: subscriptions `exists(t.urgent) || exists(t.eu)` and its negation; four PUT.
    Expects: each message once, with the sId of the expression that is true.
    """
    peer, _ = await bench.queue()
    wanted = "exists(t.urgent) || exists(t.eu)"
    await peer.configure(0, subscription(1, wanted), subscription(2, f"!({wanted})"))
    posts: list[tuple[bytes, dict[str, PropertyInput], int]] = [
        (b"urgent", {"t.urgent": True}, 1),
        (b"low", {"t.low": True}, 2),
        (b"none", {}, 2),
        (b"both", {"t.urgent": True, "t.eu": True}, 1),
    ]
    for payload, properties, _ in posts:
        peer.post(payload, properties=properties)
    got = [(each.payload, each.push.sub_ids) for each in await peer.pushes(len(posts))]
    check(sorted(got), sorted((payload, (s_id,)) for payload, _, s_id in posts), "deliveries")


# ---- 8.3 turns and order


@GROUP.case("8.3.1", "8.15", _O)
async def _turns(bench: Bench) -> None:
    """Equal consumers receive messages in turn.

    Sends: two consumers with one priority, 12 PUT.
    Expects: every second message for each consumer.
    """
    one, uri = await bench.queue()
    two = await bench.client()
    await two.open(uri, write=False)
    for peer in (two, one):
        await peer.configure(0, subscription(1))
    for number in range(12):
        one.post(b"%d" % number)
    remainders = [sorted({int(each) % 2 for each in await peer.payloads(6)}) for peer in (one, two)]
    check(sorted(remainders), [[0], [1]], "numbers modulo 2")
