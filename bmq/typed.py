# SPDX-License-Identifier: Apache-2.0
"""Queues, consumers and messages whose payloads are values of a type; see :meth:`bmq.Queue.typed`::

async def handle(consumer: bmq.typed.TypedConsumer[Order]) -> None:
    async for message in consumer:
        async with message:
            await ship(message.value)
"""

from bmq.client.typed import TypedBatch, TypedConsumer, TypedGroup, TypedMessage, TypedQueue

__all__ = [
    "TypedBatch",
    "TypedConsumer",
    "TypedGroup",
    "TypedMessage",
    "TypedQueue",
]
