# SPDX-License-Identifier: Apache-2.0
"""The official client with a history of its posts and deliveries, for the check of this client's history."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bmq.testing import History

__all__ = ["OFFICIAL_LEAVES_OUT", "OfficialClient"]

#: Rules without a meaning for the official client, because it does not mark redelivered messages.
OFFICIAL_LEAVES_OUT = ("order", "again")
_OPEN = frozenset({"UNKNOWN", "TIMEOUT", "CANCELED", "NOT_CONNECTED"})


class OfficialClient:
    """Sessions of the official client, with callbacks from its own threads.

    Messages are identified by the beginning of their payload, up to the filling dots.

    Args:
        broker: address of the broker.
        history: records all operations.
        timeout: timeout for opening, in seconds.

    Attributes:
        buffer_full: number of refused posts.
    """

    def __init__(self, broker: str, history: History, timeout: float) -> None:
        import blazingmq

        self._blazingmq = blazingmq
        self._broker, self._history, self._timeout = broker, history, timeout
        self.buffer_full = 0

    def session(self, name: str) -> Any:
        """Start a session that records and confirms each message."""
        history, connection = self._history, 0

        def on_event(event: Any) -> None:
            nonlocal connection
            what = type(event).__name__
            if what in ("Connected", "ConnectionLost", "StateRestored"):
                connection += what == "ConnectionLost"
                history.record(name, "connection", "fail" if what == "ConnectionLost" else "ok", event=what)

        def on_message(message: Any, handle: Any) -> None:
            where = {"queue": message.queue_uri, "message": _identity(message.data)}
            history.record(name, "deliver", "ok", connection=f"0.{connection}", **where)
            handle.confirm()
            history.record(name, "confirm", "ok", **where)

        return self._blazingmq.Session(
            on_event,
            on_message=on_message,
            broker=self._broker,
            timeout=self._timeout,
            num_processing_threads=1,
        )

    def post(self, session: Any, uri: str, data: bytes, then: Callable[[], None] = lambda: None) -> bool:
        """Post a message; return whether the client has accepted it."""
        where = {"queue": uri, "message": _identity(data)}

        def on_ack(ack: Any) -> None:
            status = ack.status.name
            kind: Any = "ok" if status == "SUCCESS" else "unknown" if status in _OPEN else "fail"
            self._history.record("producer", "post", kind, status=status, **where)
            then()

        self._history.record("producer", "post", "invoke", **where)
        try:
            session.post(uri, data, on_ack=on_ack)
        except self._blazingmq.Error as error:
            self.buffer_full += 1
            self._history.record("producer", "post", "fail", error=type(error).__name__, **where)
            return False
        return True

    def wait(self, seconds: float) -> None:
        """Wait up to this many seconds until no message is in flight."""
        limit = time.monotonic() + seconds
        while self._history.pending() and time.monotonic() < limit:
            time.sleep(0.1)


def _identity(data: bytes) -> str:
    return data.rstrip(b".").decode()
