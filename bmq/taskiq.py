# SPDX-License-Identifier: Apache-2.0
"""A taskiq broker that sends tasks as messages of a queue. Needs the extra ``bmq[taskiq]``."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Final, Unpack

from bmq._logging import Log
from bmq._version import install

try:
    from taskiq import AckableMessage, AsyncBroker, BrokerMessage
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "taskiq":
        raise
    raise ModuleNotFoundError(
        f"bmq.taskiq needs taskiq, which is not installed: {install('taskiq')}", name=error.name
    ) from error

from bmq import _checks
from bmq._dead_letters import Allowed, Poison, PoisonKind, PutAside, unreadable
from bmq.client.address import parse_addresses
from bmq.client.buffer import Feeding
from bmq.client.connect import check_options, connect
from bmq.client.keywords import ConnectOptions
from bmq.client.message import Message
from bmq.client.queue import Queue
from bmq.client.session import Session
from bmq.conventions import PREFIX, delay_queue_of
from bmq.delays import Mover
from bmq.errors import Error, StateError, UsageError
from bmq.subscriptions import ExpressionInput, subscriptions_for
from bmq.wire.printable import described
from bmq.wire.uri import QueueUri

__all__ = ["BmqBroker"]

logger = Log("bmq.taskiq")

TASK_ID: Final = "task_id"
TASK_NAME: Final = "task_name"
_DELAY: Final = "delay"
# Label names that expressions can use; other labels are only in the payload.
_ASKABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class BmqBroker(AsyncBroker):
    """Sends taskiq's tasks to a queue, and passes them to its workers.

    ::

        tasks = "bmq://bmq.test.mem.priority/tasks"
        broker = BmqBroker("tcp://localhost:30114", tasks)

        @broker.task
        async def add(one: int, two: int) -> int:
            return one + two

    Each message has the properties ``task_id`` and ``task_name``, and a STRING property for each label whose
    name consists of letters, digits and underscores. The message is confirmed when taskiq acknowledges the
    task. If the worker disappears before that, or the task is cancelled, the broker redelivers the message.

    A task with the label ``delay``, in seconds, waits in the queue's delay queue (see :meth:`bmq.Queue.post`)
    until a worker passes it on at its due time.

    Args:
        broker: as for :func:`bmq.connect`.
        queue: URI of the queue; with ``?id=``, the workers are an application of a fanout queue.
        expression: which tasks workers take, ``task_name == "add"`` for instance; None for all.
        max_unconfirmed_messages: limit of unacknowledged tasks in a worker process. Other workers cannot take
            these tasks, even if the process has not started them yet.
        delay_queue_uri: URI of the delay queue, in a priority domain. If None, the queue's own URI with the
            suffix ``.delayed``.
        mover: whether workers pass delayed tasks on when due; several workers share this work.
        dead_letters: URI of the queue for messages that no worker can run: they cannot be parsed, are not
            tasks, or are tasks unknown to the worker; and for delayed tasks that cannot be passed on. If
            None, such messages stay in the queue, unconfirmed, until the worker ends. In both cases, the log
            has one line per kind and minute.
        options: further options of :func:`bmq.connect`.

    Raises:
        InvalidURI, InvalidExpression: the queue or the subscription is not legal.
        UsageError: dead letters would return to the queue.
    """

    def __init__(
        self,
        broker: str | None,
        queue: str,
        *,
        expression: ExpressionInput = None,
        max_unconfirmed_messages: int = 100,
        delay_queue_uri: str | None = None,
        mover: bool = True,
        dead_letters: str | None = None,
        **options: Unpack[ConnectOptions],
    ) -> None:
        super().__init__()
        if broker is not None:
            parse_addresses(broker)
        known = (*(BmqBroker.__init__.__kwdefaults__ or ()), *ConnectOptions.__optional_keys__)
        _checks.keywords(f"{type(self).__qualname__}()", options, known)
        check_options(**options)
        mover = _checks.boolean("mover", mover)
        max_unconfirmed_messages = _checks.integer("max_unconfirmed_messages", max_unconfirmed_messages)
        self._broker = broker
        given = options.get("options")
        if given is None or not given.user_agent:
            options.setdefault("user_agent", "taskiq")
        self._options = options
        self._uri = QueueUri.parse(queue)
        if isinstance(expression, str):
            expression = str.__str__(expression) or None
        subscriptions_for(expression)
        self._expression = expression
        self._max_unconfirmed = max_unconfirmed_messages
        # A delay queue needs a priority domain, and a queue with applications is in a fanout domain.
        self._delays = delay_queue_uri is not None or not self._uri.app_id
        self._delay_queue = QueueUri.parse(delay_queue_uri).canonical if delay_queue_uri is not None else None
        self._moves = mover and self._delays
        self._dead_letters = QueueUri.parse(dead_letters).canonical if dead_letters is not None else None
        if self._dead_letters in (
            self._uri.canonical,
            self._delay_queue or delay_queue_of(self._uri.canonical),
        ):
            raise UsageError(f"dead letters of {self._uri} would return to it; name another queue for them")
        self._session: Session | None = None
        self._output: Queue | None = None
        self._input: Queue | None = None
        self._moving: asyncio.Task[None] | None = None

    @property
    def session(self) -> Session:
        """The session, between :meth:`startup` and :meth:`shutdown`.

        Raises:
            StateError: the broker is not started.
        """
        if self._session is None:
            raise StateError("the broker is not started: await broker.startup()")
        return self._session

    async def startup(self) -> None:
        """Connect, open the queue for posting, and run taskiq's own startup.

        Raises:
            StateError: the broker is already started.
            ConnectionFailed: no broker answered.
            OpenQueueError, RequestTimeout: the broker refused the queue, or did not answer in time.

        Cancelling the call closes the session again.
        """
        if self._session is not None:
            raise StateError("the broker is started already")
        self._session = await connect(self._broker, **self._options)
        try:
            self._output = await self._session.open_queue(
                self._uri.canonical, write=True, delay_queue_uri=self._delay_queue
            )
            await super().startup()
        except BaseException:
            await self._end()
            raise

    async def shutdown(self) -> None:
        """Run taskiq's own shutdown, and close the session after its posts.

        Unacknowledged tasks go to other workers.

        Cancelling the call closes the session in the background.
        """
        try:
            await super().shutdown()
        finally:
            await self._end()

    async def _end(self) -> None:
        session, self._session = self._session, None
        self._output = self._input = None
        moving, self._moving = self._moving, None
        try:
            if moving is not None:
                moving.cancel()
                await asyncio.wait([moving])
        finally:
            if session is not None:
                await session.close()

    async def kick(self, message: BrokerMessage) -> None:
        """Post a task, and wait until the broker has stored it. Called by taskiq.

        Raises:
            StateError: the broker is not started.
            PostError: the broker refused the task.
            UsageError: the label ``delay`` is not a number of seconds, or there is no delay queue.

            After a cancellation the task may or may not be posted.
        """
        output = self._output
        if output is None:
            raise StateError("the broker is not started: await broker.startup() before tasks are kicked")
        await output.post(message.message, properties=_properties(message), delay=self._delay(message))

    def _delay(self, message: BrokerMessage) -> float | None:
        label = message.labels.get(_DELAY)
        if label is None:
            return None
        try:
            delay = float(label)
        except (TypeError, ValueError):
            raise UsageError(f"the label delay must be a number of seconds, not {label!r}") from None
        if delay <= 0:
            return None
        if not self._delays:
            raise UsageError(
                f"{self._uri} is an application of a fanout queue, where no message can wait: name a queue "
                "of a priority domain with BmqBroker(..., delay_queue_uri='bmq://...')"
            )
        return delay

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks as they arrive. Called by taskiq's workers.

        Raises:
            StateError: the broker is not started.
            OpenQueueError, ConfigureQueueError: the broker refused.
            Error: the queue or the session failed.

            Cancelling the call loses no task: unacknowledged tasks are redelivered.
        """
        session = self.session
        if self._input is None:
            self._input = await session.open_queue(str(self._uri), read=True, default_subscription=False)
        letters = await self._letters(session)
        aside = PutAside("the taskiq worker", letters, logger)
        if self._moves and self._moving is None:
            self._moving = asyncio.create_task(self._move(session, letters), name="bmq.taskiq mover")
        # The subscription is withdrawn when taskiq stops listening. The queue stays open until the shutdown,
        # because running tasks are still to be acknowledged.
        consumer = self._input.subscribe(self._expression, max_unconfirmed_messages=self._max_unconfirmed)
        feeding = Feeding(consumer)
        try:
            async with consumer:
                async for message in consumer:
                    if (poison := self._poison(message)) is not None:
                        aside.take(message, poison)
                    else:
                        yield AckableMessage(data=message.data, ack=partial(_acknowledge, message))
        finally:
            feeding.close()
            await aside.close()

    async def _letters(self, session: Session) -> Queue | None:
        return await session.open_output(self._dead_letters) if self._dead_letters is not None else None

    def _poison(self, message: Message) -> Poison | None:
        """Return the reason why no worker can run a message; None for a task.

        Other listeners than a worker may take arbitrary messages. Some versions of taskiq never acknowledge
        messages without a task, others log each of them in full, with a traceback.
        """
        if (poison := unreadable(message)) is not None or not self.is_worker_process:
            return poison
        try:
            task = self.formatter.loads(message=message.data)
            task.parse_labels()
        except Exception as error:  # any exception of the formatter
            return Poison(PoisonKind.UNDECODABLE, f"not a task: {described(error)}")
        if self.find_task(task.task_name) is None:
            return Poison(PoisonKind.MISDIRECTED, f"this worker has no task {task.task_name!r:.100}")
        return None

    async def _move(self, session: Session, letters: Queue | None) -> None:
        """Pass on due tasks."""
        assert self._output is not None
        waiting = self._output.delay_queue_uri
        usual, own = Allowed(None), QueueUri.parse(waiting)

        def allow(uri: str) -> bool:
            return uri == self._uri.canonical or usual(QueueUri.parse(uri), own)

        try:
            queue = await session.open_queue(waiting, read=True, default_subscription=False)
            await Mover(queue, allow=allow, dead_letters=letters).run()
        except Error as error:
            logger.error(  # noqa: TRY400
                "this worker has stopped passing on the delayed tasks of %s: %s", waiting, error
            )


def _acknowledge(message: Message) -> None:
    """Confirm a message, unless the task that handles it was cancelled.

    taskiq takes a cancellation for a result, and acknowledges it.
    """
    handling = asyncio.current_task()
    if handling is None or not handling.cancelling():
        message.confirm()


def _properties(message: BrokerMessage) -> Mapping[str, str]:
    """Return the properties by which workers can select a task."""
    labels = {
        name: str(value)
        for name, value in message.labels.items()
        if _ASKABLE.fullmatch(name) and not name.startswith(PREFIX)
    }
    return {**labels, TASK_ID: message.task_id, TASK_NAME: message.task_name}
