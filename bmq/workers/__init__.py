# SPDX-License-Identifier: Apache-2.0
"""Workers: functions that handle messages, with concurrency, deadlines, retries and dead letters.

:func:`consume` feeds one function from one queue; :class:`App` is a whole service of such functions.
"""

from bmq.client.attempt import CallNext
from bmq.client.dead_letters import DeadLetter, Failure, GiveUp
from bmq.workers._app import App
from bmq.workers._consume import consume
from bmq.workers._dependencies import Depends
from bmq.workers._failures import original_of
from bmq.workers._middleware import Middleware
from bmq.workers._options import AckPolicy
from bmq.workers._registry import Router
from bmq.workers._results import Respond, Responder
from bmq.workers._results import Results as Results
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
from bmq.workers._status import calls as calls
from bmq.workers._sweeper import Sweeper, SweeperStats
from bmq.workers.internals import begin_copy_of as begin_copy_of
from bmq.workers.internals import begun_of as begun_of
from bmq.workers.internals import consumers_of as consumers_of
from bmq.workers.internals import dependencies_of as dependencies_of
from bmq.workers.internals import grace_of as grace_of
from bmq.workers.internals import parts_of as parts_of
from bmq.workers.internals import probes_of as probes_of
from bmq.workers.internals import registry_of as registry_of
from bmq.workers.internals import replies_of as replies_of
from bmq.workers.internals import settings_of as settings_of
from bmq.workers.internals import trial_of as trial_of

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
