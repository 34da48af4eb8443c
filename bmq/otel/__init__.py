# SPDX-License-Identifier: Apache-2.0
"""Traces and metrics with OpenTelemetry. Needs the extra ``bmq[otel]``, and the SDK to export data.

:class:`OpenTelemetry` is an interceptor: ``bmq.connect(..., interceptors=[OpenTelemetry()])``. A
:class:`ContextCodec` writes contexts to messages and reads contexts from messages.
"""

from bmq._version import install

try:
    from bmq.otel._interceptor import OpenTelemetry
    from bmq.otel.codecs import BinaryCodec, ContextCodec, TextCodec
except ModuleNotFoundError as error:
    missing = str(error.name).partition(".")[0]
    if missing != "opentelemetry":
        raise
    raise ModuleNotFoundError(
        f"bmq.otel needs opentelemetry-api, which is not installed: {install('otel')}", name=missing
    ) from error

__all__ = ["BinaryCodec", "ContextCodec", "OpenTelemetry", "TextCodec"]
