# SPDX-License-Identifier: Apache-2.0
"""One queue of an embedded broker: a producer, and two sessions of members."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

import bmq

Connect = Callable[..., Awaitable[bmq.Session]]


@pytest.fixture
async def writer(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, write=True)


@pytest.fixture
async def reader(bmq_connect: Connect, bmq_queue_uri: str) -> bmq.Queue:
    return await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)


@pytest.fixture
async def another(bmq_connect: Connect, bmq_queue_uri: str) -> bmq.Queue:
    return await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
