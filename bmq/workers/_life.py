# SPDX-License-Identifier: Apache-2.0
"""The life of an app, as a table.

The problem: an app is stopped by signals, by handlers, by failures and by cancellation, also while it
connects, and a second stop means more than the first. An app and its parts (:meth:`bmq.App.include`) share a
single life: stopping a part stops all.

Invariants:

- Every question about the life is a question about the state: no flag stands beside the table.
- In STARTING a stop cancels the starting task. In RUNNING and DRAINING a stop cancels the tasks of the
  handlers. A handler's task finishes its messages after the first cancellation, and ends at the second.
- ENDED is the last input of every run, and leads to STOPPED: an app can run again.

Rejected: a separate state for a stop in STARTING. The rest of the run is the same as in DRAINING: no new work
begins, and all sessions are closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, ClassVar

from bmq._turn import turn_of
from bmq.protocol.machine import Machine, Transition

__all__ = ["Life", "LifeInput", "LifeState"]


class LifeState(Enum):
    """The states of an app."""

    STOPPED = "does not run; handlers can be registered"
    STARTING = "connects, opens queues, calls the startup functions"
    RUNNING = "handlers are called"
    DRAINING = "takes no more messages; running handlers finish"


class LifeInput(Enum):
    """The inputs of an app's state machine."""

    RUN = "run or async with"
    STARTED = "the tasks of the handlers exist"
    STOP = "stop, a signal, a cancellation, or a handler that has ended"
    ENDED = "everything is closed"


_S, _I = LifeState, LifeInput


class Life(Machine):
    """The state of an app with its parts, and the tasks to be cancelled by a stop.

    Attributes:
        begun: set once all handlers get messages; None if no caller waits.
    """

    __slots__ = ("_tasks", "begun")

    def __init__(self) -> None:
        self.state = LifeState.STOPPED
        self.begun: asyncio.Future[None] | None = None
        self._tasks: tuple[asyncio.Task[Any], ...] = ()

    def _keep(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        self._tasks = tuple(tasks)

    def _cancel(self) -> None:
        loop = asyncio.get_running_loop()
        turn_of(loop).hold(loop)
        for task in self._tasks:
            task.cancel()

    def _interrupt(self) -> None:
        self._cancel()
        self._tasks = ()  # the rest of the run closes what was opened

    def _forget(self) -> None:
        self._tasks, self.begun = (), None

    TRANSITIONS: ClassVar[Mapping[tuple[Any, Any], Transition]] = {
        (_S.STOPPED, _I.RUN): Transition(_keep, _S.STARTING),
        (_S.STOPPED, _I.STOP): Transition(None, _S.STOPPED),
        (_S.STARTING, _I.STARTED): Transition(_keep, _S.RUNNING),
        (_S.STARTING, _I.STOP): Transition(_interrupt, _S.DRAINING),
        (_S.STARTING, _I.ENDED): Transition(_forget, _S.STOPPED),
        (_S.RUNNING, _I.STOP): Transition(_cancel, _S.DRAINING),
        (_S.DRAINING, _I.STOP): Transition(_cancel, _S.DRAINING),
        (_S.DRAINING, _I.ENDED): Transition(_forget, _S.STOPPED),
    }
