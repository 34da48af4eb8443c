# SPDX-License-Identifier: Apache-2.0
"""Payloads and properties, as given by applications."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bmq import _checks
from bmq.conventions import BUCKET
from bmq.errors import InvalidPayload, InvalidProperty
from bmq.wire.constants import MAX_APPLICATION_DATA
from bmq.wire.keys import Key, key_bucket
from bmq.wire.properties import PropertyInput

__all__ = ["NO_TAGS", "as_bytes", "checked_properties", "completed", "wrong_size"]

#: The default of ``tags``: posts with this very tuple have no tags, and skip all work for tags.
NO_TAGS: tuple[str, ...] = ()


def completed(
    properties: Mapping[str, PropertyInput] | None, tags: Iterable[str], key: Key | None
) -> Mapping[str, PropertyInput] | None:
    """Return properties, extended by tags and the bucket of a key."""
    from bmq.subscriptions import tag_properties

    added: dict[str, PropertyInput] = dict(tag_properties(tags))
    if key is not None:
        added[BUCKET] = key_bucket(key)
    return {**checked_properties(properties), **added} if added else properties


def checked_properties(properties: Mapping[str, PropertyInput] | None) -> Mapping[str, PropertyInput]:
    """Return properties; an empty mapping for None. Names and values are checked during encoding.

    Raises:
        InvalidProperty: the value is not a mapping.
    """
    if properties is None:
        return {}
    if not isinstance(properties, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidProperty(
            f"properties must be a mapping of names to values, not {_checks.shown(properties)}"
        )
    return properties


def as_bytes(payload: object) -> bytes:
    """Return a payload as bytes.

    Raises:
        InvalidPayload: the value is not bytes.
    """
    if isinstance(payload, bytes | bytearray | memoryview):
        return _checks.octets("payload", payload)  # pyright: ignore[reportUnknownArgumentType]
    hint = "; encode the text first: text.encode()" if isinstance(payload, str) else ""
    raise InvalidPayload(f"a payload must be bytes, not {type(payload).__name__}{hint}")


def wrong_size(size: int) -> InvalidPayload:
    """Return the error for a payload with an impossible size."""
    if not size:
        return InvalidPayload("the payload is empty; BlazingMQ messages have at least one byte")
    return InvalidPayload(
        f"the payload has {size:,} bytes; a message has at most {MAX_APPLICATION_DATA:,} (64 MiB)"
    )
