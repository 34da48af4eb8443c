# SPDX-License-Identifier: Apache-2.0
"""Templates of messages: text with placeholders, such as ``{{counter}}``, for ``bmq post`` and ``bmq bench``.

A template is parsed once, before the first message: an unknown placeholder, a wrong argument and a missing
column are errors with their position.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

from bmq import _world
from bmq.cli.output import BadInput

#: Values of a row of data, by column.
Row = Mapping[str, Any]
_Part = Callable[[int, Row], object]
_PLACEHOLDER: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_MOST: Final = 2**63
#: The placeholders, for people.
PLACEHOLDERS: Final = (
    "{{counter}}, {{counter:FROM}}, {{uuid}}, {{now}}, {{now:s}}, {{now:ms}}, {{random:LOW:HIGH}} and "
    "{{row.COLUMN}}, each also with |json"
)


class Template:
    """A text with placeholders.

    Args:
        text: the text; ``{{...}}`` is a placeholder.
        where: name of the template, for errors.

    Raises:
        BadInput: a placeholder is unknown or has a wrong argument.
    """

    def __init__(self, text: str, where: str) -> None:
        #: Columns of the rows that the template needs, in order of appearance.
        self.columns: list[str] = []
        self._parts: list[str | _Part] = []
        end = 0
        for found in _PLACEHOLDER.finditer(text):
            self._parts += [text[end : found.start()], self._placeholder(found[1].strip(), where)]
            end = found.end()
        rest = text[end:]
        if "{{" in rest:
            raise BadInput(f"{where}: a placeholder ends with }}}}: {rest[rest.index('{{') :][:40]!r}")
        self._parts.append(rest)

    def fill(self, number: int, row: Row) -> str:
        """Return the text of a message.

        Args:
            number: number of the message, from 0.
            row: values by column.
        """
        return "".join(part if isinstance(part, str) else _text(part(number, row)) for part in self._parts)

    def _placeholder(self, text: str, where: str) -> _Part:
        name, _, mark = text.partition("|")
        made = self._value(name.strip(), where)
        if not mark:
            return made
        if mark.strip() != "json":
            raise BadInput(
                f"{where}: {{{{{text}}}}} has the unknown filter {mark.strip()!r}; the filter is json"
            )
        return lambda number, row: json.dumps(made(number, row), default=str)

    def _value(self, text: str, where: str) -> _Part:
        name, *arguments = text.split(":")
        if name.startswith("row.") and not arguments:
            column = name[len("row.") :]
            self.columns.append(column)
            return lambda number, row: row[column]
        match name, arguments:
            case "counter", []:
                return lambda number, row: number + 1
            case "counter", [start]:
                first = _integer(start, text, where)
                return lambda number, row: number + first
            case "uuid", []:
                return lambda number, row: str(_world.uuid4())
            case "now", []:
                return lambda number, row: datetime.fromtimestamp(_world.time(), UTC).isoformat()
            case "now", ["s"]:
                return lambda number, row: int(_world.time())
            case "now", ["ms"]:
                return lambda number, row: int(_world.time() * 1000)
            case "random", [low, high]:
                least, most = _integer(low, text, where), _integer(high, text, where)
                if least > most:
                    raise BadInput(f"{where}: {{{{{text}}}}} needs LOW <= HIGH")
                return lambda number, row: _world.rng().randint(least, most)
            case _:
                raise BadInput(f"{where}: unknown placeholder {{{{{text[:60]}}}}}; use {PLACEHOLDERS}")


def _integer(text: str, whole: str, where: str) -> int:
    digits = text[1:] if text[:1] == "-" else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or abs(int(text)) >= _MOST:
        raise BadInput(f"{where}: {{{{{whole}}}}} needs whole numbers between -2^63 and 2^63, not {text!r}")
    return int(text)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, bool | dict | list) or value is None else str(value)


def read_rows(name: str, columns: list[str]) -> list[Row]:
    """Return the rows of a file: CSV with a header, or JSON lines in a file whose name ends in json or jsonl.

    Args:
        name: name of the file.
        columns: columns that every row needs.

    Raises:
        BadInput: a row is malformed, or has not every column.
        OSError: the file cannot be read.
    """
    path = Path(name)
    as_json = path.suffix.lower() in (".json", ".jsonl", ".ndjson")
    rows: list[Row] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, row in _json_rows(file, name) if as_json else _csv_rows(file, name):
                for column in columns:
                    if column not in row:
                        known = ", ".join(map(str, row)) or "none"
                        raise BadInput(
                            f"{name}, line {number}: no column {column!r}; the columns are {known}"
                        )
                rows.append(row)
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{name} must be UTF-8, but line {len(rows) + 1} or a later line is not: {error}"
        ) from None
    if not rows:
        raise BadInput(f"{name} has no rows")
    return rows


def _json_rows(file: Any, name: str) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            decoded: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{name}, line {number}: not JSON: {error}") from None
        if not isinstance(decoded, dict):
            raise BadInput(f"{name}, line {number}: a row must be a JSON object")
        yield number, cast("dict[str, Any]", decoded)


def _csv_rows(file: Any, name: str) -> Iterator[tuple[int, Row]]:
    reader = csv.reader(file)
    try:
        header = next(reader, list[str]())
        if len(set(header)) != len(header):
            raise BadInput(f"{name}: two columns have the same name: {', '.join(header)}")
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise BadInput(
                    f"{name}, line {reader.line_num}: {len(cells)} cells, and the header has {len(header)}"
                )
            yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise BadInput(f"{name}, line {reader.line_num}: {error}") from None
