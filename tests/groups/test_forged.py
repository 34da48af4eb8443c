# SPDX-License-Identifier: Apache-2.0
"""Anybody may write to the control queue of a group: messages that no member has sent change nothing."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest

import bmq
from bmq.groups._coordinator import decoded, encoded
from bmq.groups._protocol import Crown, Order, Report
from tests.groups.conftest import Ledger, Open, handle, post
from tests.waiting import eventually

OPTIONS: dict[str, Any] = {"buckets": 4, "lease": 0.3}
CROWN: dict[str, Any] = {"kind": "crown", "who": "zz", "term": 7, "fence": 7, "members": None}
FORGED: dict[str, bytes] = {
    name: json.dumps(CROWN | changed).encode()
    for name, changed in {
        "a term that is no integer": {"term": 1e300},
        "a term of 31 digits": {"term": 10**30},
        "the last term": {"term": 2**53 - 1},
        "a fence below any priority": {"fence": 2**31},
        "a fence of 64 bits": {"fence": 2**62},
        "the last fence": {"fence": 2**30 - 2**16 - 1},
        "a fence below 0": {"fence": -1},
        "a fence of no type": {"fence": None},
        "many members": {"members": ["m"] * 20_000},
        "members that are no names": {"members": [[[]]]},
        "a kind that is no name": {"kind": {}},
    }.items()
}
FORGED |= {"no JSON": b"{", "nested": b"[" * 10_000, "no UTF-8": b'{"kind":"crown","who":"\xff"}'}


def forged(control: bmq.Queue, *payloads: bytes, to: str = "") -> Any:
    return control.post_many(bmq.PutMessage(payload, {"bmq_from": "", "bmq_to": to}) for payload in payloads)


@pytest.mark.parametrize(
    ("payloads", "while_it_runs"),
    [*(([payload], False) for payload in FORGED.values()), ([*FORGED.values()], True)],
    ids=[*FORGED, "all of them, while the group runs"],
)
async def test_a_group_goes_on_after_a_forged_crown_and_after_a_restart(
    payloads: list[bytes],
    while_it_runs: bool,
    bmq_session: bmq.Session,
    writer: bmq.Queue,
    open_reader: Open,
    caplog: pytest.LogCaptureFixture,
) -> None:
    control = await bmq_session.open_queue(f"{writer.uri}.group", write=True)
    ledger = Ledger(4)
    if not while_it_runs:
        await forged(control, *payloads)
    for round_of_members in range(2):
        queues = await open_reader(), await open_reader()
        async with queues[0].group("k", **OPTIONS) as one, queues[1].group("k", **OPTIONS) as two:
            tasks = [asyncio.create_task(handle(group, "", ledger)) for group in (one, two)]
            await eventually(lambda: len(one.owned) == len(two.owned) == 2, 10.0)
            if while_it_runs and not round_of_members:
                await forged(control, *payloads)
                await eventually(lambda: "is skipped" in caplog.text)
            numbers = range(20 * round_of_members, 20 * round_of_members + 20)
            await post(writer, *numbers)
            await eventually(partial(ledger.done.issuperset, numbers), 10.0)
        await asyncio.gather(*tasks)
    assert not ledger.wrong
    assert f"a message of control queue {control.uri} is skipped" in caplog.text
    assert len([each for each in caplog.messages if "is skipped" in each]) <= 4, "one line for each member"


async def test_the_members_of_a_group_survive_what_anybody_may_write(
    bmq_session: bmq.Session, writer: bmq.Queue, reader: bmq.Queue
) -> None:
    """Each member of each kind of message has a value of another type or out of range."""
    control = await bmq_session.open_queue(f"{writer.uri}.group", write=True)
    async with reader.group("k", **OPTIONS) as group:
        await eventually(lambda: len(group.owned) == 4)
        coordinator = group._coordinator
        who, text = coordinator._member.who, coordinator._text
        for to in ("", who):
            await forged(control, *_damaged(text, who), to=to)
        for number in range(8):
            await post(writer, number)
            (await group.receive(timeout=5)).confirm()
        assert len(group.owned) == 4


NUMBERS: list[Any] = [-1, 2**31, 2**53, 10**30, 1e300, True]
ODD: list[Any] = [*NUMBERS, None, [], {}, "x", [[]], {"1": [1]}, {"1": [2**31, "OPEN"]}]


def _damaged(text: str, who: str) -> list[bytes]:
    whole: list[Report | Order | Crown] = [
        Report("ghost", "", 1, (0, 0), 1.0, False, {1: (5, "OPEN")}),
        Order(who, 2**40, 1, 1, {1: (5, True)}),
        Crown("ghost", 2**40, 5, ("a",)),
    ]
    damaged = [encoded(Report("ghost", "", 1, (0, 0), 1.0, False, {400: (2**29, "OPEN")}), text)]
    damaged += [encoded(Order(who, 1, 1, 1, {400: (5, True)}), text)]
    for message in whole:
        fields = json.loads(encoded(message, text))
        for name, odd in ((name, odd) for name in fields for odd in ODD):
            changed = fields | {name: odd}
            try:
                decoded(json.dumps(changed).encode())
            except bmq.ProtocolError:
                damaged.append(json.dumps(changed).encode())
    return damaged
