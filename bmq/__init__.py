"""The asyncio client for BlazingMQ, in pure Python.

``bmq.connect`` starts everything. :mod:`bmq.events` has the session events, :mod:`bmq.errors` the errors,
:mod:`bmq.broker` an embedded broker for tests.
"""

import importlib
from typing import TYPE_CHECKING, Any

from bmq import errors, events
from bmq._version import __version__
from bmq.client.closing import CloseReport
from bmq.client.connect import connect, run
from bmq.client.consumer import Consumer
from bmq.client.health import HostHealth, HostHealthMonitor
from bmq.client.message import Ack, FailedPost, Message, MessageBatch, PostReport, PutMessage
from bmq.client.options import Credentials, SessionOptions
from bmq.client.queue import Queue
from bmq.client.retry import exponential_backoff
from bmq.client.session import Session, SessionStats
from bmq.errors import (
    AckStatus,
    AuthenticationError,
    BufferFull,
    CloseQueueError,
    ConfigureQueueError,
    ConnectionFailed,
    Error,
    InvalidExpression,
    InvalidPayload,
    InvalidProperty,
    InvalidURI,
    NegotiationError,
    OpenQueueError,
    PostError,
    ProtocolError,
    QueueClosed,
    RequestError,
    RequestTimeout,
    SessionClosed,
    StateError,
    StatusCategory,
    UsageError,
)
from bmq.protocol.tables import QueueState, SessionState
from bmq.wire.constants import Compression, PropertyType
from bmq.wire.properties import Properties, Typed
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.subscriptions import CmqTags, Expression, P, RoutingTable, TagFilter
    from bmq.workers import (
        AckPolicy,
        App,
        Backoff,
        DeadLetter,
        ExponentialDecay,
        NoRetry,
        Reject,
        RetryAfter,
        consume,
    )

__all__ = [
    "Ack",
    "AckPolicy",
    "AckStatus",
    "App",
    "AuthenticationError",
    "Backoff",
    "BufferFull",
    "CloseQueueError",
    "CloseReport",
    "CmqTags",
    "Compression",
    "ConfigureQueueError",
    "ConnectionFailed",
    "Consumer",
    "Credentials",
    "DeadLetter",
    "Error",
    "ExponentialDecay",
    "Expression",
    "FailedPost",
    "HostHealth",
    "HostHealthMonitor",
    "InvalidExpression",
    "InvalidPayload",
    "InvalidProperty",
    "InvalidURI",
    "Message",
    "MessageBatch",
    "NegotiationError",
    "NoRetry",
    "OpenQueueError",
    "P",
    "PostError",
    "PostReport",
    "Properties",
    "PropertyType",
    "ProtocolError",
    "PutMessage",
    "Queue",
    "QueueClosed",
    "QueueState",
    "QueueUri",
    "Reject",
    "RequestError",
    "RequestTimeout",
    "RetryAfter",
    "RoutingTable",
    "Session",
    "SessionClosed",
    "SessionOptions",
    "SessionState",
    "SessionStats",
    "StateError",
    "StatusCategory",
    "TagFilter",
    "Typed",
    "UsageError",
    "__version__",
    "connect",
    "consume",
    "errors",
    "events",
    "exponential_backoff",
    "run",
]

# Imported when they are first used: a program that posts or reads needs none of them, and starts sooner.
_ON_DEMAND = {
    "bmq.broker": (),
    "bmq.spark": (),
    "bmq.subscriptions": ("CmqTags", "Expression", "P", "RoutingTable", "TagFilter"),
    "bmq.testing": (),
    "bmq.workers": (
        "AckPolicy",
        "App",
        "Backoff",
        "DeadLetter",
        "ExponentialDecay",
        "NoRetry",
        "Reject",
        "RetryAfter",
        "consume",
    ),
}
_MODULE_OF = {name: module for module, names in _ON_DEMAND.items() for name in names}


def __getattr__(name: str) -> Any:
    module = f"bmq.{name}"
    if module in _ON_DEMAND:
        return importlib.import_module(module)
    if name in _MODULE_OF:
        value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
        return value
    raise AttributeError(f"module 'bmq' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *(module.removeprefix("bmq.") for module in _ON_DEMAND)})
