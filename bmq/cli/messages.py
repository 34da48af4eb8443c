# SPDX-License-Identifier: Apache-2.0
"""Messages as text: properties on the command line, and one JSON object for each message (NDJSON)."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

import bmq
from bmq._json import orjson
from bmq.cli.output import BadInput, note, printable
from bmq.wire.properties import PropertyInput, typed_value

#: Fields of a message as a record; a payload that is not UTF-8 is in ``base64``.
MESSAGE_FIELDS = ("guid", "queue", "properties", "types", "data", "base64")
_TRUTH = {"true": True, "false": False}
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


# ---- properties


def parse_properties(texts: list[str] | None) -> dict[str, PropertyInput]:
    """Parse ``NAME=VALUE`` and ``NAME:TYPE=VALUE``.

    Without a type, ``true`` and ``false`` are bool, whole numbers int64, and other texts string: a note warns
    of other numbers.

    Raises:
        BadInput: a text has neither form.
    """
    properties: dict[str, PropertyInput] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        name, colon, kind = name.rpartition(":") if ":" in name else (name, "", "")
        if not equals or not name:
            raise BadInput(f"property {text!r}: the form is NAME=VALUE, or NAME:TYPE=VALUE")
        properties[name] = _typed(name, kind, value) if colon else _guessed(value)
        if not colon and isinstance(properties[name], str) and _is_number(value):
            note(
                f"property {name} is posted as the string {value!r}: only whole numbers from -2^63 to "
                "2^63-1 become integers"
            )
    return properties


def assumed_types(texts: list[str] | None) -> str:
    """Name the types other than text that :func:`parse_properties` takes for values without a type."""
    told: list[str] = []
    for text in texts or ():
        name, _, value = text.partition("=")
        guess = "" if ":" in name else _guessed(value)
        if not isinstance(guess, str):
            told.append(f"{name} is taken as {'BOOL' if isinstance(guess, bool) else 'INT64'}")
    return f"{'; '.join(told)}: for a message with another type, give NAME:TYPE=VALUE" if told else ""


def _is_number(value: str) -> bool:
    """Whether a text is a number, including numbers that properties cannot hold."""
    try:
        return value.isascii() and math.isfinite(float(value))
    except ValueError:
        return False


def _guessed(value: str) -> PropertyInput:
    if value in _TRUTH:
        return _TRUTH[value]
    digits = value[1:] if value[:1] == "-" else value
    if digits.isascii() and digits.isdigit() and -(2**63) <= int(value) < 2**63:
        return int(value)
    return value


def _typed(name: str, kind: str, value: object) -> PropertyInput:
    try:
        return typed_value(kind, str(value))
    except ValueError as error:
        raise BadInput(f"property {name!r}: {error}") from error


def property_text(properties: Mapping[str, object]) -> str:
    """Return properties for people: ``CustomerId=7 OrderType="EXPRESS"``."""
    return " ".join(f"{printable(name)}={_value_text(value)}" for name, value in properties.items())


def _value_text(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case bytes():
            return "0x" + value.hex()
        case _:
            return '"' + printable(str(value)) + '"'


# ---- NDJSON


def text_or_base64(data: bytes) -> dict[str, str]:
    """Return a payload as a member of a JSON object: as text if the payload is UTF-8."""
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def to_json(message: bmq.Message) -> dict[str, Any]:
    """Return a received message in the form of :func:`from_json`."""
    made: dict[str, Any] = {"guid": message.guid, "queue": message.queue_uri}
    properties = message.properties
    if properties:
        made["properties"] = {
            name: value.hex() if isinstance(value, bytes) else value for name, value in properties.items()
        }
        made["types"] = {name: kind.name.lower() for name, kind in properties.types.items()}
    return made | text_or_base64(message.data)


def from_json(line: bytes) -> bmq.PutMessage:
    """Parse one line of NDJSON: an object with ``data`` (text), ``json`` (any value) or ``base64``.

    ``properties`` are values by name, ``types`` names their types if needed, ``tags`` is a list.

    Raises:
        BadInput: the line has another form.
    """
    try:
        # Lone surrogates, for bytes of a property that are not UTF-8: json reads them, and orjson does not.
        decoded = json.loads(line) if _SURROGATE.search(line) else orjson.loads(line)
    except (ValueError, RecursionError) as error:
        cut = "" if line.endswith(b"\n") else " (the input ends in the middle of this line)"
        raise BadInput(f"not JSON{cut}: {error}") from None
    try:
        entry = msgspec.convert(decoded, _Entry)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise BadInput(f'not a message, such as {{"data": "hello"}}: {error}') from None
    types = entry.types or {}
    properties = {
        name: _typed(name, types[name], value) if name in types else value
        for name, value in (entry.properties or {}).items()
    }
    return bmq.PutMessage(_payload(entry), properties or None, tags=entry.tags or ())


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """A line of NDJSON; ``guid`` and ``queue`` are those of a received message, and have no effect."""

    data: str | UnsetType = UNSET
    json: Any = UNSET
    base64: bytes | UnsetType = UNSET
    properties: dict[str, bool | int | str] | None = None
    types: dict[str, str] | None = None
    tags: list[str] | None = None
    guid: str = ""
    queue: str = ""


def _payload(entry: _Entry) -> bytes:
    given = {
        name: value for name in ("data", "json", "base64") if (value := getattr(entry, name)) is not UNSET
    }
    if len(given) != 1:
        raise BadInput("a message must have exactly one of data, json and base64")
    ((name, value),) = given.items()
    try:
        return value if name == "base64" else value.encode() if name == "data" else orjson.dumps(value)
    except (TypeError, UnicodeEncodeError) as error:
        raise BadInput(f"{name} is not UTF-8: {error}; use base64 for such a payload") from None
