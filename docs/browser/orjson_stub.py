# SPDX-License-Identifier: Apache-2.0
"""The part of orjson that bmq uses, on the standard library's json: Pyodide's own build has no orjson."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

JSONDecodeError = json.JSONDecodeError
JSONEncodeError = TypeError
OPT_INDENT_2 = 1
OPT_SORT_KEYS = 32
OPT_NON_STR_KEYS = 4
OPT_APPEND_NEWLINE = 1024
OPT_PASSTHROUGH_DATACLASS = 2048
OPT_PASSTHROUGH_SUBCLASS = 256
OPT_PASSTHROUGH_DATETIME = 512
OPT_NAIVE_UTC = 2
OPT_UTC_Z = 128


def loads(data: bytes | bytearray | memoryview | str) -> Any:
    return json.loads(data if isinstance(data, str) else bytes(data), parse_constant=_refuse)


def dumps(value: object, default: Callable[[Any], Any] | None = None, option: int | None = None) -> bytes:
    option = option or 0
    indent = 2 if option & OPT_INDENT_2 else None
    text = json.dumps(
        value,
        default=default,
        sort_keys=bool(option & OPT_SORT_KEYS),
        indent=indent,
        ensure_ascii=False,
        separators=None if indent else (",", ":"),
    )
    return (text + "\n" * bool(option & OPT_APPEND_NEWLINE)).encode()


def _refuse(constant: str) -> Any:
    raise JSONDecodeError(f"{constant} is no JSON", constant, 0)
