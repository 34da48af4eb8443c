# SPDX-License-Identifier: Apache-2.0
"""The asyncio client for BlazingMQ, in pure Python.

``bmq.connect`` is the entry point. :mod:`bmq.events` has the session events, :mod:`bmq.errors` the errors,
:mod:`bmq.blocking` the same API without asyncio, :mod:`bmq.broker` an embedded broker for tests, and
:mod:`bmq.admin` a broker's admin commands.
"""

from bmq._version import __version__

# Type checkers take this name for true. The module typing, which would say the same, takes longer to import
# than all else here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from bmq import admin as admin
    from bmq import arrow as arrow
    from bmq import asyncapi as asyncapi
    from bmq import blocking as blocking
    from bmq import broker as broker
    from bmq import codecs as codecs
    from bmq import delays as delays
    from bmq import errors, events
    from bmq import groups as groups
    from bmq import health as health
    from bmq import inbox as inbox
    from bmq import interceptors as interceptors
    from bmq import spark as spark
    from bmq import stats as stats
    from bmq import subscriptions as subscriptions
    from bmq import testing as testing
    from bmq import typed as typed
    from bmq import types as types
    from bmq import workers as workers
    from bmq.client.attempt import Attempt
    from bmq.client.connect import connect, run
    from bmq.client.consumer import Consumer, Subscription
    from bmq.client.interceptors import Interceptor
    from bmq.client.message import Message, MessageBatch
    from bmq.client.options import Credentials, SessionOptions, Trace, reconnect_delays
    from bmq.client.posts import Ack, FailedPost, PostReport, PutMessage
    from bmq.client.queue import Queue
    from bmq.client.session import CloseReport, Session
    from bmq.client.typed import TypedMessage, TypedQueue
    from bmq.codecs import CloudEvent, Codec, Property
    from bmq.errors import (
        AckStatus,
        AuthenticationError,
        BufferFull,
        ConfigureQueueError,
        ConnectionFailed,
        Error,
        ExpressionWarning,
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
        RequestFailed,
        RequestTimeout,
        SessionClosed,
        StateError,
        TimedOut,
        Undecodable,
        UsageError,
    )
    from bmq.protocol.client.core import SessionState
    from bmq.protocol.client.queue import QueueState
    from bmq.subscriptions import Expression, P, TagFilter
    from bmq.wire.constants import Compression, PropertyType
    from bmq.wire.properties import Properties, PropertyValue
    from bmq.wire.uri import QueueUri
    from bmq.workers import (
        AckPolicy,
        App,
        Backoff,
        DeadLetter,
        Depends,
        NoRetry,
        PartlyFailed,
        Reject,
        RetryAfter,
        Router,
        consume,
    )

__all__ = [
    "Ack",
    "AckPolicy",
    "AckStatus",
    "App",
    "Attempt",
    "AuthenticationError",
    "Backoff",
    "BufferFull",
    "CloseReport",
    "CloudEvent",
    "Codec",
    "Compression",
    "ConfigureQueueError",
    "ConnectionFailed",
    "Consumer",
    "Credentials",
    "DeadLetter",
    "Depends",
    "Error",
    "Expression",
    "ExpressionWarning",
    "FailedPost",
    "Interceptor",
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
    "PartlyFailed",
    "PostError",
    "PostReport",
    "Properties",
    "Property",
    "PropertyType",
    "PropertyValue",
    "ProtocolError",
    "PutMessage",
    "Queue",
    "QueueClosed",
    "QueueState",
    "QueueUri",
    "Reject",
    "RequestError",
    "RequestFailed",
    "RequestTimeout",
    "RetryAfter",
    "Router",
    "Session",
    "SessionClosed",
    "SessionOptions",
    "SessionState",
    "StateError",
    "Subscription",
    "TagFilter",
    "TimedOut",
    "Trace",
    "TypedMessage",
    "TypedQueue",
    "Undecodable",
    "UsageError",
    "__version__",
    "connect",
    "consume",
    "errors",
    "events",
    "reconnect_delays",
    "run",
]

# The module of each public name; the other names are errors. A name is imported on first use: a program
# imports only the needed modules, and a run of pytest, which loads the plugin wherever bmq is installed,
# imports no module.
_NAMES = {
    "bmq.client.attempt": ["Attempt"],
    "bmq.client.connect": ["connect", "run"],
    "bmq.client.consumer": ["Consumer", "Subscription"],
    "bmq.client.interceptors": ["Interceptor"],
    "bmq.client.message": ["Message", "MessageBatch"],
    "bmq.client.posts": ["Ack", "FailedPost", "PostReport", "PutMessage"],
    "bmq.client.options": ["Credentials", "SessionOptions", "Trace", "reconnect_delays"],
    "bmq.client.queue": ["Queue"],
    "bmq.client.session": ["CloseReport", "Session"],
    "bmq.client.typed": ["TypedMessage", "TypedQueue"],
    "bmq.codecs": ["CloudEvent", "Codec", "Property"],
    "bmq.protocol.client.core": ["SessionState"],
    "bmq.protocol.client.queue": ["QueueState"],
    "bmq.subscriptions": ["Expression", "P", "TagFilter"],
    "bmq.wire.constants": ["Compression", "PropertyType"],
    "bmq.wire.properties": ["Properties", "PropertyValue"],
    "bmq.wire.uri": ["QueueUri"],
    "bmq.workers": [
        "AckPolicy",
        "App",
        "Backoff",
        "DeadLetter",
        "Depends",
        "NoRetry",
        "PartlyFailed",
        "Reject",
        "RetryAfter",
        "Router",
        "consume",
    ],
}
_MODULE_OF = dict.fromkeys(__all__, "bmq.errors")
_MODULE_OF.update({name: module for module, names in _NAMES.items() for name in names})
_MODULES = (
    "admin",
    "arrow",
    "asyncapi",
    "blocking",
    "broker",
    "codecs",
    "delays",
    "errors",
    "events",
    "groups",
    "health",
    "inbox",
    "interceptors",
    "spark",
    "stats",
    "subscriptions",
    "testing",
    "typed",
    "types",
    "workers",
)

# Type checkers see only the imports above, and report all unknown names as errors.
if not TYPE_CHECKING:

    def __getattr__(name):
        from importlib import import_module

        if name in _MODULES:
            return import_module(f"bmq.{name}")
        if name in _MODULE_OF:
            value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
            return value
        raise AttributeError(f"module 'bmq' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__, *_MODULES})
