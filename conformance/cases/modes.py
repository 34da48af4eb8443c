# SPDX-License-Identifier: Apache-2.0
"""Fanout, broadcast and application subscriptions."""

from __future__ import annotations

from functools import partial
from typing import Any

from conformance.bench import Bench
from conformance.case import Cases, Level, check
from conformance.peer import open_request, subscription
from conformance.scene import A, B, C, P, play

__all__ = ["GROUP"]

GROUP = Cases(7, "Fanout and broadcast", domains=("fanout",))

_M, _S, _O = Level.MUST, Level.SHOULD, Level.OBSERVED


# ---- 7.1 fanout


GROUP.rows(partial(play, kind="fanout"), [
    ("7.1.1", "13.17", _M, "Each application receives each message", "readers foo, bar and baz, a PUT", "one delivery to each",
     P.writes(), A.reads(app="foo"), B.reads(app="bar"), C.reads(app="baz"), P.posts(1), A.gets(1), A.gets_nothing(), B.gets(1),
     B.gets_nothing(), C.gets(1), C.gets_nothing()),
    ("7.1.2", "13.17", _M, "A message waits for an application without a reader",
     "a PUT, a reader of foo, and later a reader of bar", "the message for both",
     P.writes(), P.posts(1), P.acks(0), A.reads(app="foo"), A.gets(1), B.reads(app="bar"), B.gets(1)),
    ("7.1.3", "14.4", _M, "Each application confirms for itself",
     "a CONFIRM of foo; readers of foo and bar afterwards", "the message for bar, not for foo",
     P.writes(), A.reads(app="foo"), P.posts(1), A.gets(1), A.confirms(1, sub_id=1), A.leaves("foo"), B.reads(app="foo"),
     C.reads(app="bar"), C.gets(1), B.gets_nothing()),
    ("7.1.4", "13.19", _O, "Two applications of one session receive one PUSH",
     "foo with sId 10 and bar with sId 20 in one session, a PUT", "one PUSH with both sIds",
     A.writes(), A.reads(app="foo", sub_id=1, s_id=10), A.reads(app="bar", sub_id=2, s_id=20), A.posts(1), A.gets(1, s_ids=(10, 20)),
     A.gets_nothing()),
    ("7.1.5", "13.17", _M, "Two applications of one session receive each message",
     "foo and bar in one session, a PUT", "PUSH messages with both sIds together",
     A.writes(), A.reads(app="foo", sub_id=1, s_id=10), A.reads(app="bar", sub_id=2, s_id=20), A.posts(1), A.gets_s_ids(10, 20)),
    ("7.1.8", "7.24", _O, "An unknown application opens, and receives nothing",
     "a reader of the application nobody, a PUT", "openQueueResponse, an ACK with the status 0, no PUSH",
     A.writes(), A.reads(app="nobody"), A.posts(1), A.acks(0), A.gets_nothing()),
    ("7.1.10", "15.3", _M, "An application leaves, and the other stays",
     "closeQueue of foo with isFinal false, then a PUT", "a PUSH with the sId of bar alone",
     P.writes(), A.reads(app="foo", sub_id=1, s_id=10), A.reads(app="bar", sub_id=2, s_id=20), A.leaves("foo", final=False), P.posts(1),
     A.gets(1, s_ids=(20,))),
    ("7.1.11", "8.22", _M, "Each application has limits of its own",
     "foo with a limit of 1 and bar with a limit of 10, 5 PUT", "one delivery to foo, five to bar",
     P.writes(), A.reads(subscription(1, messages=1), app="foo"), B.reads(subscription(1, messages=10), app="bar"), P.posts(*range(5)),
     B.gets(*range(5)), A.gets(0), A.gets_nothing()),
    ("7.1.12", "14.5", _M, "A confirmation needs the subId of the application",
     "a CONFIRM of foo with subQueueId 0; a reader of foo in another session", "the message again",
     P.writes(), A.reads(app="foo"), P.posts(1), A.gets(1), A.confirms(1, sub_id=0), A.leaves("foo"), B.reads(app="foo"),
     B.gets(1)),
    ("7.1.13", "8.27", _M, "Expressions belong to an application",
     "foo with `x == 1`, bar without an expression, PUT with x = 1 and x = 2", "one delivery to foo, two to bar",
     P.writes(), A.reads(subscription(1, "x == 1"), app="foo"), B.reads(app="bar"), P.posts_x(1, 2), B.gets(1, 2), A.gets(1),
     A.gets_nothing()),
])  # fmt: skip


