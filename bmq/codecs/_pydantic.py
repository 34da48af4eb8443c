# SPDX-License-Identifier: Apache-2.0
"""JSON of pydantic's models and dataclasses."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from bmq.codecs._msgspec import JSON

__all__ = ["PydanticJson"]


class PydanticJson:
    """JSON as pydantic writes and validates it, with aliases."""

    content_type = JSON

    def __init__(self, of: Any) -> None:
        self._adapter: TypeAdapter[Any] = TypeAdapter(of)
        self.decode = self._adapter.validate_json

    def encode(self, value: Any) -> bytes:
        """Return the JSON text."""
        return self._adapter.dump_json(value, by_alias=True)

    def json_schema(self) -> dict[str, Any]:
        """Return the schema of the values."""
        return self._adapter.json_schema()
