# SPDX-License-Identifier: Apache-2.0
"""Opening, configuring and closing queues; refusals of the broker; redelivery after a consumer's end."""

from __future__ import annotations

import asyncio

import pytest

import bmq
from tests.integration.steps import Connect, NewUri, is_quiet, left_in, payloads, take


async def test_many_queues_at_once(bmq_session: bmq.Session, bmq_new_queue_uri: NewUri) -> None:
    uris = [bmq_new_queue_uri() for _ in range(50)]
    queues = await asyncio.gather(*[bmq_session.open_queue(uri, read=True, write=True) for uri in uris])
    await asyncio.gather(*[queue.post(queue.uri.encode()) for queue in queues])
    for queue in queues:
        assert await payloads(queue, 1) == [queue.uri.encode()]
    assert bmq_session.queues == queues


async def test_an_unknown_domain_is_refused(bmq_session: bmq.Session) -> None:
    with pytest.raises(bmq.OpenQueueError, match=r"no\.such\.domain") as caught:
        await bmq_session.open_queue("bmq://no.such.domain/q", read=True)
    assert caught.value.category is bmq.errors.StatusCategory.E_UNKNOWN
    assert caught.value.code == -1
    assert not caught.value.retryable
    assert bmq_session.queues == []


@pytest.mark.statement("4.34")
async def test_higher_limit_delivers_more_messages(bmq_session: bmq.Session, bmq_queue_uri: str) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True, max_unconfirmed_messages=1)
    for number in range(3):
        await queue.post(b"%d" % number)
    held = await take(queue, 1)
    assert await is_quiet(queue)
    await queue.configure(max_unconfirmed_messages=10)
    held += await take(queue, 2)
    assert [message.data for message in held] == [b"0", b"1", b"2"]


@pytest.mark.statement("4.13")
async def test_unread_messages_are_left_for_others(
    bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)
    for number in range(3):
        await queue.post(b"%d" % number)
    (first,) = await take(queue, 1)
    first.confirm()
    await queue.close()
    await queue.close()
    assert await left_in(bmq_connect, bmq_queue_uri) == [b"1", b"2"]


async def test_posts_and_confirmations_just_before_closing_count(
    bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)
    posts = [queue.post_nowait(b"%d" % number) for number in range(100)]
    for message in await take(queue, 50):
        message.confirm()
    posts += [queue.post_nowait(b"late") for _ in range(50)]
    await queue.close()
    assert all(post.done() and not post.exception() for post in posts)
    assert len(await left_in(bmq_connect, bmq_queue_uri)) == 100
