# SPDX-License-Identifier: Apache-2.0
"""Lost connections."""

from __future__ import annotations

from bmq.wire.constants import EventType
from bmq.wire.control import OpenQueue
from conformance.case import Cases, Level, check
from conformance.stage import ORDERS, OTHER, Stage, pushed

__all__ = ["CASES"]

CASES = Cases(25, "Lost connections")
_LONG = 45.0


@CASES.case("25.1.1", "16.2", seconds=_LONG)
async def connects_again(stage: Stage) -> None:
    """A client connects and negotiates again after its connection was lost.

    Sends: the end of the connection.
    Expects: a second connection with a clientIdentity.
    """
    line, _ = await stage.queue(write=True)
    line.drop()
    await (await stage.connection()).introduction()


@CASES.case("25.1.2", "16.3", seconds=_LONG)
async def opens_again(stage: Stage) -> None:
    """The queues are opened again, a reader with its subscription.

    Sends: the end of the connection.
    Expects: openQueue and the configuration on the second connection, then a message is received.
    """
    line, queue = await stage.queue(read=True)
    line.drop()
    line = await stage.restored(queue)
    asked = stage.do("receive", queue=ORDERS)
    line.deliver(pushed(queue, 1, b"after the loss"))
    check(await stage.received(asked), b"after the loss", "payload")


@CASES.case("25.1.3", "16.4", seconds=_LONG)
async def posts_again(stage: Stage) -> None:
    """A message without an acknowledgement is posted again with the same GUID, or reported as not accepted.

    Sends: the end of the connection instead of an ACK.
    Expects: the same message on the second connection, or a failure of the call.
    """
    line, queue = await stage.queue(write=True)
    asked = stage.post(queue, b"hello")
    (first,) = await line.puts()
    line.drop()
    line = await stage.restored(queue)
    if not (again := await stage.again_or_failed(line, [asked])):
        return
    (second,) = again
    check(second.guid.hex(), first.guid.hex(), "GUID")
    line.acknowledge([second])
    check((await stage.done(asked)).get("status"), "SUCCESS", "status")


@CASES.case("25.1.4", "16.5", seconds=_LONG)
async def posts_only_open_messages_again(stage: Stage) -> None:
    """An acknowledged message is not posted again.

    Sends: an ACK, then the end of the connection.
    Expects: no PUT on the second connection but for a new message.
    """
    line, queue = await stage.queue(write=True)
    asked = stage.post(queue, b"old")
    line.acknowledge(await line.puts())
    await stage.done(asked)
    line.drop()
    line = await stage.restored(queue)
    await stage.alive(line, queue)
    check(line.posted, 1, "messages on the second connection:")


@CASES.case("25.1.5", "16.4", seconds=_LONG)
async def keeps_the_order(stage: Stage) -> None:
    """Messages without acknowledgements are posted again in their order, or all reported as not accepted.

    Sends: the end of the connection instead of 20 acknowledgements.
    Expects: 20 messages with the same GUIDs in the same order, or 20 failures.
    """
    line, queue = await stage.queue(write=True)
    calls = [stage.post(queue, b"%d" % number) for number in range(20)]
    before = await line.puts(20)
    line.drop()
    line = await stage.restored(queue)
    if not (after := await stage.again_or_failed(line, calls)):
        return
    check([put.guid.hex() for put in after], [put.guid.hex() for put in before], "GUIDs")
    line.acknowledge(after)
    for call in calls:
        await stage.done(call)


@CASES.case("25.1.6", "16.6", Level.SHOULD, seconds=_LONG)
async def repeats_requests(stage: Stage) -> None:
    """A call that waits for an answer when the connection is lost is repeated, or fails.

    Sends: the end of the connection instead of openQueueResponse.
    Expects: the request on the second connection, and success; or an error.
    """
    line = await stage.started()
    asked = stage.do("open", queue=ORDERS, write=True)
    await line.wanted(OpenQueue)
    line.drop()
    line = await stage.negotiated()
    await stage.served(line, asked)
    await stage.answer(asked)


@CASES.case("25.1.7", "16.7", Level.SHOULD, seconds=_LONG)
async def survives_a_refused_reopening(stage: Stage) -> None:
    """A queue that the broker refuses after the loss does not end the others.

    Sends: a status for one of two openQueue requests on the second connection.
    Expects: the other queue accepts a post.
    """
    line, kept = await stage.queue(write=True)
    await stage.opened(line, OTHER, write=True)
    line.drop()
    line = await stage.negotiated()
    for _ in range(2):
        request, body = await line.wanted(OpenQueue)
        if body.handle_parameters.uri == OTHER:
            line.refuse(request)
        else:
            kept.note(body)
            line.reply(request)
    await stage.alive(line, kept)


@CASES.case("25.1.8", "16.9", Level.OBSERVED, seconds=_LONG)
async def delivers_once(stage: Stage) -> None:
    """Messages of the lost connection that the client had not handed out are not delivered twice.

    Sends: a message on both connections.
    Expects: the message once.
    """
    line, queue = await stage.queue(read=True)
    line.deliver(pushed(queue, 1, b"one"))
    await line.flushed()
    line.drop()
    line = await stage.restored(queue)
    line.deliver(pushed(queue, 1, b"one"), pushed(queue, 2, b"two"))
    arrived = [await stage.received(stage.do("receive", queue=ORDERS)) for _ in range(2)]
    check(arrived, [b"one", b"two"], "payloads")
    await line.nothing(EventType.CONFIRM)
