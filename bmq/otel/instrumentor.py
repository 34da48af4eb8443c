# SPDX-License-Identifier: Apache-2.0
"""Instrumentation of programs that do not know of it: what ``opentelemetry-instrument`` finds."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from bmq.otel._interceptor import OpenTelemetry

__all__ = ["BmqInstrumentor"]


class BmqInstrumentor(BaseInstrumentor):
    """Gives every session that is made from now on an :class:`bmq.otel.OpenTelemetry`.

    ``BmqInstrumentor().instrument()``, with the keyword arguments of that class, or without a change to the
    program: ``opentelemetry-instrument python service.py``. ``uninstrument()`` takes it back; sessions that
    have it keep it.
    """

    _installed: OpenTelemetry | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Nothing: it comes with what it instruments."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        known = {
            name: kwargs[name]
            for name in ("tracer_provider", "meter_provider", "codecs", "attach")
            if name in kwargs
        }
        self._installed = OpenTelemetry(**known)
        self._installed.install()

    def _uninstrument(self, **kwargs: Any) -> None:
        if self._installed is not None:
            self._installed.uninstall()
            self._installed = None
