# SPDX-License-Identifier: Apache-2.0
"""Clients choose the texts of subscriptions; brokers print them between their own words, without escapes."""

from __future__ import annotations

from typing import Any

import pytest

import bmq
from bmq.admin import Depth, Internals
from tests.sweeps import sweep

WINDOW = {
    "state": "STATE_NORMAL",
    "numMessages": 0,
    "messagesCapacity": 7,
    "numBytes": 0,
    "bytesCapacity": 700,
}
CONSUMER = (
    "[ maxUnconfirmedMessages = 7 maxUnconfirmedBytes = 700 "
    "consumerPriority = -2 consumerPriorityCount = 1 ] "
)
END = '" ] consumers = [ '
BEGIN = '[ sId = 99 expression = [ version = E_VERSION_1 text = "'


def printed(*subscriptions: tuple[str, bool], app: str = "__default") -> str:
    """Return what a real broker prints for expressions, each with or without a consumer."""
    inside = "".join(
        f'[ sId = {number} expression = [ version = E_VERSION_1 text = "{text}{END}'
        f"{CONSUMER if consumer else ''}] ] "
        for number, (text, consumer) in enumerate(subscriptions, 1)
    )
    return f'[ appId = "{app}" subscriptions = [ {inside}] ]'


def internals(
    *subscriptions: tuple[str, bool], app: str = "__default", parameters: str = "", text: str = ""
) -> dict[str, Any]:
    groups = [{"id": 1, "expression": text} for text, consumer in subscriptions if consumer]
    stream = {
        "appId": app,
        "parametersJson": text or printed(*subscriptions, app=app),
        "unconfirmedMonitors": [WINDOW] * len(groups),
        "numUnconfirmedMessages": 0,
    }
    handle = {
        "clientDescription": "0x7ff63c020a80  ~ shop",
        "parametersJson": parameters or '[ uri = "bmq://d/q" readCount = 1 writeCount = 0 adminCount = 0 ]',
        "subStreams": [stream],
    }
    return {
        "state": {
            "uri": "bmq://d/q",
            "storage": {"numMessages": 3, "numBytes": 30},
            "handles": [handle],
        },
        "queue": {
            "localQueue": {
                "queueEngine": {"fanout": {"mode": "priority", "Routing": {"subscriptionGroups": groups}}}
            }
        },
    }


@sweep(
    "texts",
    [
        [],
        [""],
        ["x == 1", "y == 2", "z"],
        ['x == "a ] ] [ b" && y != "[ sId = 1"', 'x == ""'],
        ['x == " ] consumer = [ "'],
    ],
)
def test_texts_of_any_kind_are_read(texts: list[str]) -> None:
    (client,) = Internals._read(internals(*((text, True) for text in texts))).clients
    (stream,) = client.streams
    assert [each.expression for each in stream.subscriptions] == texts
    assert all(each.priority == -2 for each in stream.subscriptions)
    assert (client.readers, client.writers) == (1, 0)


FORGED = {
    "two subscriptions in one text": f"x{END}{CONSUMER}] ] {BEGIN}y",
    "a subscription without consumers before": f"x{END}] ] {BEGIN}y",
    "the end of all": f"x{END}{CONSUMER}] ] ] ]",
    "a long number": f'x == "{END}] ] [ sId = {"9" * 5000} expression = [ version = E text = " || y == "',
    "a long priority": f"x{END}{CONSUMER.replace('-2', '9' * 5000)}] ] {BEGIN}y",
    "a number of 20 digits": f"x{END}{CONSUMER}] ] {BEGIN.replace('99', '9' * 20)}y",
}


@sweep("consumer", [True, False])
@sweep("text", FORGED.values())
def test_a_text_never_passes_for_another_subscription(text: str, consumer: bool) -> None:
    for others in ([], [("a == 1", True)]):
        content = internals((text, consumer), *others)
        with pytest.raises(bmq.ProtocolError):
            Internals._read(content)
        assert Depth._read(content).messages == 3, "the depth needs no subscription"


def test_the_name_of_an_application_never_passes_for_counts() -> None:
    name = "x readCount = 9 writeCount = 9 ]"
    parameters = (
        f'[ uri = "bmq://d/q" qId = 0 subIdInfo = [ subId = 1 appId = "{name}" ] flags = 2 '
        "readCount = 1 writeCount = 0 adminCount = 0 ]"
    )
    (client,) = Internals._read(internals(("x", True), app=name, parameters=parameters)).clients
    assert (client.readers, client.writers) == (1, 0)
    assert client.streams[0].app_id == name
    with pytest.raises(bmq.ProtocolError):
        Internals._read(internals(parameters=parameters.replace("= 1 w", f"= {'9' * 5000} w")))


@sweep("text", ["[ ", '[ appId = "__default" subscriptions = [ ] ] more', "nothing"])
def test_a_text_of_another_form_is_a_protocol_error(text: str) -> None:
    with pytest.raises(bmq.ProtocolError):
        Internals._read(internals(text=text))


async def test_a_client_hides_only_its_own_queue(bmq_broker: bmq.broker.Broker) -> None:
    uris = [f"bmq://bmq.test.mem.priority/{name}" for name in ("forged", "other")]
    async with bmq.connect(bmq_broker.uri) as session, bmq.admin.connect(bmq_broker.uri) as admin:
        forged, other = [
            await session.open_queue(uri, read=True, write=True, default_subscription=False) for uri in uris
        ]
        text = (
            f'x == "{END}] ] [ sId = {"9" * 5000} expression = [ version = E text = " || y == '
            f'"{END}{CONSUMER}] ] ] "'
        )
        async with forged.subscribe(text, strict=False), other.subscribe("x == 1"):
            for queue in (forged, other):
                await queue.post(b"x")
            with pytest.raises(bmq.ProtocolError):
                await admin.queue(uris[0]).internals()
            assert (await admin.queue(uris[0]).depth()).messages == 1
            (client,) = (await admin.queue(uris[1]).internals()).clients
            assert [each.expression for each in client.streams[0].subscriptions] == ["x == 1"]
