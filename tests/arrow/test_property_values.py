# SPDX-License-Identifier: Apache-2.0
"""Scalars of NumPy as property values: rows of tables and results of computations have them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

import bmq

URI = "bmq://bmq.test.mem.priority/q"


@pytest.fixture
async def broker() -> AsyncIterator[bmq.broker.Broker]:
    async with bmq.broker.Broker() as broker:
        yield broker


@pytest.mark.parametrize(
    ("value", "found"),
    [(np.int64(7), 7), (np.int16(-7), -7), (np.uint8(200), 200), (np.bool_(True), True), (np.str_("x"), "x")],
)
async def test_numbers_of_numpy_are_property_values(
    broker: bmq.broker.Broker, value: Any, found: object
) -> None:
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        await queue.post(b"1", properties={"a": value})
        await queue.post_many([bmq.PutMessage(b"1", {"a": value})])
        for _ in range(2):
            message = await queue.receive(timeout=10)
            assert message.properties["a"] == found
            assert type(message.properties["a"]) is type(found)


@pytest.mark.parametrize("value", [np.float64(1.5), np.array([1, 2]), np.datetime64("2026-01-01")])
async def test_other_values_of_numpy_are_refused(broker: bmq.broker.Broker, value: Any) -> None:
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, write=True)
        with pytest.raises(bmq.InvalidProperty, match="must be bool, int, str, bytes"):
            queue.post_nowait(b"1", properties={"a": value})
