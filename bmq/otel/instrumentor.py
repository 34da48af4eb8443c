# SPDX-License-Identifier: Apache-2.0
"""Instrumentation without a change to the program, for ``opentelemetry-instrument``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from bmq.otel._interceptor import OpenTelemetry

__all__ = ["BmqInstrumentor"]


class BmqInstrumentor(BaseInstrumentor):
    """Gives every new session a :class:`bmq.otel.OpenTelemetry`.

    ``BmqInstrumentor().instrument()``, with the keyword arguments of that class, or without a change to the
    program: ``opentelemetry-instrument python service.py``. ``uninstrument()`` ends the instrumentation of
    new sessions; instrumented sessions stay instrumented.
    """

    _installed: OpenTelemetry | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return no packages: the instrumentation is part of the instrumented package."""
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
