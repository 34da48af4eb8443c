# SPDX-License-Identifier: Apache-2.0
"""The wire trace: logs each event of a session, field by field. Imported only when enabled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice

from bmq._logging import Log
from bmq.errors import ProtocolError
from bmq.protocol.framing import Framer
from bmq.wire.anatomy import Part, dissect
from bmq.wire.constants import EventType
from bmq.wire.event import Event

__all__ = ["Tracer"]

logger = Log("bmq.trace", later=True)

# Maximum number of lines for an event of many messages.
_MOST_LINES = 200
_WHOLE = 2**31


class Tracer:
    """Logs the events of one connection.

    Args:
        broker: address for the log.
        payloads: whether to show payloads and property values; credentials are never shown.
        allowed: called before each event; returns whether to log the event.
        received: bytes received so far of an unfinished event.
    """

    def __init__(
        self, broker: str, *, payloads: bool, allowed: Callable[[], bool], received: bytes = b""
    ) -> None:
        self._broker = broker
        self._payloads = payloads
        self._allowed = allowed
        self._sent, self._received = Framer(_WHOLE), Framer(_WHOLE)
        self._received.feed(received)
        # An enabled trace must be visible, even without a logging configuration.
        if not logger.isEnabledFor(logging.DEBUG):
            logger.logger.setLevel(logging.DEBUG)
        if not logger.logger.hasHandlers():
            logger.logger.addHandler(logging.StreamHandler())

    def sent(self, data: bytes) -> None:
        """Log sent events, or parts of events."""
        self._trace(self._sent, data, "sent to")

    def received(self, data: bytes) -> None:
        """Log received events, or parts of events."""
        self._trace(self._received, data, "received from")

    def _trace(self, framer: Framer, data: bytes, way: str) -> None:
        try:
            events, error = framer.feed(data)
            for event in events:
                if self._allowed():
                    self._log(way, event)
            if error is not None:
                logger.debug("data %s %s is not an event: %s", way, self._broker, error)
        except Exception:
            # An error of the trace must not affect the session.
            logger.exception("the trace failed")

    def _log(self, way: str, event: Event) -> None:
        try:
            kind = EventType(event.type).name
        except ValueError:
            kind = f"type {event.type}"
        parts = dissect(event.data)
        lines = list(islice(self._lines(event, parts), _MOST_LINES))
        if next(parts, None) is not None:
            lines.append("       ...")
        logger.debug(
            "%s %s %s, %d bytes\n%s",
            kind,
            way,
            self._broker,
            len(event.data),
            "\n".join(lines),
            extra={"broker": self._broker},
        )

    def _lines(self, event: Event, parts: Iterator[Part]) -> Iterator[str]:
        try:
            for part in parts:
                yield f"{part.offset:>6} {'  ' * part.depth}{part.name} {self._value(event, part)}".rstrip()
        except ProtocolError as error:
            yield f"       {error}"

    def _value(self, event: Event, part: Part) -> str:
        if event.type == EventType.AUTHENTICATION and part.name == "data":
            return "(not shown)"
        if self._payloads or part.error:
            return part.value
        if part.name == "payload":
            return part.value.partition(":")[0]
        if part.name.startswith("property "):
            return part.value[part.value.rindex("(") :]
        return part.value
