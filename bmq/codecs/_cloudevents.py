# SPDX-License-Identifier: Apache-2.0
"""CloudEvents in binary mode: the attributes are properties, the payload is the event's data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

from bmq import _checks, _world
from bmq.errors import UsageError
from bmq.wire.properties import PlainValue, Properties, PropertyInput

__all__ = ["ATTRIBUTES", "CloudEvent", "attributes_of", "event_of"]

T = TypeVar("T")

PREFIX: Final = "ce_"
_REQUIRED: Final = ("id", "source", "type")
_OPTIONAL: Final = ("subject", "dataschema")
_OWN: Final = frozenset({"specversion", "time", "datacontenttype", "data", *_REQUIRED, *_OPTIONAL})

#: The properties of all attributes except extensions, all of type STRING.
ATTRIBUTES: Final = tuple(f"{PREFIX}{name}" for name in ("specversion", *_REQUIRED, *_OPTIONAL, "time"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudEvent(Generic[T]):
    """An event after CloudEvents 1.0, with data of a type.

    In a message every attribute is a property named ``ce_`` and the attribute's name, so that subscriptions
    can select by it. The exception is ``datacontenttype``, which is ``bmq_content_type``. The payload is the
    data. ::

        events = queue.typed(bmq.CloudEvent[Order])
        event = bmq.CloudEvent(type="order.placed", source="/shop", data=order)
        await events.post(event)

    Attributes:
        data: content of the event.
        type: kind of the event.
        source: origin of the event: a URI, or a part of one.
        id: identifier, unique within the source.
        subject: subject of the event, within the source.
        time: time of the event; UTC if without a time zone.
        dataschema: URI of the data's schema.
        extensions: other attributes: bool, int, str or bytes by name, of lower-case letters and digits.

    Raises:
        UsageError: an attribute has an illegal name, or a required attribute is empty.
    """

    data: T
    type: str
    source: str
    id: str = field(default_factory=lambda: str(_world.uuid4()))
    subject: str | None = None
    time: datetime | None = None
    dataschema: str | None = None
    extensions: Mapping[str, PlainValue] = field(default_factory=dict[str, PlainValue])

    def __post_init__(self) -> None:
        for name in _REQUIRED:
            if _checks.text(name, getattr(self, name)) == "":
                raise UsageError(f"{name} of an event must not be empty")
        for name in _OPTIONAL:
            _checks.optional(_checks.text, name, getattr(self, name))
        if self.time is not None:
            _checks.instance("time", self.time, datetime, "a datetime or None")
        for name in _checks.mapping("extensions", self.extensions):
            _checks.text("an extension's name", name)
            legal = name.isascii() and name.isalnum() and name == name.lower()
            if not legal or name in _OWN:
                raise UsageError(
                    "an extension's name must consist of lower-case letters and digits, and must not be "
                    f"the name of an attribute: {name!r}"
                )


def attributes_of(event: CloudEvent[Any]) -> dict[str, PropertyInput]:
    """Return an event's attributes as properties."""
    properties: dict[str, PropertyInput] = {f"{PREFIX}specversion": "1.0"}
    for name in (*_REQUIRED, *_OPTIONAL):
        value = getattr(event, name)
        if value is not None:
            properties[PREFIX + name] = value
    if event.time is not None:
        time = event.time if event.time.tzinfo else event.time.replace(tzinfo=UTC)
        properties[f"{PREFIX}time"] = time.isoformat()
    for name, extension in event.extensions.items():
        properties[PREFIX + name] = extension
    return properties


def event_of(data: T, properties: Properties) -> CloudEvent[T]:
    """Return the event in a message.

    Raises:
        ValueError: the message has no event, or an event that is not legal.
    """
    version = properties.get(f"{PREFIX}specversion")
    if version is None:
        raise ValueError("not a CloudEvent: ce_specversion is missing")
    if version != "1.0":
        raise ValueError(f"the CloudEvent has version {version!r}; only 1.0 is supported")
    attributes: dict[str, Any] = {}
    extensions: dict[str, PlainValue] = {}
    for name, value in properties.items():
        if not name.startswith(PREFIX):
            continue
        name = name.removeprefix(PREFIX)
        if name not in _OWN:
            extensions[name] = value
        elif name != "specversion":
            if not isinstance(value, str):
                raise ValueError(f"ce_{name} is not text")
            attributes[name] = datetime.fromisoformat(value) if name == "time" else value
    missing = [name for name in _REQUIRED if not attributes.get(name)]
    if missing:
        raise ValueError(f"the event has no {', '.join(missing)}")
    return CloudEvent(data=data, extensions=extensions, **attributes)
