# SPDX-License-Identifier: Apache-2.0
"""Workers: functions that handle messages, with concurrency, deadlines, retries and dead letters.

:func:`consume` feeds one function from one queue; :class:`App` is a whole service of such functions.
"""

from bmq._dead_letters import DeadLetter, Failure, GiveUp, original_of
from bmq.client.attempt import CallNext
from bmq.workers._app import App
from bmq.workers._handlers import Depends
from bmq.workers._options import AckPolicy, Middleware
from bmq.workers._registry import Router
from bmq.workers._results import Respond, Responder
from bmq.workers._retry import (
    Backoff,
    Clock,
    LoopClock,
    NoRetry,
    PartlyFailed,
    Reject,
    RetryAfter,
    RetryPolicy,
)
from bmq.workers._status import Statuses, SubscriberState, SubscriberStatus, status
from bmq.workers._sweeper import Sweeper, SweeperStats
from bmq.workers._workers import consume

__all__ = [
    "AckPolicy",
    "App",
    "Backoff",
    "CallNext",
    "Clock",
    "DeadLetter",
    "Depends",
    "Failure",
    "GiveUp",
    "LoopClock",
    "Middleware",
    "NoRetry",
    "PartlyFailed",
    "Reject",
    "Respond",
    "Responder",
    "RetryAfter",
    "RetryPolicy",
    "Router",
    "Statuses",
    "SubscriberState",
    "SubscriberStatus",
    "Sweeper",
    "SweeperStats",
    "consume",
    "original_of",
    "status",
]
