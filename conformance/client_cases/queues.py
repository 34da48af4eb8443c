# SPDX-License-Identifier: Apache-2.0
"""Opening, configuring and closing queues."""

from __future__ import annotations

from bmq.wire.control import (
    CloseQueue,
    ConfigureStream,
    ControlMessage,
    OpenQueue,
    QueueFlags,
)
from conformance.case import Cases, Level, Mismatch, check, fail
from conformance.stage import NEWS, ORDERS, OTHER, Stage

__all__ = ["CASES"]

CASES = Cases(22, "Queues")


@CASES.case("22.1.1", "7.11")
async def opens_for_writing(stage: Stage) -> None:
    """A queue for writing is opened with the flag write and a writer count of 1.

    Sends: openQueueResponse.
    Expects: openQueue with the URI, the flag WRITE and writeCount 1.
    """
    _, queue = await stage.queue(write=True)
    parameters = queue.parameters
    check(parameters.uri, ORDERS, "uri")
    check(bool(parameters.flags & QueueFlags.WRITE), True, "the flag WRITE")
    check(bool(parameters.flags & QueueFlags.READ), False, "the flag READ")
    check((parameters.read_count, parameters.write_count), (0, 1), "readCount and writeCount")


@CASES.case("22.1.2", "8.2")
async def opens_for_reading(stage: Stage) -> None:
    """A queue for reading is opened, then configured with a subscription that has room.

    Sends: openQueueResponse and the answer to the configuration.
    Expects: openQueue with the flag READ, then a configuration with positive limits.
    """
    _, queue = await stage.queue(read=True)
    parameters = queue.parameters
    check(bool(parameters.flags & QueueFlags.READ), True, "the flag READ")
    check((parameters.read_count, parameters.write_count), (1, 0), "readCount and writeCount")
    if not isinstance(queue.requests[0], OpenQueue):
        raise fail("openQueue first", queue.requests[0])
    last = queue.requests[-1]
    if isinstance(last, ConfigureStream):
        for subscription in last.stream_parameters.subscriptions:
            for consumer in subscription.consumers:
                check(consumer.max_unconfirmed_messages > 0, True, "maxUnconfirmedMessages above 0:")
                check(consumer.max_unconfirmed_bytes > 0, True, "maxUnconfirmedBytes above 0:")
    if not queue.s_ids:
        raise fail("a configuration with a subscription", [type(body).__name__ for body in queue.requests])


@CASES.case("22.1.3", "7.5")
async def numbers_queues(stage: Stage) -> None:
    """Two queues have different numbers.

    Sends: answers to both openings.
    Expects: different qIds.
    """
    line, one = await stage.queue(write=True)
    two = await stage.opened(line, OTHER, write=True)
    if one.q_id == two.q_id:
        raise fail("different qIds", f"{one.q_id} for both")


@CASES.case("22.1.4", "7.21")
async def names_the_application(stage: Stage) -> None:
    """The reader of a fanout queue names its application.

    Sends: answers.
    Expects: openQueue with appId foo in subIdInfo, and with or without ?id=foo in the URI.
    """
    _, queue = await stage.queue(NEWS, read=True)
    parameters = queue.parameters
    info = parameters.sub_id_info
    check(info and info.app_id, "foo", "appId")
    check(parameters.uri.partition("?")[0], NEWS.partition("?")[0], "uri without the query")


@CASES.case("22.2.1", "3.27")
async def survives_a_refused_opening(stage: Stage) -> None:
    """A refused openQueue is an error of the call, and the session goes on.

    Sends: a status E_REFUSED; then success for another queue.
    Expects: an error, then success.
    """
    line = await stage.started()
    asked = stage.do("open", queue=ORDERS, write=True)
    request, _ = await line.wanted(OpenQueue)
    line.refuse(request)
    await stage.failed(asked)
    await stage.alive(line, await stage.opened(line, OTHER, write=True))


@CASES.case("22.2.2", "3.27")
async def survives_a_refused_configuration(stage: Stage) -> None:
    """A refused configuration is an error of the call, and the session goes on.

    Sends: success for openQueue, a status E_REFUSED for the configuration.
    Expects: an error, then success for another queue.
    """
    line = await stage.started()
    asked = stage.do("open", queue=ORDERS, read=True)
    refused: list[ControlMessage] = []

    def act(request: ControlMessage) -> bool:
        if isinstance(request.body, (OpenQueue, CloseQueue)) or refused:
            return False
        refused.append(request)
        line.refuse(request)
        return True

    await stage.served(line, asked, act)
    await stage.failed(asked)
    await stage.alive(line, await stage.opened(line, OTHER, write=True))


@CASES.case("22.2.3", "3.25")
async def matches_answers(stage: Stage) -> None:
    """Answers in another order than the requests reach their calls.

    Sends: answers to two openings, the second one first.
    Expects: success of both calls.
    """
    line = await stage.started()
    calls = {uri: stage.do("open", queue=uri, write=True) for uri in (ORDERS, OTHER)}
    first = await line.any_request()
    try:
        second = await line.any_request(2.0)
    except Mismatch:  # the client makes one request at a time
        line.reply(first)
        line.reply(await line.any_request())
    else:
        line.reply(second)
        # The order of the requests may differ from the order of the commands.
        if isinstance(second.body, OpenQueue):
            await stage.done(calls[second.body.handle_parameters.uri])
        line.reply(first)
    for call in calls.values():
        await stage.done(call)


@CASES.case("22.3.1", "15.1")
async def closes_a_reader(stage: Stage) -> None:
    """A closed reader withdraws its subscriptions, then closes the queue for good.

    Sends: answers.
    Expects: a configuration without consumers, then closeQueue with isFinal.
    """
    line, _ = await stage.queue(read=True)
    asked = stage.do("close", queue=ORDERS)
    requests = await stage.served(line, asked)
    await stage.done(asked)
    close = requests[-1] if requests else None
    if not isinstance(close, CloseQueue):
        raise fail("closeQueue last", close)
    check(close.is_final, True, "isFinal")
    if len(requests) < 2:
        raise fail("a configuration before closeQueue", "closeQueue alone")


@CASES.case("22.3.2", "15.2")
async def closes_a_writer(stage: Stage) -> None:
    """A closed writer closes the queue for good.

    Sends: closeQueueResponse.
    Expects: closeQueue with isFinal.
    """
    line, queue = await stage.queue(write=True)
    asked = stage.do("close", queue=ORDERS)
    requests = await stage.served(line, asked)
    await stage.done(asked)
    close = requests[-1] if requests else None
    if not isinstance(close, CloseQueue):
        raise fail("closeQueue", close)
    check(close.is_final, True, "isFinal")
    check(close.handle_parameters.q_id, queue.q_id, "qId")


@CASES.case("22.3.3", "15.7", Level.SHOULD)
async def survives_a_refused_close(stage: Stage) -> None:
    """A refused closeQueue does not keep the call waiting, and the session goes on.

    Sends: a status for closeQueue.
    Expects: an answer of the client; another queue can be opened.
    """
    line, _ = await stage.queue(write=True)
    asked = stage.do("close", queue=ORDERS)

    def act(request: ControlMessage) -> bool:
        if not isinstance(request.body, CloseQueue):
            return False
        line.refuse(request)
        return True

    await stage.served(line, asked, act)
    await stage.alive(line, await stage.opened(line, OTHER, write=True))
