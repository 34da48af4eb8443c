"""The asyncio client for BlazingMQ, in pure Python.

``bmq.connect`` starts everything. :mod:`bmq.events` has the session events, :mod:`bmq.errors` the errors,
:mod:`bmq.broker` an embedded broker for tests.
"""

import importlib
from types import ModuleType

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
from bmq.subscriptions import CmqTags, Expression, P, RoutingTable, TagFilter
from bmq.wire.constants import Compression, PropertyType
from bmq.wire.properties import Properties, Typed
from bmq.wire.uri import QueueUri
from bmq.workers import AckPolicy, App, Backoff, DeadLetter, ExponentialDecay, NoRetry, consume

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
    "RequestError",
    "RequestTimeout",
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

# Imported when they are first used: most programs need none of them.
_ON_DEMAND = frozenset({"broker", "spark", "testing"})


def __getattr__(name: str) -> ModuleType:
    if name in _ON_DEMAND:
        return importlib.import_module(f"bmq.{name}")
    raise AttributeError(f"module 'bmq' has no attribute {name!r}")
