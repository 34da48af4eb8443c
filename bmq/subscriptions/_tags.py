# SPDX-License-Identifier: Apache-2.0
"""Tags on messages, as properties for subscriptions to test.

The expression language has no sets, so each tag becomes a property: a message tagged ``urgent`` has
``t.urgent`` = true, and ``exists(t.urgent)`` tests the tag. ``exists`` never ends in an error, regardless of
a message's properties. A tag filter is therefore the only kind of filter with an exact opposite.

A tag can be any string. In the name of the property, ASCII letters, digits, ``.`` and ``_`` are unchanged.
Any other byte of the UTF-8 form becomes ``__`` and two lower-case hexadecimal digits, and so does an
underscore directly before another underscore or before an encoded byte. If shorter, as for non-Latin text,
the name is ``__.`` and the UTF-8 form in base 64, with ``_`` and ``.`` for the 62nd and 63rd digits and
without padding.
"""

from __future__ import annotations

import re
from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Iterable, Mapping, Set
from typing import Any, Final

from bmq import _checks
from bmq.errors import InvalidProperty, ProtocolError, UsageError
from bmq.wire.constants import PropertyType
from bmq.wire.properties import Properties, PropertyInput, PropertyValue

__all__ = [
    "MAX_TAG_LENGTH",
    "TAG_PREFIX",
    "pulsar_properties",
    "pulsar_tags",
    "tag_name",
    "tag_names",
    "tag_properties",
    "tags_of",
    "with_pulsar_tags",
]

TAG_PREFIX: Final = "t."
#: Maximum length of an encoded tag: beyond this length, not even ``!exists(t.<tag>)`` is a legal expression.
MAX_TAG_LENGTH: Final = 117

_PULSAR_PREFIX: Final = "tag"
_ESCAPED: Final = re.compile(rb"[^A-Za-z0-9._]|_(?=[^A-Za-z0-9.])")
_ESCAPE: Final = re.compile(rb"__([0-9a-f]{2})")
# Plain names never have a dot after two underscores.
_DENSE: Final = b"__."
_DIGITS: Final = (b"+/", b"_.")


def tag_name(tag: str) -> str:
    """Return the name of the property for a tag.

    Different tags have different names, and :func:`tags_of` returns the tags again.

    Raises:
        InvalidProperty: the tag is too long for an expression, or cannot be encoded as UTF-8.
    """
    if not isinstance(tag, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a tag must be a str, not {_checks.shown(tag)}")
    try:
        raw = str.encode(tag, "utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidProperty(
            f"tag {tag[:40]!r} has half of a surrogate pair, which UTF-8 cannot encode"
        ) from None
    plain = _ESCAPED.sub(lambda found: b"__%02x" % found.group()[0], raw)
    dense = _DENSE + b2a_base64(raw, newline=False).rstrip(b"=").translate(bytes.maketrans(*_DIGITS))
    name = min(plain, dense, key=len).decode("ascii")
    if len(name) > MAX_TAG_LENGTH:
        raise InvalidProperty(
            f"tag {tag[:40]!r}… needs a property name of {len(name)} characters; subscriptions can select "
            f"up to {MAX_TAG_LENGTH}"
        )
    return TAG_PREFIX + name


def tag_properties(tags: Iterable[str]) -> dict[str, bool]:
    """Return the properties of a message with the given tags, as added by ``post`` for ``tags=``.

    >>> tag_properties(["urgent", "high-priority"])
    {'t.high__2dpriority': True, 't.urgent': True}

    Raises:
        InvalidProperty: a tag is too long for an expression, or cannot be encoded as UTF-8.
        UsageError: ``tags`` is a single string.
    """
    return dict.fromkeys(map(tag_name, distinct(tags)), True)


def distinct(tags: Iterable[str]) -> tuple[str, ...]:
    """Return each tag once, sorted: equal filters have equal texts, to be merged by the broker."""
    if isinstance(tags, str):
        raise UsageError(f"tags is a collection of strings, not one string: write {{{tags!r}}}")
    given: list[str] = _checks.items("tags", tags, "strings")
    for tag in given:
        tag_name(tag)
    return tuple(sorted(set(given)))


def tags_of(properties: Mapping[str, PropertyInput] | None) -> frozenset[str]:
    """Return the tags of a message, from the properties."""
    tags: set[str] = set()
    for name, value in _typed(properties).items():
        if isinstance(name, str) and name.startswith(TAG_PREFIX) and not _is_binary(value):
            # A name unlike any tag's (for example ``t.a__``) comes from elsewhere, and is never tested by a
            # filter.
            try:
                text = _decoded(name)
                if tag_name(text) == name:
                    tags.add(text)
            except (Error, InvalidProperty):
                continue
    return frozenset(tags)


def tag_names(properties: Properties) -> Set[str]:
    """Return the names of a message's properties: of tags, and of all further properties."""
    if properties.plain is not None:
        return properties.plain.keys()
    try:
        types = properties.types
    except ProtocolError:  # undecodable for the broker, too, and treated as absent
        return frozenset()
    return {name for name, kind in types.items() if kind is not PropertyType.BINARY}


def _decoded(name: str) -> str:
    raw = name.removeprefix(TAG_PREFIX).encode("utf-8", "surrogateescape")
    if raw.startswith(_DENSE):
        digits = raw.removeprefix(_DENSE).translate(bytes.maketrans(*reversed(_DIGITS)))
        return a2b_base64(digits + b"=" * (-len(digits) % 4)).decode("utf-8", "surrogateescape")
    return _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), raw).decode("utf-8", "surrogateescape")


def _typed(properties: Mapping[str, PropertyInput] | None) -> Mapping[Any, PropertyInput]:
    if not isinstance(properties, Properties):
        return {} if properties is None else _checks.mapping("properties", properties)
    try:
        return properties.typed()
    except ProtocolError:  # undecodable for the broker, too, and treated as absent
        return {}


def _is_binary(value: PropertyInput) -> bool:
    if isinstance(value, PropertyValue):
        return value.type is PropertyType.BINARY
    return isinstance(value, bytes | bytearray | memoryview)


# ---- Pulsar's convention: the values of string properties with names starting with "tag"


def pulsar_properties(tags: Iterable[str]) -> dict[str, str]:
    """Return tags in Pulsar's form: ``tag0``, ``tag1``, ... with the tags as values."""
    return {f"{_PULSAR_PREFIX}{i}": tag for i, tag in enumerate(distinct(tags))}


def pulsar_tags(properties: Mapping[str, PropertyInput] | None) -> frozenset[str]:
    """Return the tags of a message in Pulsar's form: the values of STRING properties called ``tag...``."""
    values: set[str] = set()
    for name, value in _typed(properties).items():
        text = (
            value.value if isinstance(value, PropertyValue) and value.type is PropertyType.STRING else value
        )
        if isinstance(name, str) and name.startswith(_PULSAR_PREFIX) and isinstance(text, str):
            values.add(text)
    return frozenset(values)


def with_pulsar_tags(properties: Mapping[str, PropertyInput]) -> dict[str, PropertyInput]:
    """Return a copy of properties, with tags in Pulsar's form added in the form of :func:`tag_properties`.

    For producers written for Pulsar: ``{"tag0": "urgent"}`` becomes ``{"tag0": "urgent", "t.urgent": True}``,
    for subscriptions to test.

    Raises:
        InvalidProperty: a tag is too long for an expression.
    """
    return {**_typed(properties), **tag_properties(pulsar_tags(properties))}
