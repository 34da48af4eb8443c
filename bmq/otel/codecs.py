# SPDX-License-Identifier: Apache-2.0
"""How a trace's context travels in the properties of a message."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import Any, Protocol

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, Setter, TextMapPropagator
from opentelemetry.trace import NonRecordingSpan, SpanContext

from bmq import _checks
from bmq.wire.properties import PropertyInput, PropertyValue, Typed

__all__ = ["BinaryCodec", "ContextCodec", "TextCodec"]


class ContextCodec(Protocol):
    """Writes the context of a trace to a message's properties, and reads it."""

    @property
    def fields(self) -> Collection[str]:
        """The names of the properties that it reads: messages that agree in them have the same context."""
        ...

    def inject(self, context: Context, properties: MutableMapping[str, PropertyInput]) -> None:
        """Add properties to a message that is posted.

        Args:
            context: what to add.
            properties: those of the message.
        """

    def extract(self, context: Context, properties: Mapping[str, Any]) -> Context:
        """Read the properties of a message.

        Args:
            context: what to return if there is nothing, and to build on if there is.
            properties: those of the message, as they were received, or as they are about to be posted.
        """
        ...


class TextCodec:
    """Properties of text, as a propagator of OpenTelemetry makes them.

    With the default that is the W3C's context: ``traceparent``, and ``tracestate`` and ``baggage`` where
    there is something to say.

    Args:
        propagator: writes and reads them; None for the one that is set for the process, by
            ``OTEL_PROPAGATORS`` or ``opentelemetry.propagate.set_global_textmap``.
    """

    def __init__(self, propagator: TextMapPropagator | None = None) -> None:
        self._propagator = propagator

    @property
    def fields(self) -> Collection[str]:
        """The names that the propagator reads."""
        return (self._propagator or propagate.get_global_textmap()).fields

    def inject(self, context: Context, properties: MutableMapping[str, PropertyInput]) -> None:
        """Add what the propagator has to say; see :meth:`ContextCodec.inject`."""
        propagator = self._propagator or propagate.get_global_textmap()
        propagator.inject(properties, context, _SETTER)

    def extract(self, context: Context, properties: Mapping[str, Any]) -> Context:
        """Read what the propagator knows; see :meth:`ContextCodec.extract`."""
        propagator = self._propagator or propagate.get_global_textmap()
        return propagator.extract(properties, context, _GETTER)


class BinaryCodec:
    """One BINARY property, for producers that write something else than text.

    BlazingMQ's own clients are to have a property ``bmq.traceparent``; what is in it is up to the tracer that
    an application plugs into them. The functions say what that is.

    Args:
        read: returns the span's context that the bytes hold; None if they hold none.
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
        """Add the property, if it is to be written; see :meth:`ContextCodec.inject`."""
        current = trace.get_current_span(context).get_span_context()
        if self._write is not None and current.is_valid:
            properties[self._name] = self._write(current)

    def extract(self, context: Context, properties: Mapping[str, Any]) -> Context:
        """Read the property; see :meth:`ContextCodec.extract`."""
        value = properties.get(self._name)
        if isinstance(value, Typed):
            value = value.value
        if not isinstance(value, bytes):
            return context
        found = self._read(value)
        if found is None or not found.is_valid:
            return context
        return trace.set_span_in_context(NonRecordingSpan(found), context)


class _Setter(Setter[MutableMapping[str, PropertyInput]]):
    def set(self, carrier: MutableMapping[str, PropertyInput], key: str, value: str) -> None:
        carrier[key] = value


class _Getter(Getter[Mapping[str, PropertyValue]]):
    def get(self, carrier: Mapping[str, Any], key: str) -> list[str] | None:
        value = carrier.get(key)
        if isinstance(value, Typed):
            value = value.value
        if isinstance(value, bytes | bytearray):
            value = value.decode("ascii", "replace")
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Mapping[str, Any]) -> list[str]:
        return list(carrier)


_SETTER, _GETTER = _Setter(), _Getter()
