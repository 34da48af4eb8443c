# SPDX-License-Identifier: Apache-2.0
"""JSON schemas of the types of :class:`bmq.codecs._json.Json`: the values that the codec accepts."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from datetime import date, datetime, time
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

__all__ = ["json_schema"]

_PLAIN: dict[Any, dict[str, Any]] = {
    None: {"type": "null"},
    type(None): {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
    time: {"type": "string", "format": "time"},
    UUID: {"type": "string", "format": "uuid"},
}


def json_schema(of: Any) -> dict[str, Any]:
    """Return the schema of a type, with the schemas of classes in ``$defs``."""
    schemas = _Schemas()
    made = schemas.schema(of)
    return {**made, "$defs": schemas.definitions} if schemas.definitions else made


class _Schemas:
    def __init__(self) -> None:
        self.definitions: dict[str, dict[str, Any]] = {}
        self._names: dict[Any, str] = {}

    def schema(self, of: Any) -> dict[str, Any]:
        """Return the schema of a type; any value is legal for an unknown type."""
        if isinstance(of, NewType):
            return self.schema(of.__supertype__)
        origin, arguments = get_origin(of), get_args(of)
        if origin is Annotated:
            return self.schema(arguments[0])
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.schema(each) for each in arguments]}
        if origin in (list, Sequence) or of is list:
            return {"type": "array", **({"items": self.schema(arguments[0])} if arguments else {})}
        if origin is tuple:
            if len(arguments) == 2 and arguments[1] is ...:
                return {"type": "array", "items": self.schema(arguments[0])}
            size = {"minItems": len(arguments), "maxItems": len(arguments)}
            return {"type": "array", "prefixItems": [self.schema(each) for each in arguments], **size}
        if origin in (dict, Mapping) or of is dict:
            values = {"additionalProperties": self.schema(arguments[1])} if arguments else {}
            return {"type": "object", **values}
        record = dataclasses.is_dataclass(of) or is_typeddict(of)
        if inspect.isclass(of) and (record or issubclass(of, enum.Enum)):
            return {"$ref": f"#/$defs/{self._defined(of)}"}
        return {**_PLAIN.get(of, {})}

    def _defined(self, of: type) -> str:
        """Return the name of the definition of a class."""
        if of not in self._names:
            name, number = of.__name__, 1
            while name in self.definitions:
                number += 1
                name = f"{of.__name__}-{number}"
            self._names[of] = name
            self.definitions[name] = {}  # the class may contain itself
            self.definitions[name] = self._enumeration(of) if issubclass(of, enum.Enum) else self._record(of)
        return self._names[of]

    def _enumeration(self, of: type[enum.Enum]) -> dict[str, Any]:
        return {"title": of.__name__, **_description(of), "enum": [member.value for member in of]}

    def _record(self, of: Any) -> dict[str, Any]:
        hints = get_type_hints(of, include_extras=True)
        properties: dict[str, Any] = {}
        required: list[str] = []
        if is_typeddict(of):
            for name, hint in hints.items():
                inner = get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint
                properties[name] = self.schema(inner)
                if name in of.__required_keys__ and get_origin(hint) is not NotRequired:
                    required.append(name)
        else:
            for field in dataclasses.fields(of):
                if not field.init:
                    continue
                properties[field.name] = self.schema(hints[field.name])
                if field.default is MISSING and field.default_factory is MISSING:
                    required.append(field.name)
                elif isinstance(field.default, bool | int | float | str | None):
                    properties[field.name] |= {"default": field.default}
        needed = {"required": required} if required else {}
        return {
            "title": of.__name__,
            **_description(of),
            "type": "object",
            "properties": properties,
            **needed,
        }


def _description(of: type) -> dict[str, str]:
    """Return the docstring of a class, without the docstrings that Python makes."""
    text = inspect.cleandoc(of.__doc__ or "")
    made = not text or text.startswith(f"{of.__name__}(") or text == (enum.Enum.__doc__ or "")
    inherited = text in ("An enumeration.", inspect.cleandoc(dict.__doc__ or ""))
    return {} if made or inherited else {"description": text}
