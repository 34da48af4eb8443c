# SPDX-License-Identifier: Apache-2.0
"""Restores the original message of a dead letter."""

from __future__ import annotations

import base64
import json
from typing import Any, cast

from bmq import _checks
from bmq.client.message import Message
from bmq.client.posts import PutMessage
from bmq.conventions import (
    DEAD_GUID,
    DEAD_PREFIX,
    DEAD_PROPERTIES,
    DEAD_QUEUE,
    DEAD_RAW,
    ORIGIN,
    derived_guid,
    is_guid,
)
from bmq.errors import UsageError
from bmq.wire.constants import MAX_PROPERTIES, PropertyType
from bmq.wire.properties import PropertyInput, PropertyValue, encode_properties
from bmq.wire.uri import QueueUri

__all__ = ["original_of"]


def original_of(letter: Message, queue: str | None = None) -> tuple[str, PutMessage]:
    """Return the destination and the original message of a dead letter.

    Payload and properties are those of the original, with one more property: ``bmq_origin``, the GUID of the
    original, by which an inbox knows a message that was handled before. The GUID derives from the GUID of the
    dead letter, so that a message restored twice within the broker's deduplication window is stored once. ::

        uri, original = bmq.workers.original_of(letter)
        (await (await session.open_output(uri)).post_many([original])).raise_for_failures()
        letter.confirm()

    Args:
        letter: message that a :class:`bmq.DeadLetter` has put aside.
        queue: destination in place of the original queue.

    Raises:
        UsageError: the message is not a dead letter, or cannot be posted in its original form.
        ProtocolError: the message cannot be parsed.
    """
    properties = _checks.choice("letter", letter, Message).properties
    if queue is not None:
        QueueUri.parse(queue)
    origin = properties.get(DEAD_QUEUE)
    if not isinstance(origin, str):
        raise UsageError(f"message {letter.guid} is not a dead letter: it has no {DEAD_QUEUE}")
    raw = properties.get(DEAD_RAW)
    if raw is not None:
        raise UsageError(
            f"dead letter {letter.guid} has an unreadable original, which cannot be posted again: {raw!s}"
        )
    if queue is None and "?id=" in origin:
        raise UsageError(
            f"dead letter {letter.guid} belongs to application {origin} alone: a post to this queue would "
            "reach all applications; name another queue"
        )
    uri = queue if queue is not None else origin
    restored = {n: v for n, v in properties.typed().items() if not n.startswith(DEAD_PREFIX)}
    for name, value in _rest(properties.get(DEAD_PROPERTIES)):
        if len(restored) < MAX_PROPERTIES and _legal(name, value):
            restored[name] = value
    first = properties.get(DEAD_GUID)
    if is_guid(first) and len(restored) < MAX_PROPERTIES:
        restored[ORIGIN] = first
    return uri, PutMessage(letter.data, restored or None, derived_guid(letter.guid, uri, "back"))


def _rest(text: object) -> list[tuple[str, PropertyInput]]:
    """Return the properties that could not be posted with the dead letter."""
    if not isinstance(text, str):
        return []
    found: list[tuple[str, PropertyInput]] = []
    try:
        for name, kind, value in cast("list[Any]", json.loads(text)):
            number = PropertyType[kind]
            raw = number in (PropertyType.CHAR, PropertyType.BINARY)
            found.append((str(name), PropertyValue(number, base64.b64decode(value) if raw else value)))
    except (ValueError, KeyError, TypeError):
        return []  # another program's property
    return found


def _legal(name: str, value: PropertyInput) -> bool:
    try:
        encode_properties({name: value}, new=True)
    except UsageError:
        return False
    return True
