# SPDX-License-Identifier: Apache-2.0
"""BlazingMQ without asyncio: for scripts, notebooks, and programs made of threads.

::

    with bmq.blocking.connect("tcp://localhost:30114") as session:
        uri = "bmq://bmq.test.mem.priority/orders"
        queue = session.open_queue(uri, read=True, write=True)
        queue.post(b"one coffee", properties={"CustomerId": 1234})
        for message in queue:
            with message:
                print(message.data)

Names, arguments and errors are those of the asyncio API; each awaitable call there is a blocking call here.
The asyncio client runs in a separate thread, shared by all sessions of the process, so connections stay alive
regardless of the program's activity. Any thread may use a session.
"""

from bmq.blocking._consumer import Consumer, Group, Tables
from bmq.blocking._message import Message, MessageBatch
from bmq.blocking._posts import PostFuture
from bmq.blocking._queue import Queue
from bmq.blocking._session import Session, connect
from bmq.blocking._typed import TypedBatch, TypedConsumer, TypedGroup, TypedMessage, TypedQueue

__all__ = [
    "Consumer",
    "Group",
    "Message",
    "MessageBatch",
    "PostFuture",
    "Queue",
    "Session",
    "Tables",
    "TypedBatch",
    "TypedConsumer",
    "TypedGroup",
    "TypedMessage",
    "TypedQueue",
    "connect",
]
