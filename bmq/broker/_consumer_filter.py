# SPDX-License-Identifier: Apache-2.0
"""A filter at the broker in front of each consumer, after Pulsar's proposal of consumer filters.

Real BlazingMQ brokers have no filter in this place. To try the proposal, give a filter to a
:class:`~bmq.broker.DomainConfig`; without a filter, every matching message is delivered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from bmq import _checks
from bmq._logging import Log
from bmq.wire.message import NO_PROPERTIES
from bmq.wire.properties import PlainValue, Properties

if TYPE_CHECKING:
    from bmq.broker._routing import Subscriber
    from bmq.broker._storage import MessageRecord

__all__ = ["ConsumerFilter", "FilteredConsumer", "TagConsumerFilter", "passes"]

_log = Log("bmq.broker")


@dataclass(frozen=True, slots=True)
class FilteredConsumer:
    """The consumer about to receive a message.

    Attributes:
        queue: URI of the queue.
        app_id: application id of the consumer; "" on priority and broadcast queues.
        expression: text of the matching subscription; "" for every message.
        client: the client's description from the negotiation.
    """

    queue: str
    app_id: str
    expression: str
    client: str


class ConsumerFilter(Protocol):
    """Decides whether a consumer receives a message, just before the delivery."""

    def __call__(self, consumer: FilteredConsumer, properties: Mapping[str, PlainValue], /) -> bool:
        """Return False to drop the message: the broker confirms it for the consumer's application."""
        ...


class TagConsumerFilter:
    """The proposal's default filter, by tags.

    A message's tags are the values of the properties with names beginning with ``tag``. A message needs at
    least one value of a consumer's ``anytag...``, and all values of the consumer's ``alltag...``. Other
    metadata and properties are ignored.

    Args:
        consumers: the metadata of consumers, by application id; "" for consumers of priority and broadcast
            queues. Consumers without an entry receive every message.
    """

    def __init__(self, consumers: Mapping[str, Mapping[str, str]]) -> None:
        for app_id, metadata in _checks.mapping("consumers", consumers, "appIds to metadata").items():
            _checks.text("an appId", app_id)
            for key, value in _checks.mapping("metadata", metadata, "names to texts").items():
                _checks.text("a name in metadata", key)
                _checks.text("a value in metadata", value)
        self._wanted = {
            app_id: (
                {value for key, value in metadata.items() if key.startswith("anytag")},
                {value for key, value in metadata.items() if key.startswith("alltag")},
            )
            for app_id, metadata in consumers.items()
        }

    def __call__(self, consumer: FilteredConsumer, properties: Mapping[str, PlainValue], /) -> bool:
        """Whether the consumer wants a message with these properties."""
        one_of, all_of = self._wanted.get(consumer.app_id, _NO_TAGS)
        tags = {value for name, value in properties.items() if name.startswith("tag")}
        return all_of <= tags and (not one_of or bool(one_of & tags))


_NO_TAGS: Final[tuple[set[str], set[str]]] = (set(), set())


def passes(consumer_filter: ConsumerFilter, subscriber: Subscriber, message: MessageRecord) -> bool:
    """Ask a filter; an exception in the filter is logged, and the message passes."""
    stream, group = subscriber.stream, subscriber.group
    handle = stream.handle
    consumer = FilteredConsumer(
        queue=handle.queue.uri,
        app_id=stream.app_id if handle.queue.fanout else "",
        expression="" if group is None else group.text,
        client=handle.client.description,
    )
    try:
        properties = NO_PROPERTIES
        if message.flags:
            properties = Properties(message.data, new=message.schema_id != 0)
        return consumer_filter(consumer, properties)
    except Exception:
        _log.exception("the consumer filter of %s failed; the message is delivered", handle.queue.uri)
        return True
