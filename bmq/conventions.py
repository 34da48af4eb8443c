# SPDX-License-Identifier: Apache-2.0
"""The names of message properties that ``bmq`` sets and reads.

All names are legal in subscription expressions (letters, digits and underscores only), so that expressions
can select by them. A service in another language takes part by setting the same properties. The page
*Conventions* of the documentation describes the content of each.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final, TypeGuard, TypeVar

from bmq import _checks, _world

__all__ = [
    "ATTEMPTS",
    "BUCKET",
    "CANCEL",
    "CONTENT_TYPE",
    "DEADLINE",
    "DEAD_ATTEMPTS",
    "DEAD_ERROR",
    "DEAD_GUID",
    "DEAD_PREFIX",
    "DEAD_PROPERTIES",
    "DEAD_QUEUE",
    "DEAD_RAW",
    "DEATHS",
    "DELAY_QUEUE_SUFFIX",
    "DESTINATION",
    "DUE",
    "ERROR",
    "GROUP_MEMBER",
    "GROUP_SENDER",
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

# The year 5138, in seconds since 1970: a larger number must be in milliseconds.
_LATEST: Final = 1e11

_GUID: Final = re.compile("[0-9A-F]{32}")

PREFIX: Final = "bmq_"
"""Common prefix of the names, reserved for future properties, too."""

BUCKET: Final = "bmq_bucket"
"""INT32 or INT64: bucket of the message's key, 0 to 2**31 - 1. Consumer groups divide the work by buckets."""

GROUP_MEMBER: Final = "bmq_to"
"""STRING: in the messages of a group's control queue, the name of the member; empty for the leader."""

GROUP_SENDER: Final = "bmq_from"
"""STRING: in the messages of a group's control queue, the name of the sender; empty for the right to lead."""

POSTED: Final = "bmq_posted"
"""INT64: time of the first post, in milliseconds since 1970 (UTC)."""

CONTENT_TYPE: Final = "bmq_content_type"
"""STRING: media type of the payload, such as ``application/json``."""

DUE: Final = "bmq_due"
"""INT64: due time of a delayed message, in milliseconds since 1970 (UTC)."""

DESTINATION: Final = "bmq_destination"
"""STRING: URI of the queue to which a delayed message is passed on."""

ATTEMPTS: Final = "bmq_attempts"
"""INT32: number of attempts before the message was delayed."""

DEATHS: Final = "bmq_deaths"
"""INT32: number of processes that ended, or lost their connection, while handling the message."""

ERROR: Final = "bmq_error"
"""STRING: error of the last attempt, or of a request: ``type: text``. The payload of a failed request's reply
is a problem, ``application/problem+json``."""

ORIGIN: Final = "bmq_origin"
"""STRING: original GUID of a message that was posted again."""

DEAD_PREFIX: Final = "bmq_dead_"
"""Common prefix of the properties of dead letters."""

DEAD_ATTEMPTS: Final = "bmq_dead_attempts"
"""INT32: number of attempts before the message became a dead letter."""

DEAD_ERROR: Final = "bmq_dead_error"
"""STRING: error of the last attempt: ``type: text``."""

DEAD_GUID: Final = "bmq_dead_guid"
"""STRING: GUID of the original message."""

DEAD_QUEUE: Final = "bmq_dead_queue"
"""STRING: URI of the original queue, including ``?id=``."""

DEAD_PROPERTIES: Final = "bmq_dead_properties"
"""STRING: JSON list of the properties that could not be posted: ``[name, type, value]``."""

DEAD_RAW: Final = "bmq_dead_raw"
"""STRING: why the payload is not the payload of the original."""

REPLY_TO: Final = "bmq_reply_to"
"""STRING: URI of the queue for the reply to a request."""

REQUESTER: Final = "bmq_requester"
"""STRING: requester within a shared reply queue; repeated in the reply."""

DEADLINE: Final = "bmq_deadline"
"""INT64: deadline of a request, in milliseconds since 1970 (UTC)."""

CANCEL: Final = "bmq_cancel"
"""STRING: GUID of a cancelled request. A message with this property is not a request."""

REQUEST: Final = "bmq_request"
"""STRING: GUID of the request that a message replies to."""

DELAY_QUEUE_SUFFIX: Final = ".delayed"
"""Suffix of the name of a delay queue."""


def delay_queue_of(uri: str) -> str:
    """Return the URI of a queue's default delay queue."""
    return _checks.text("uri", uri).partition("?")[0] + DELAY_QUEUE_SUFFIX


def derived_guid(*words: str) -> str:
    """Return a GUID derived from the GUID of another message.

    A repeated step posts the same GUID again, and the broker stores the message once. The GUID is the 16-byte
    BLAKE2b hash of the words with single spaces between them, in UTF-8. The first word is the GUID of the
    other message.

    Returns:
        32 upper-case hexadecimal digits.
    """
    return (
        hashlib.blake2b(" ".join([_checks.text("a word", word) for word in words]).encode(), digest_size=16)
        .hexdigest()
        .upper()
    )


def is_guid(value: object) -> TypeGuard[str]:
    """Whether a value is the text of a GUID: 32 upper-case hexadecimal digits."""
    return isinstance(value, str) and _GUID.fullmatch(value) is not None


def with_post_time(properties: Mapping[str, T] | None = None, at: float | None = None) -> dict[str, T | int]:
    """Return properties with the post time.

    An existing post time is kept: a message that is posted again does not become younger.

    Args:
        properties: other properties.
        at: time in seconds since 1970; None for now.
    """
    seconds = (
        _world.time() if at is None else _checks.number("at", at, 0.0, _LATEST, unit="seconds since 1970")
    )
    given: Mapping[str, Any] = {} if properties is None else _checks.mapping("properties", properties)
    return {POSTED: round(seconds * 1000), **given}


def post_time(properties: Mapping[str, object]) -> float | None:
    """Return the time of a message's first post, in seconds since 1970; None if not set."""
    posted = _checks.mapping("properties", properties).get(POSTED)
    return posted / 1000 if isinstance(posted, int) and not isinstance(posted, bool) else None