@GROUP.case("7.1.9", "13.17")
async def _share(bench: Bench) -> None:
    """Readers of one application share its messages.

    Sends: two readers of foo, 10 PUT.
    Expects: each message once.
    """
    scene = await play(
        bench, P.writes(), A.reads(app="foo"), B.reads(app="foo"), P.posts(*range(10)), kind="fanout"
    )
    got = [*await A.peer(scene).payloads(5), *await B.peer(scene).payloads(5)]
    check(sorted(got), [b"%d" % number for number in range(10)], "payloads")


# ---- 7.2 broadcast


GROUP.rows(partial(play, kind="broadcast"), [
    ("7.2.1", "13.20", _M, "Each consumer receives each message", "two consumers, 3 PUT", "three deliveries to each",
     P.writes(), A.reads(), B.reads(), P.posts(0, 1, 2), A.gets(0, 1, 2), B.gets(0, 1, 2)),
    ("7.2.2", "13.20", _M, "A message without consumers is acknowledged and gone",
     "a PUT without consumers, then a consumer", "an ACK with the status 0, no PUSH",
     P.writes(), P.posts(1), P.acks(0), A.reads(), A.gets_nothing()),
    ("7.2.3", "13.22", _O, "Limits do not stop broadcast", "a consumer with a limit of 1, 5 PUT", "five deliveries",
     P.writes(), A.reads(subscription(1, messages=1)), P.posts(*range(5)), A.gets(*range(5))),
    ("7.2.4", "13.22", _O, "Only the highest priority receives broadcast",
     "consumers with the priorities 2, 2 and 1, a PUT", "deliveries to the first two",
     P.writes(), A.reads(subscription(1, priority=2)), B.reads(subscription(1, priority=2)), C.reads(subscription(1, priority=1)),
     P.posts(1), A.gets(1), B.gets(1), C.gets_nothing()),
    ("7.2.5", "13.21", _M, "A lost connection redelivers nothing",
     "a consumer that loses its connection with an unconfirmed message; another consumer", "one delivery to the other consumer",
     P.writes(), A.reads(), B.reads(), P.posts(1), A.gets(1), B.gets(1), A.drops(), B.gets_nothing()),
    ("7.2.6", "14.12", _M, "A confirmation of a broadcast message is ignored", "a CONFIRM, and a PUT", "the next message",
     P.writes(), A.reads(), P.posts(1), A.gets(1), A.confirms(1), P.posts(2), A.gets(2)),
], domains=("broadcast",))  # fmt: skip


# ---- 7.3 application subscriptions


GROUP.rows(partial(play, kind="app-fanout"), [
    ("7.3.1", "13.23", _M, "An application receives what its subscription admits",
     "foo with `x == 1` and bar with `x == 2` in the domain, PUT with x = 1, 2 and 3", "x = 1 to foo, x = 2 to bar",
     P.writes(), A.reads(app="foo"), B.reads(app="bar"), P.posts_x(1, 2, 3), P.acks(0, 0, 0), A.gets(1), A.gets_nothing(),
     B.gets(2), B.gets_nothing()),
    ("7.3.2", "13.23", _M, "An application without a subscription receives all",
     "a reader of baz, PUT with x = 1 and without properties", "both messages",
     P.writes(), A.reads(app="baz"), P.posts_x(1), P.posts(b"none"), A.gets(1, b"none")),
], domains=("app-fanout",))  # fmt: skip


GROUP.rows(partial(play, kind="app-priority"), [
    ("7.3.3", "13.23", _M, "A message that no subscription admits is acknowledged and gone",
     "PUT with x = -1, without properties and with x = 1 in a domain with `x > 0`", "three ACK messages with the status 0, and the third message",
     A.opens(subscription(1)), A.posts_x(-1), A.posts(b"none"), A.posts_x(1), A.acks(0, 0, 0), A.gets(1)),
    ("7.3.4", "13.23", _M, "The expression of the consumer applies as well",
     "a consumer with `y == 1` in a domain with `x > 0`, PUT with all combinations", "only the message that both admit",
     A.opens(subscription(1, "y == 1")), A.posts(b"-1 0", x=-1, y=0), A.posts(b"-1 1", x=-1, y=1), A.posts(b"1 0", x=1, y=0),
     A.posts(b"1 1", x=1, y=1), A.gets(b"1 1"), A.gets_nothing()),
], domains=("app-priority",))  # fmt: skip


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
