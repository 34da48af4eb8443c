# SPDX-License-Identifier: Apache-2.0
"""The embedded broker: for development and tests. Production is a real BlazingMQ cluster.

:class:`Broker` is a TCP server in the running event loop; ``python -m bmq broker`` is the same as a process.
"""

from bmq.broker._consumer_filter import ConsumerFilter, FilteredConsumer, TagConsumerFilter
from bmq.broker._node import Bounds
from bmq.broker._server import Broker
from bmq.broker._settings import Action, ActionKind, Authentication
from bmq.broker._views import PostedMessage
from bmq.broker.clock import Clock, ManualClock
from bmq.broker.domain_config import AppSubscription, DomainConfig, InvalidDomain, Limits, Mode

__all__ = [
    "Action",
    "ActionKind",
    "AppSubscription",
    "Authentication",
    "Bounds",
    "Broker",
    "Clock",
    "ConsumerFilter",
    "DomainConfig",
    "FilteredConsumer",
    "InvalidDomain",
    "Limits",
    "ManualClock",
    "Mode",
    "PostedMessage",
    "TagConsumerFilter",
]
