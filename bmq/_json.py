# SPDX-License-Identifier: Apache-2.0
"""The JSON library: orjson, or msgspec where orjson cannot be installed.

orjson has no wheels for free-threaded interpreters and for the browser. Everything in bmq imports the library
from here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

__all__ = ["MsgspecJson", "orjson"]

_Default = Callable[[Any], Any]


class MsgspecJson:
    """The part of orjson that bmq uses, on msgspec. ``docs/reference/supported.md`` lists the differences."""

    JSONDecodeError = json.JSONDecodeError
    JSONEncodeError = TypeError
    OPT_INDENT_2 = 1

    @staticmethod
    def loads(data: bytes | bytearray | memoryview | str) -> Any:
        """Return the value of a JSON text.

        Raises:
            JSONDecodeError: the text is not JSON, not UTF-8, or nested too deeply.
        """
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            problem = str(error)
        place = re.search(r"\(byte (\d+)\)", problem)
        try:
            text = data if isinstance(data, str) else str(data, "utf-8")
            end = int(place[1]) - ("trailing characters" in problem) if place else None
            pos = len(text.encode()[:end].decode(errors="ignore"))
        except UnicodeError:
            text, pos = "", 0
        raise json.JSONDecodeError(problem, text, pos)

    @staticmethod
    def dumps(value: object, default: _Default | None = None, option: int | None = None) -> bytes:
        """Return a value as JSON.

        Args:
            value: the value.
            default: replaces a value of another type.
            option: OPT_INDENT_2, or None.

        Raises:
            JSONEncodeError: a value or a key has another type, or a text has half of a surrogate pair.
        """

        def replaced(other: Any) -> Any:
            for plain in (str, int, float):
                if isinstance(other, plain):  # of a class derived from it
                    return plain(other)
            problem = f"Type is not JSON serializable: {type(other).__name__}"
            if default is None:
                raise TypeError(problem)
            try:
                return default(other)
            except Exception as error:
                raise TypeError(problem) from error

        try:
            made = msgspec.json.encode(value, enc_hook=replaced)
        except (ValueError, RecursionError) as error:
            raise TypeError(str(error)) from None
        return msgspec.json.format(made, indent=2) if option == MsgspecJson.OPT_INDENT_2 else made


try:
    import orjson
except ModuleNotFoundError:  # pragma: no cover
    orjson = MsgspecJson  # type: ignore[assignment]
