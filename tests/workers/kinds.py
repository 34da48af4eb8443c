# SPDX-License-Identifier: Apache-2.0
"""The kinds of handlers, around one function: for what holds whatever the kind of the handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import bmq

__all__ = ["OPTIONS", "keyed", "register", "register_in_thread"]

#: Options of the kinds that are plain handlers of messages.
OPTIONS: dict[str, dict[str, Any]] = {
    "single": {},
    "concurrent": {"concurrency": 4},
    "deadline": {"timeout": 60},
    "rate": {"rate": 10_000.0},
    "lanes": {"key": "key"},
    "group": {"group": lambda queue: queue.group("key", buckets=1)},
    "durable": {"retry": bmq.Backoff(every=60, retries=5, durable=True)},
    "on receipt": {"ack": bmq.AckPolicy.ON_RECEIPT},
    "manual": {"ack": bmq.AckPolicy.MANUAL},
}


def keyed(*payloads: bytes, **properties: Any) -> list[bmq.PutMessage]:
    """Messages with one key, for lanes and groups."""
    return [bmq.PutMessage(each, {"key": "one", **properties}) for each in payloads]


def register(
    app: bmq.App[Any], uri: str, kind: str, work: Callable[..., Awaitable[None]], **options: Any
) -> Callable[..., Any]:
    """Register a handler that awaits ``work`` with its messages, and return the handler.

    Results are posted to ``<uri>.results``.
    """

    async def handle(message: bmq.Message) -> None:
        await work(message)

    async def handle_value(value: int, message: bmq.Message) -> None:
        await work(message)

    async def handle_batch(messages: list[bmq.Message]) -> None:
        await work(*messages)

    async def answer(message: bmq.Message) -> bytes:
        await work(message)
        return b"result"

    async def answer_batch(messages: list[bmq.Message]) -> list[bytes]:
        await work(*messages)
        return [b"result"] * len(messages)

    async def around(attempt: bmq.Attempt, call_next: bmq.workers.CallNext) -> Any:
        return await call_next()

    batches = {"max_messages": 10, "max_wait": 0, **options}
    match kind:
        case "values":
            return app.consumer(uri, **options)(handle_value)
        case "batches":
            return app.batch_consumer(uri, **batches)(handle_batch)
        case "results":
            return app.consumer(uri, **options)(app.publish_to(f"{uri}.results")(answer))
        case "batches of results":
            return app.batch_consumer(uri, **batches)(app.publish_to(f"{uri}.results")(answer_batch))
        case "requests":
            options.pop("retry", None)  # a responder makes one attempt
            return app.responder(uri, allow=lambda to: True, **options)(answer)
        case "middleware":
            return app.consumer(uri, middlewares=[around], **options)(handle)
        case _:
            return app.consumer(uri, **{**OPTIONS[kind], **options})(handle)


def register_in_thread(
    app: bmq.App[Any], uri: str, kind: str, work: Callable[..., None], **options: Any
) -> Callable[..., Any]:
    """Register a handler that calls ``work`` in a thread, and return the handler."""

    def handle(message: bmq.Message) -> None:
        work(message)

    def handle_batch(messages: list[bmq.Message]) -> None:
        work(*messages)

    if kind == "batches":
        return app.batch_consumer(uri, **{"max_messages": 10, "max_wait": 0, **options})(handle_batch)
    return app.consumer(uri, **{**OPTIONS[kind], **options})(handle)
