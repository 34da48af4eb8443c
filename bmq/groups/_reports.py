# SPDX-License-Identifier: Apache-2.0
"""Log entries, counts and events of one member of a group."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.conventions import BUCKET
from bmq.groups._events import Full, GroupEvent, Lost

__all__ = ["Reports"]

logger = Log("bmq.groups")


class Reports:
    """Everything that a member tells the application and the log about its buckets and its strays.

    Args:
        member: name of the member.
        uri: the queue's URI.
        key: the property with the key; None for the property ``bmq_bucket``.
        on_event: called with every event; errors of the function are logged.
        held: whether strays are held, not passed to a function.

    Attributes:
        unusable: messages handed out with a key in no bucket, by the kind of key.
    """

    def __init__(
        self,
        member: str,
        uri: str,
        key: str | None,
        on_event: Callable[[GroupEvent], None] | None,
        *,
        held: bool,
    ) -> None:
        self.unusable: Counter[str] = Counter()
        self._member = member
        self._uri = uri
        self._key = key
        self._on_event = on_event
        self._held = held
        self._log = LogLimit(logger)
        self._warned = False

    def tell(self, event: GroupEvent) -> None:
        """Tell the application."""
        if isinstance(event, Full) and not self._warned:
            self._warned = True
            logger.warning(
                "bucket %d of %s has %d messages unconfirmed, beside max_unconfirmed_messages=%d: handle "
                "them faster, or raise max_unconfirmed_messages. This is logged once",
                event.bucket,
                self._uri,
                event.unconfirmed,
                event.window,
            )
        elif isinstance(event, Lost):
            logger.debug("%s has lost bucket %d: %s", self._member, event.bucket, event.reason.value)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                logger.exception("on_event failed on %r", event)

    def count_unusable(self, kind: str) -> None:
        """Count a message handed out with a key in no bucket."""
        self.unusable[kind] += 1
        self._log.warning(
            ("unusable", kind),
            "a message of %s has a key without a bucket: property %s is %s, and keys are integers%s. The "
            "message is delivered without a bucket; check its producer",
            self._uri,
            self._key or BUCKET,
            kind,
            " from 0 on, set by post(..., key=...)" if self._key is None else "",
        )

    def note_stray(self, kind: str) -> None:
        """Log a message not handed out."""
        self._log.warning(
            ("stray", kind),
            "a message of %s is not delivered by this member of the group: %s. %s. Either the producer is "
            "wrong, or the members differ: all members need the same key, buckets, expression and "
            "keyless; bmq explain shows their subscriptions",
            self._uri,
            kind,
            "This member holds the message until it leaves"
            if self._held
            else "The function strays receives it",
        )

    def note_stray_failed(self, error: Exception) -> None:
        """Log that the application's function did not take a stray."""
        self._log.log(
            logging.ERROR,
            ("failed", type(error)),
            "the function strays of the group of %s failed, and the message is held until this member "
            "leaves: %r",
            self._uri,
            error,
        )
