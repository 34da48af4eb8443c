# SPDX-License-Identifier: Apache-2.0
"""Calls the application's function that authorizes actions. Without a clear yes, the answer is no."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bmq import _checks
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.protocol.broker.actions import Action
from bmq.wire.printable import printable

__all__ = ["Authorize", "Authorizer"]

_log = Log("bmq.broker")

#: A function that authorizes actions, sync or async.
Authorize = Callable[[Action], "bool | Awaitable[bool]"]

#: Seconds for the answer of an async function. A client's heartbeats wait meanwhile, and a session gives up a
#: silent broker after ten seconds.
_PATIENCE = 5.0


class Authorizer:
    """The function of one broker.

    Args:
        function: returns whether a client may perform an action.
    """

    def __init__(self, function: Authorize) -> None:
        self._function: Callable[[Action], Any] = function
        self._lines = LogLimit(_log)

    def __call__(self, actions: Sequence[Action]) -> bool | asyncio.Task[bool]:
        """Return whether all actions are allowed, or a task with the answer. Never raises."""
        for index, action in enumerate(actions):
            try:
                answer = self._function(action)
            except Exception as error:
                return self._failed(action, error)
            if inspect.isawaitable(answer):
                return asyncio.get_running_loop().create_task(self._later(answer, actions[index:]))
            if not self._allows(action, answer):
                return False
        return True

    async def _later(self, answer: Awaitable[Any], actions: Sequence[Action]) -> bool:
        """Return whether all actions are allowed; ``answer`` is for the first."""
        for index, action in enumerate(actions):
            try:
                async with asyncio.timeout(_PATIENCE):
                    found: Any = answer if index == 0 else self._function(action)
                    if inspect.isawaitable(found):
                        found = await found
            except Exception as error:
                return self._failed(action, error)
            if not self._allows(action, found):
                return False
        return True

    def _allows(self, action: Action, answer: object) -> bool:
        if answer is True:
            return True
        if answer is not False:
            self._lines.error(
                "answer",
                "authorize must return True or False, and returned %s; refused: %s",
                _checks.shown(answer),
                printable(action),
            )
        return False

    def _failed(self, action: Action, error: Exception) -> bool:
        why = f"gave no answer within {_PATIENCE:g} s" if isinstance(error, TimeoutError) else "failed"
        self._lines.log(
            logging.ERROR,
            "failed",
            "authorize %s with %s; refused: %s",
            why,
            printable(f"{type(error).__name__}: {error}"),
            printable(action),
        )
        return False
