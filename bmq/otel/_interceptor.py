# SPDX-License-Identifier: Apache-2.0
"""Spans and metrics of messages, made where the client calls interceptors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
)

from bmq import _checks, _world
from bmq._version import __version__
from bmq.client.interceptors import Interceptor
from bmq.errors import UsageError
from bmq.otel import names
from bmq.otel.codecs import BinaryCodec, ContextCodec, TextCodec, read_traceparent
from bmq.wire.constants import MAX_PROPERTIES
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.client.attempt import Attempt, CallNext
    from bmq.client.consumer import Consumer
    from bmq.client.interceptors import Operation, PostOutcome
    from bmq.client.message import Message
    from bmq.client.posts import OutgoingMessage
    from bmq.client.queue import Queue

__all__ = ["OpenTelemetry"]

#: The context of the message that a task took last, and the previous current context.
_attached: ContextVar[tuple[Context, Context] | None] = ContextVar("bmq.otel", default=None)
_QUEUES_CACHED = 1024


@lru_cache(_QUEUES_CACHED)
def _describe(operation: str, uri: str, address: str) -> tuple[str, dict[str, str | int]]:
    """Return the name and the first attributes of the spans of an operation on a queue."""
    queue = QueueUri.parse(uri)
    attributes: dict[str, str | int] = {
        names.SYSTEM: names.BLAZINGMQ,
        names.OPERATION_NAME: operation,
        names.OPERATION_TYPE: names.OPERATIONS[operation],
        names.DESTINATION_NAME: queue.canonical,
    }
    if queue.app_id:
        attributes[names.CONSUMER_GROUP_NAME] = queue.app_id
    attributes |= _server(address)
    return f"{operation} {queue.canonical}", attributes


def _server(address: str) -> dict[str, str | int]:
    broker = urlsplit(address)
    if not (broker.hostname and broker.port):
        return {}
    return {names.SERVER_ADDRESS: broker.hostname, names.SERVER_PORT: broker.port}


class _Delivery:
    """Messages that the application took together.

    Attributes:
        context: parent of the spans of these messages.
        links: links to the posts of the messages.
        arrived: time of arrival, in nanoseconds since the epoch.
        left: number of unconfirmed messages.
    """

    __slots__ = ("arrived", "context", "left", "links")

    def __init__(self, context: Context, links: list[Link], arrived: int, count: int) -> None:
        self.context = context
        self.links = links
        self.arrived = arrived
        self.left = count


class OpenTelemetry(Interceptor):
    """Makes spans and metrics for a session, by OpenTelemetry's conventions for messaging.

    Pass the interceptor to ``bmq.connect(..., interceptors=[...])`` or ``bmq.App(interceptors=[...])``. The
    program's SDK processes spans and metrics; without an SDK, nothing is exported.

    Spans, each named after the operation and the queue:

    - ``post`` (PRODUCER): from a post to the broker's answer. ``post_many`` has a span for up to 500
      messages. The span's context travels with the messages. A message with a context in its properties
      keeps the context, and the span has a link to it.
    - ``receive`` (CLIENT): from the arrival of a message, or of the first message of a batch, until the
      application takes it. Has links to the posts; a single message taken outside of any other span
      continues its trace.
    - ``process`` (CONSUMER): one attempt of a handler, inside ``receive``.
    - ``confirm`` (CLIENT): from the arrival to the confirmation of the message, or of the last message of a
      batch; inside ``receive``. An unconfirmed message has no such span.

    - ``bmq.session.start``, ``bmq.session.stop``, ``bmq.queue.open``, ``bmq.queue.configure`` and
      ``bmq.queue.close`` (CLIENT): the operations of the application, with the names of BlazingMQ's own
      clients.

    Args:
        tracer_provider: makes the spans; if None, the process's provider.
        meter_provider: makes the metrics; if None, the process's provider.
        codecs: write and read contexts: all write, and the first with a result reads. By default a
            :class:`TextCodec`, and a :class:`BinaryCodec` that reads ``bmq.traceparent`` with text of the W3C
            format. If a message has both, the first is used.
        attach: whether the context of a message is current in the task that took the message, until the
            task confirms it or takes another message. Posts and log records meanwhile belong to the trace.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        codecs: Iterable[ContextCodec] | None = None,
        attach: bool = True,
    ) -> None:
        for name, provider, method in (
            ("tracer_provider", tracer_provider, "get_tracer"),
            ("meter_provider", meter_provider, "get_meter"),
        ):
            if provider is not None and not callable(getattr(type(provider), method, None)):
                raise UsageError(
                    f"{name} must have the method {method}, and {_checks.shown(provider)} does not"
                )
        attach = _checks.boolean("attach", attach)
        if codecs is not None:
            codecs = _checks.items("codecs", codecs, "codecs")
            for each in codecs:
                if not (callable(getattr(type(each), "inject", None)) and hasattr(type(each), "extract")):
                    raise UsageError(
                        f"a codec must have the methods inject and extract, and {_checks.shown(each)} "
                        "does not"
                    )
        self._tracer = trace.get_tracer("bmq", __version__, tracer_provider, names.SCHEMA_URL)
        meter = metrics.get_meter("bmq", __version__, meter_provider, names.SCHEMA_URL)
        self._durations = meter.create_histogram(
            names.OPERATION_DURATION,
            names.SECONDS,
            "Duration of posting until the answer, of waiting until taken, and of holding until confirmed.",
            explicit_bucket_boundaries_advisory=names.BUCKETS,
        )
        self._processing = meter.create_histogram(
            names.PROCESS_DURATION,
            names.SECONDS,
            "Duration of the attempts of handlers.",
            explicit_bucket_boundaries_advisory=names.BUCKETS,
        )
        self._sent = meter.create_counter(names.SENT_MESSAGES, names.MESSAGES, "Messages posted.")
        self._consumed = meter.create_counter(
            names.CONSUMED_MESSAGES, names.MESSAGES, "Messages taken by the application."
        )
        self._codecs = (TextCodec(), BinaryCodec(read_traceparent)) if codecs is None else tuple(codecs)
        self._attach = attach

    # posting

    def on_post(self, queue: Queue, posts: Sequence[OutgoingMessage]) -> Any:
        """Begin a span, and send the span's context along."""
        name, attributes = _describe("post", queue.uri, queue.session.address)
        current = contexts.get_current()
        own = {id(post): origin for post in posts if (origin := self._origin(post.properties)) is not None}
        origins = {(origin.trace_id, origin.span_id): origin for origin in own.values()}
        links = [Link(origin) for origin in origins.values()]
        span = self._tracer.start_span(name, current, SpanKind.PRODUCER, attributes, links)
        if span.is_recording():
            if len(posts) == 1:
                span.set_attribute(names.MESSAGE_ID, posts[0].guid)
                span.set_attribute(names.BODY_SIZE, len(posts[0].data))
            else:
                span.set_attribute(names.BATCH_MESSAGE_COUNT, len(posts))
        context = trace.set_span_in_context(span, current)
        added: dict[str, Any] = {}
        for codec in self._codecs:
            codec.inject(context, added)
        for post in posts:
            # A message with the maximum number of properties is posted without a context.
            if id(post) not in own and len(post.properties) + len(added) <= MAX_PROPERTIES:
                post.properties.update(added)
        return span, _world.monotonic()

    def on_ack(self, context: tuple[Span, float] | None, outcome: PostOutcome) -> None:
        """End the span."""
        if context is None:
            return
        span, began = context
        seconds = _world.monotonic() - began
        _, attributes = _describe("post", outcome.queue.uri, outcome.queue.session.address)
        errors = [failure.error for failure in outcome.failures]
        reason = errors[0].status.name if errors else None
        if reason is None and outcome.error is not None:
            reason = type(outcome.error).__name__
        if reason is not None:
            span.set_attribute(names.ERROR_TYPE, reason)
            span.set_status(Status(StatusCode.ERROR, str(errors[0] if errors else outcome.error)))
        span.end()
        self._durations.record(seconds, _failed(attributes, reason))
        if outcome.acknowledged:
            self._sent.add(outcome.acknowledged, attributes)
        for error in errors:
            self._sent.add(1, _failed(attributes, error.status.name))

    # operations on sessions and queues

    def on_operation(self, operation: Operation) -> Span:
        """Begin a span for an operation on the session or a queue."""
        attributes: dict[str, str | int] = {
            names.SYSTEM: names.BLAZINGMQ,
            **_server(operation.session.address),
        }
        if operation.queue_uri:
            attributes[names.QUEUE_URI] = operation.queue_uri
            attributes[names.DESTINATION_NAME] = QueueUri.parse(operation.queue_uri).canonical
        name = names.OPERATION_SPANS[operation.name]
        return self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes)

    def on_operation_end(self, context: Span, error: BaseException | None) -> None:
        """End the span of an operation."""
        if error is not None:
            reason = type(error).__qualname__
            context.set_attribute(names.ERROR_TYPE, reason)
            context.set_status(Status(StatusCode.ERROR, f"{reason}: {error}"))
        context.end()

    # receiving

    def on_receive(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        """Make a span, and the context for the handling of the messages."""
        name, attributes = _describe("receive", consumer.queue.uri, consumer.queue.session.address)
        age = messages[0].age
        arrived = _world.time_ns() - int(age * 1e9)
        current = contexts.get_current()
        before = _before(current)
        if len(messages) == 1:
            parent, links = self._continued(before, messages[0])
        else:
            parent, links = before, self._links(messages)
        span = self._tracer.start_span(name, parent, SpanKind.CLIENT, attributes, links, start_time=arrived)
        if span.is_recording():
            _tell(span, consumer, messages)
        span.end()
        # The context belongs to an ended span, which nobody can change.
        inside = trace.set_span_in_context(NonRecordingSpan(span.get_span_context()), parent)
        delivery = _Delivery(inside, links, arrived, len(messages))
        for message in messages:
            message.context[self] = delivery
        if self._attach:
            _attached.set((inside, before))
            contexts.attach(inside)
        self._durations.record(age, attributes)
        self._consumed.add(len(messages), attributes)

    def on_confirm(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        """Make a span once all messages taken together are confirmed."""
        for message in messages:
            delivery: _Delivery | None = message.context.get(self)
            if delivery is None:
                continue
            delivery.left -= 1
            if not delivery.left:
                self._confirmed(consumer, message, delivery)

    def _confirmed(self, consumer: Consumer, message: Message, delivery: _Delivery) -> None:
        name, attributes = _describe("confirm", consumer.queue.uri, consumer.queue.session.address)
        span = self._tracer.start_span(
            name, delivery.context, SpanKind.CLIENT, attributes, delivery.links, start_time=delivery.arrived
        )
        if span.is_recording() and len(delivery.links) == 1:
            span.set_attribute(names.MESSAGE_ID, message.guid)
        span.end()
        self._durations.record(max(0.0, (_world.time_ns() - delivery.arrived) / 1e9), attributes)
        current = contexts.get_current()
        if current is delivery.context:
            contexts.attach(_before(current))

    # handling

    async def handle(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Make a span for an attempt of a handler."""
        messages = attempt.messages
        consumer = messages[0].consumer
        name, attributes = _describe("process", consumer.queue.uri, consumer.queue.session.address)
        deliveries = {message.context.get(self) for message in messages}
        delivery: _Delivery | None = deliveries.pop() if len(deliveries) == 1 else None
        context = delivery.context if delivery is not None else contexts.get_current()
        links = delivery.links if delivery is not None else self._links(messages)
        more: dict[str, str | int] = {names.FUNCTION_NAME: attempt.handler, names.ATTEMPT: attempt.number}
        span = self._tracer.start_span(name, context, SpanKind.CONSUMER, {**attributes, **more}, links)
        if span.is_recording():
            _tell(span, consumer, messages)
        token = contexts.attach(trace.set_span_in_context(span, context))
        began = _world.monotonic()
        reason: str | None = None
        try:
            return await call_next()
        except BaseException as error:
            reason = type(error).__qualname__
            span.set_attribute(names.ERROR_TYPE, reason)
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, f"{reason}: {error}"))
            raise
        finally:
            contexts.detach(token)
            span.end()
            self._processing.record(_world.monotonic() - began, _failed(attributes, reason))

    # where messages come from

    def _extracted(self, context: Context, properties: Mapping[str, Any]) -> Context | None:
        """Return ``context`` with the span of a message's post; None without such a span."""
        current = trace.get_current_span(context)
        for codec in self._codecs if properties else ():
            found = codec.extract(context, properties)
            if trace.get_current_span(found) is not current:
                return found
        return None

    def _origin(self, properties: Mapping[str, Any]) -> SpanContext | None:
        """Return the context with the span of a message's post; None without such a span."""
        found = self._extracted(Context(), properties)
        return None if found is None else trace.get_current_span(found).get_span_context()

    def _continued(self, before: Context, message: Message) -> tuple[Context, list[Link]]:
        """Return the parent and the links for the spans of one message."""
        found = self._extracted(before, message.properties)
        if found is None:
            return before, []
        links = [Link(trace.get_current_span(found).get_span_context(), {names.MESSAGE_ID: message.guid})]
        # As the conventions ask, spans inside of another span stay there.
        inside = trace.get_current_span(before).get_span_context().is_valid
        return before if inside else found, links

    def _links(self, messages: Sequence[Message]) -> list[Link]:
        """Return a link for each post of these messages, without repetitions."""
        found: dict[tuple[int, int], tuple[SpanContext, list[Message]]] = {}
        fields = [name for codec in self._codecs for name in codec.fields]
        # Messages of the same post have the same properties: read only once.
        origins: dict[tuple[Any, ...], SpanContext | None] = {}
        for message in messages:
            properties = message.properties
            said = tuple([properties.get(name) for name in fields])
            if said not in origins:
                origins[said] = self._origin(properties)
            span = origins[said]
            if span is not None:
                found.setdefault((span.trace_id, span.span_id), (span, []))[1].append(message)
        return [
            Link(
                span,
                {names.MESSAGE_ID: own[0].guid} if len(own) == 1 else {names.BATCH_MESSAGE_COUNT: len(own)},
            )
            for span, own in found.values()
        ]


def _before(current: Context) -> Context:
    """Return the current context without the previous message of the task."""
    attached = _attached.get()
    return attached[1] if attached is not None and attached[0] is current else current


def _tell(span: Span, consumer: Consumer, messages: Sequence[Message]) -> None:
    """Add the attributes of received messages."""
    if len(messages) == 1:
        (message,) = messages
        span.set_attribute(names.MESSAGE_ID, message.guid)
        span.set_attribute(names.BODY_SIZE, len(message.data))
        if message.redelivered:
            span.set_attribute(names.REDELIVERED, True)
    else:
        span.set_attribute(names.BATCH_MESSAGE_COUNT, len(messages))
    expressions = consumer.expressions
    if len(expressions) == 1 and expressions[0]:
        span.set_attribute(names.SUBSCRIPTION_NAME, expressions[0])


def _failed(attributes: dict[str, str | int], reason: str | None) -> dict[str, str | int]:
    return attributes if reason is None else {**attributes, names.ERROR_TYPE: reason}
