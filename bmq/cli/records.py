# SPDX-License-Identifier: Apache-2.0
"""``--output``: the rows of a verb as a table, as JSON lines or as CSV.

A verb with data has a dataclass of a row. It writes each row through :class:`Records`, or prints all rows
with :func:`show`. The names of the fields are stable, and equal in JSON and CSV. Tables are for people, and
may change.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from enum import Enum, StrEnum
from typing import Any, TypeVar, cast

from bmq._json import orjson
from bmq.cli.output import BadInput, emit, emit_json, jsonable, printable

Row = TypeVar("Row")
#: A field without a value: JSON has no such member, and the cell of CSV is empty.
ABSENT: Any = object()


class Form(StrEnum):
    """The form of a verb's data."""

    #: Tables and sentences for people.
    TABLE = "table"
    #: One JSON object a line.
    JSON = "json"
    #: Comma-separated values, with the names of the fields in the first line.
    CSV = "csv"


def form_of(output: Form, *, json: bool) -> Form:
    """Return the form that ``--output`` and ``--json`` choose together.

    Raises:
        BadInput: the options contradict each other.
    """
    if json and output is Form.CSV:
        raise BadInput("--json and --output csv exclude each other: give one of the two")
    return Form.JSON if json else output


def fields_of(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a row: of a dataclass, or of an answer of a broker."""
    if hasattr(kind, "__struct_fields__"):
        return tuple(kind.__struct_fields__)
    return tuple(each.name for each in fields(kind))


def show(
    form: Form,
    names: Sequence[str],
    rows: Sequence[Row],
    columns: Mapping[str, Callable[[Row], object]],
    **common: object,
) -> None:
    """Print rows as a table, as JSON lines or as CSV; without rows, nothing or the first line of CSV.

    Args:
        form: the form.
        names: names of the fields, in order.
        rows: objects with these fields.
        columns: the cells of the table by the name of their column, as of :func:`bmq.cli.consoles.table`.
        common: fields that all rows share.
    """
    if records := Records.of(form, names):
        for row in rows:
            records.write({name: common.get(name, getattr(row, name, ABSENT)) for name in names})
    elif rows:
        from bmq.cli.consoles import out, table

        out().print(table([*columns], [[cell(row) for cell in columns.values()] for row in rows]))


class Records:
    """Writes records to stdout, as JSON lines or as CSV.

    As CSV, a record without a field has an empty cell. Lists and objects are JSON in a cell, and control
    characters are escapes (``\\n``), so that a record is a line.
    """

    def __init__(self, form: Form, names: Sequence[str]) -> None:
        self._form = form
        self._names = names
        if form is Form.CSV:
            self._line(list(names))

    @classmethod
    def of(cls, form: Form, names: Sequence[str]) -> Records | None:
        """Return a writer of records with these fields; None for a table."""
        return None if form is Form.TABLE else cls(form, names)

    def write(self, row: object, *, flush: bool = False) -> None:
        """Write a row: an object with the fields, or a dict, whose other members appear in JSON only.

        With ``flush``, a reader of a pipe sees the record at once.
        """
        record = (
            cast("dict[str, Any]", row)
            if isinstance(row, dict)
            else {name: getattr(row, name) for name in self._names}
        )
        if self._form is Form.CSV:
            self._line([cell(record.get(name)) for name in self._names])
        else:
            emit_json({name: value for name, value in record.items() if value is not ABSENT})
        if flush:
            sys.stdout.flush()

    def _line(self, cells: list[str]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        emit(text.getvalue().removesuffix("\n"))


def cell(value: Any) -> str:
    """Return a value as the text of a cell."""
    if value is None or value is ABSENT:
        return ""
    match value:
        case bool():
            return "true" if value else "false"
        case datetime():
            return value.isoformat()
        case bytes():
            return value.hex()
        case Enum():
            return printable(str(value.value))
        case Mapping() | list() | tuple():
            return printable(orjson.dumps(value, default=jsonable).decode())
        case _:
            return printable(str(value))
