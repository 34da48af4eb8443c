# SPDX-License-Identifier: Apache-2.0
"""The types of properties in a map of strings, so that a copied message keeps them.

The column ``properties`` of a queue is a map of strings. If a message has properties of other types, its map
has one more entry with these types. The sink turns the entry back into types, and posts no property of this
name.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from bmq.errors import InvalidProperty
from bmq.wire.constants import PropertyType

__all__ = ["TYPES", "restored"]

#: Name of the entry: a JSON object of names and types.
TYPES: Final = "bmq_types"
_TRUTHS = {"true": True, "false": False}


def restored(entries: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, PropertyType]]:
    """Return the properties of a map with their values in their types, and the types.

    Raises:
        InvalidProperty: a value does not have its type, or the entry with the types is malformed.
    """
    kinds = _kinds(entries.get(TYPES) or "{}")
    values: dict[str, Any] = {}
    types: dict[str, PropertyType] = {}
    for name, text in entries.items():
        if name == TYPES:
            continue
        values[name] = text
        if isinstance(text, str):
            kind = kinds.get(name, PropertyType.STRING)
            try:
                values[name] = _value(text, kind)
            except (KeyError, ValueError):
                raise InvalidProperty(
                    f"property {name!r} has the text {text!r:.60}, which is no {kind.name}: the entry "
                    f"{TYPES!r} of the map names this type. Change the value, or remove the entry"
                ) from None
            # Spark has no type for a single character. The broker compares it as a number, like a SHORT.
            types[name] = PropertyType.SHORT if kind is PropertyType.CHAR else kind
    return values, types


@lru_cache(256)
def _kinds(text: str) -> dict[str, PropertyType]:
    try:
        return {name: PropertyType[kind] for name, kind in json.loads(text).items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidProperty(
            f"the entry {TYPES!r} of a map of properties must be a JSON object of names and types, as in the "
            f"rows of a queue, not {text!r:.60}"
        ) from None


def _value(text: str, kind: PropertyType) -> Any:
    if kind is PropertyType.STRING:
        return text
    if kind is PropertyType.BOOL:
        return _TRUTHS[text]
    if kind is PropertyType.BINARY:
        return base64.b64decode(text, validate=True)
    if kind is PropertyType.CHAR:
        (number,) = base64.b64decode(text, validate=True)
        return number
    return int(text)
