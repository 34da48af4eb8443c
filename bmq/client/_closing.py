"""Closing in good order: deliver no more, let handlers finish, wait for posts, close, disconnect."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bmq.errors import QueueClosed

if TYPE_CHECKING:
    from bmq.client._driver import Driver
    from bmq.client.queue import Queue

__all__ = ["CloseReport", "close_queue", "close_session"]

logger = logging.getLogger("bmq.client")

# Handlers and posts may take all the time there is: the broker still gets this much to answer, in seconds.
_FOR_THE_ANSWER = 1.0


@dataclass(frozen=True, slots=True)
class CloseReport:
    """What was left when a session was closed and the time was up.

    Attributes:
        unacked_posts: posts that had no outcome; they failed with :class:`bmq.PostError`.
        unfinished_handlers: messages that were still being handled (inside ``async with message``); unless
            confirmed by others they will be delivered again.
        unclosed_queues: the URIs of queues that the broker did not confirm to be closed.
    """

    unacked_posts: int = 0
    unfinished_handlers: int = 0
    unclosed_queues: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Nothing was left."""
        return not (self.unacked_posts or self.unfinished_handlers or self.unclosed_queues)

    def __str__(self) -> str:
        if self.clean:
            return "nothing was left"
        left = (
            (self.unacked_posts, "posts without outcome"),
            (self.unfinished_handlers, "messages being handled"),
            (len(self.unclosed_queues), "queues not closed"),
        )
        return ", ".join(f"{count} {what}" for count, what in left if count)


async def close_session(driver: Driver, deadline: float, closer: asyncio.Task[object] | None) -> CloseReport:
    """Close every queue and disconnect; what is not done at the deadline is given up."""
    core = driver.core
    queues = driver.queues
    for queue in queues:
        queue._shut(None)
    await _drain(driver, queues, deadline, closer)
    driver.sealed = True
    handlers = sum(queue._handlers.busy(closer) for queue in queues)
    posts = len(core.window)
    unclosed: list[str] = []
    if core.connected:
        results = await asyncio.gather(
            *(driver.close_core(queue, deadline) for queue in queues), return_exceptions=True
        )
        unclosed = [
            queue.uri
            for queue, error in zip(queues, results, strict=True)
            if error is not None and not isinstance(error, QueueClosed)
        ]
    report = CloseReport(posts, handlers, tuple(unclosed))
    driver.dialer.stop()
    await driver.disconnect(deadline)
    if not report.clean:
        logger.warning("the session was closed, and the time was up: %s", report)
    return report


async def close_queue(
    driver: Driver, queue: Queue, deadline: float, closer: asyncio.Task[object] | None
) -> None:
    """Close one queue; see :meth:`bmq.Queue.close`."""
    queue._shut(None)
    await _drain(driver, [queue], deadline, closer)
    handlers = queue._handlers.busy(closer)
    if queue.unacked or handlers:
        logger.warning(
            "closing %s, and the time is up: %s", queue.uri, CloseReport(queue.unacked, handlers, ())
        )
        deadline = max(deadline, driver.now() + _FOR_THE_ANSWER)
    try:
        await driver.close_core(queue, deadline)
    except QueueClosed:
        pass  # the session, or a failure, has closed it meanwhile


async def _drain(
    driver: Driver, queues: list[Queue], deadline: float, closer: asyncio.Task[object] | None
) -> None:
    """Wait for handlers in flight, then for the outcomes of posts: handlers may post."""
    try:
        async with asyncio.timeout_at(deadline):
            for queue in queues:
                await queue._handlers.idle(closer)
            for queue in queues:
                await driver.flushed(queue)
    except TimeoutError:
        pass
