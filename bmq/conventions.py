# SPDX-License-Identifier: Apache-2.0
"""The names of the message properties that ``bmq`` itself sets and reads.

All of them are legal names in subscription expressions, which take letters, digits and underscores only, so
that messages can be selected by them. A service in another language takes part by setting the same
properties. The page *Conventions* of the documentation says what each of them holds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar

from bmq import _checks, _world
from bmq._renamed import old_names

__all__ = [
    "ATTEMPTS",
    "BUCKET",
    "CANCEL",
    "CONTENT_TYPE",
    "DEADLINE",
    "DEATHS",
    "DELAY_QUEUE_SUFFIX",
    "DESTINATION",
    "DUE",
    "ERROR",
    "ORIGIN",
    "POSTED",
    "PREFIX",
    "REPLY_TO",
    "REQUEST",
    "REQUESTER",
    "delay_queue_of",
    "derived_guid",
    "is_guid",
    "post_time",
    "with_post_time",
]

T = TypeVar("T")

# The year 5138, in seconds since 1970: whoever gives more has given milliseconds.
_LATEST: Final = 1e11

_GUID: Final = re.compile("[0-9A-F]{32}")

PREFIX: Final = "bmq_"
"""How all of them begin. Names that begin like this are reserved for what may come."""

BUCKET: Final = "bmq_bucket"
"""INT32 or INT64: the bucket of the message's key: 0 to 2**31 - 1. Consumer groups share the work by it."""

POSTED: Final = "bmq_posted"
"""INT64: when a message was first posted, in milliseconds since 1970 (UTC)."""

CONTENT_TYPE: Final = "bmq_content_type"
"""STRING: what the payload is, as a media type such as ``application/json``."""

DUE: Final = "bmq_due"
"""INT64: when a delayed message is due, in milliseconds since 1970 (UTC)."""

DESTINATION: Final = "bmq_destination"
"""STRING: the URI of the queue that a waiting message is passed on to."""

ATTEMPTS: Final = "bmq_attempts"
"""INT32: how often a message that comes back was tried."""

DEATHS: Final = "bmq_deaths"
"""INT32: how many processes have ended, or lost their connection, while they had the message."""

ERROR: Final = "bmq_error"
"""STRING: why the last attempt, or a request, failed: ``type: text`` of the error."""

ORIGIN: Final = "bmq_origin"
"""STRING: the GUID that a message that comes back had at first."""

REPLY_TO: Final = "bmq_reply_to"
"""STRING: the URI of the queue where the reply to a request is expected."""

REQUESTER: Final = "bmq_requester"
"""STRING: who waits for the reply, where several share a reply queue; repeated in the reply."""

DEADLINE: Final = "bmq_deadline"
"""INT64: until when somebody waits for the reply, in milliseconds since 1970 (UTC)."""

CANCEL: Final = "bmq_cancel"
"""STRING: the GUID of a request that nobody waits for any more. A message with it is no request itself."""

REQUEST: Final = "bmq_request"
"""STRING: the GUID of the request that a message replies to."""

DELAY_QUEUE_SUFFIX: Final = ".delayed"
"""What the name of a queue's delay queue ends with."""


def delay_queue_of(uri: str) -> str:
    """Return the URI of the queue where delayed messages of a queue wait, unless another one is named."""
    return _checks.text("uri", uri).partition("?")[0] + DELAY_QUEUE_SUFFIX


def derived_guid(*words: str) -> str:
    """Return the GUID of a message that follows from another one.

    Whoever does the same step twice posts the same GUID twice, and the broker stores one message. It is the
    BLAKE2b hash, 16 bytes long, of the words with single spaces between them, in UTF-8; the first word is the
    GUID of the other message.

    Returns:
        32 upper-case hexadecimal digits.
    """
    return (
        hashlib.blake2b(" ".join([_checks.text("a word", word) for word in words]).encode(), digest_size=16)
        .hexdigest()
        .upper()
    )


def is_guid(value: object) -> TypeGuard[str]:
    """Return whether a value is the text of a GUID: 32 upper-case hexadecimal digits."""
    return isinstance(value, str) and _GUID.fullmatch(value) is not None


def with_post_time(properties: Mapping[str, T] | None = None, at: float | None = None) -> dict[str, T | int]:
    """Return properties for a post that say when it was made.

    What has a post time keeps it: a message that is posted again, by whomever, does not get younger.

    Args:
        properties: the other properties.
        at: the time, in seconds since 1970; None for now.
    """
    seconds = (
        _world.time() if at is None else _checks.number("at", at, 0.0, _LATEST, unit="seconds since 1970")
    )
    given: Mapping[str, Any] = {} if properties is None else _checks.mapping("properties", properties)
    return {POSTED: round(seconds * 1000), **given}


def post_time(properties: Mapping[str, object]) -> float | None:
    """Return when a message was first posted, in seconds since 1970; None if it does not say so."""
    posted = _checks.mapping("properties", properties).get(POSTED)
    return posted / 1000 if isinstance(posted, int) and not isinstance(posted, bool) else None


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
