# SPDX-License-Identifier: Apache-2.0
"""How a trace's context travels in the properties of a message."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import Any, Protocol

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, Setter, TextMapPropagator
from opentelemetry.trace import NonRecordingSpan, SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from bmq import _checks
from bmq.wire.properties import PlainValue, PropertyInput, PropertyValue

__all__ = ["BinaryCodec", "ContextCodec", "TextCodec", "read_traceparent"]


class ContextCodec(Protocol):
    """Writes the context of a trace to a message's properties, and reads the context back."""

    @property
    def fields(self) -> Collection[str]:
        """The names of the properties to read: messages with equal values have the same context."""
        ...

    def inject(self, context: Context, properties: MutableMapping[str, PropertyInput]) -> None:
        """Add properties to a message before its post.

        Args:
            context: the context to add.
            properties: properties of the message.
        """

    def extract(self, context: Context, properties: Mapping[str, Any]) -> Context:
        """Read the properties of a message.

        Args:
            context: base of the result, and the result itself if the properties have no context.
            properties: properties of the message, received or about to be posted.
        """
        ...


class TextCodec:
    """Text properties in the format of an OpenTelemetry propagator.

    The default is the W3C format: ``traceparent``, and if not empty ``tracestate`` and ``baggage``.

    Args:
        propagator: writes and reads the properties; if None, the process's propagator, set with
            ``OTEL_PROPAGATORS`` or ``opentelemetry.propagate.set_global_textmap``.
    """

    def __init__(self, propagator: TextMapPropagator | None = None) -> None:
        self._propagator = propagator

    @property
    def fields(self) -> Collection[str]:
        """The names of the propagator's properties."""
        return (self._propagator or propagate.get_global_textmap()).fields

    def inject(self, context: Context, properties: MutableMapping[str, PropertyInput]) -> None:
        """Add the propagator's properties; see :meth:`ContextCodec.inject`."""
        propagator = self._propagator or propagate.get_global_textmap()
        propagator.inject(properties, context, _SETTER)

    def extract(self, context: Context, properties: Mapping[str, Any]) -> Context:
        """Read the propagator's properties; see :meth:`ContextCodec.extract`."""
        propagator = self._propagator or propagate.get_global_textmap()
        return propagator.extract(properties, context, _GETTER)


class BinaryCodec:
    """One BINARY property, for producers with a format other than text.

    BlazingMQ's own clients are going to have a property ``bmq.traceparent``; the application's tracer defines
    the content. The two functions define the format.

    Args:
        read: returns the span's context from the bytes; None if the bytes hold no context.
        write: returns the bytes for a span's context; None to only read.
        name: the property's name.
    """

    def __init__(
        self,
        read: Callable[[bytes], SpanContext | None],
        write: Callable[[SpanContext], bytes] | None = None,
        *,
        name: str = "bmq.traceparent",
    ) -> None:
        self._read = _checks.function("read", read, 1, plain=True)
        self._write = None if write is None else _checks.function("write", write, 1, plain=True)
        self._name = _checks.text("name", name, empty=False)

    @property
    def fields(self) -> Collection[str]:
        """The name of the property."""
        return (self._name,)

    def inject(self, context: Context, properties: MutableMapping[str, PropertyInput]) -> None:
        """Add the property, if ``write`` was given; see :meth:`ContextCodec.inject`."""
        current = trace.get_current_span(context).get_span_context()
        if self._write is not None and current.is_valid:
            properties[self._name] = self._write(current)

    def extract(self, context: Context, properties: Mapping[str, Any]) -> Context:
        """Read the property; see :meth:`ContextCodec.extract`."""
        value = properties.get(self._name)
        if isinstance(value, PropertyValue):
            value = value.value
        if not isinstance(value, bytes):
            return context
        found = self._read(value)
        if found is None or not found.is_valid:
            return context
        return trace.set_span_in_context(NonRecordingSpan(found), context)


def read_traceparent(data: bytes) -> SpanContext | None:
    """Return the context in a BINARY property that holds the text of a W3C ``traceparent``; None without one.

    Tracers of BlazingMQ's own clients define the content of ``bmq.traceparent``; for OpenTelemetry, the text
    of the W3C format is the usual content. Other content is ignored.
    """
    if len(data) > _LONGEST_TRACEPARENT:
        return None
    carrier = {"traceparent": data.decode("ascii", "replace")}
    found = trace.get_current_span(_W3C.extract(carrier, Context())).get_span_context()
    return found if found.is_valid else None


class _Setter(Setter[MutableMapping[str, PropertyInput]]):
    def set(self, carrier: MutableMapping[str, PropertyInput], key: str, value: str) -> None:
        carrier[key] = value


class _Getter(Getter[Mapping[str, PlainValue]]):
    def get(self, carrier: Mapping[str, Any], key: str) -> list[str] | None:
        value = carrier.get(key)
        if isinstance(value, PropertyValue):
            value = value.value
        if isinstance(value, bytes | bytearray):
            value = value.decode("ascii", "replace")
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Mapping[str, Any]) -> list[str]:
        return list(carrier)


# Versions after 00 may be longer; W3C asks to read their beginning.
_LONGEST_TRACEPARENT = 256
_W3C = TraceContextTextMapPropagator()
_SETTER, _GETTER = _Setter(), _Getter()
