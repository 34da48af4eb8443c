# SPDX-License-Identifier: Apache-2.0
"""The setting of a session's wire trace, which may change at any time and may end after a number of events.

The trace itself (:mod:`bmq.engine.trace`) is imported only when the trace is enabled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bmq.engine.options import Trace

if TYPE_CHECKING:
    from bmq.engine.trace import Tracer

__all__ = ["Tracing"]


class Tracing:
    """The wire trace of one session, for the present connection and all later connections.

    Args:
        trace: content of the trace.
        spent: called when the number of events is reached: no more events need a tracer.

    Attributes:
        trace: content of the trace.
    """

    def __init__(self, trace: Trace, spent: Callable[[], None]) -> None:
        self.trace = trace
        self._spent = spent
        # Number of events left; None for no limit.
        self._left: int | None = None

    def set(self, trace: Trace, count: int | None) -> None:
        """Change the setting, in place of the earlier setting and its number of events."""
        self.trace, self._left = trace, count

    def tracer(self, broker: str, received: bytes = b"") -> Tracer | None:
        """Return the tracer of a connection; None if the trace is off.

        Args:
            broker: address for the log.
            received: bytes received so far of an unfinished event.
        """
        if self.trace is Trace.OFF:
            return None
        from bmq.engine.trace import Tracer

        return Tracer(broker, payloads=self.trace is Trace.PAYLOADS, allowed=self._count, received=received)

    def _count(self) -> bool:
        """Return whether one more event is to be logged."""
        if self._left is None:
            return self.trace is not Trace.OFF
        if not self._left:
            return False
        self._left -= 1
        if not self._left:
            self.trace = Trace.OFF
            self._spent()
        return True
