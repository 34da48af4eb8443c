# SPDX-License-Identifier: Apache-2.0
"""Tables in which many rows differ only in their numbers.

A member of a group has a subscription for each bucket: hundreds of rows with the same expression.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

__all__ = ["Row", "folded"]

#: The least number of equal rows that become one row.
_MANY = 8
_NUMBER = re.compile(r"(\d+(?:,\d{3})*)")


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        kind: rows of different kinds are never combined.
        cells: the texts.
        style: style of the last cell.
    """

    kind: Hashable
    cells: tuple[str, ...]
    style: str = ""


def folded(rows: Iterable[Row], count: tuple[str, int]) -> list[Row]:
    """Combine eight or more rows that differ only in numbers.

    The combined row takes the place of the first row, and has the lowest number, the highest number and the
    count of the rows.

    Args:
        rows: the rows.
        count: the name of many rows, and the cell that gets their number.
    """
    what, column = count
    alike: dict[Hashable, list[tuple[int, Row]]] = {}
    for place, row in enumerate(rows):
        shape = tuple(_NUMBER.sub("0", cell) for cell in row.cells)
        alike.setdefault((row.kind, shape), []).append((place, row))
    found: list[tuple[int, Row]] = []
    for some in alike.values():
        if len(some) < _MANY:
            found += some
            continue
        place, first = some[0]
        cells = [_between(texts) for texts in zip(*(row.cells for _, row in some), strict=True)]
        cells[column] += f" ({len(some)} {what})"
        found.append((place, Row(first.kind, tuple(cells), first.style)))
    return [row for _, row in sorted(found, key=lambda each: each[0])]


def _between(texts: Sequence[str]) -> str:
    """Return the common text, with "lowest…highest" for the numbers that differ."""
    parts = [_NUMBER.split(text) for text in texts]
    return "".join(_range(some) for some in zip(*parts, strict=True))


def _range(some: Sequence[str]) -> str:
    if len(set(some)) == 1:
        return some[0]
    return f"{min(some, key=_value)}…{max(some, key=_value)}"


def _value(text: str) -> int:
    return int(text.replace(",", ""))
