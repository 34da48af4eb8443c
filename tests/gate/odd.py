# SPDX-License-Identifier: Apache-2.0
"""Odd values: every kind of value that a caller may pass by mistake."""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any

import numpy as np

import bmq

__all__ = ["INNER", "ODD", "Own", "close"]


class Hostile:
    """Raises on every operation."""

    def _raise(self, *_: object) -> Any:
        raise RuntimeError("a hostile value was asked for something")

    __repr__ = __str__ = __bool__ = __len__ = __index__ = __int__ = __float__ = _raise  # type: ignore[assignment]
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __contains__ = _raise  # type: ignore[assignment]


class Falsy:
    """False in a condition, equal to everything."""

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Text(str):
    """Text that cannot be printed."""

    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("str")


class Number(int):
    """A number that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("str")


class Own(Exception):
    """The exception of a caller's iterator, raised unchanged to the caller."""


def refuse(value: object) -> None:
    """A failing function of the caller."""
    raise Own


def failing() -> Iterator[int]:
    """Fail at the first item."""
    raise Own
    yield 0


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


async def coroutine() -> None:
    """Never awaited."""


def one_or_more(first: object, /, *more: object) -> None:
    """Takes at least one argument."""


ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "0": lambda: 0,
    "-1": lambda: -1,
    "5": lambda: 5,
    "2**31": lambda: 2**31,
    "2**32": lambda: 2**32,
    "2**63": lambda: 2**63,
    "2**64": lambda: 2**64,
    "10**400": lambda: 10**400,
    "10**5000": lambda: 10**5000,
    "1e3": lambda: 1e3,
    "0.5": lambda: 0.5,
    "-0.0": lambda: -0.0,
    "1e308": lambda: 1e308,
    "5e-324": lambda: 5e-324,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "1j": lambda: 1j,
    "numpy.int64": lambda: np.int64(5),
    "numpy.float32": lambda: np.float32(0.5),
    "numpy.bool": lambda: np.True_,
    "numpy.str": lambda: np.str_("x"),
    "numpy.array": lambda: np.array([1, 2]),
    "Decimal": lambda: Decimal(5),
    "Decimal nan": lambda: Decimal("nan"),
    "Fraction": lambda: Fraction(1, 3),
    "int subclass": lambda: Number(5),
    "IntEnum": lambda: Level.LOW,
    "Enum": lambda: Colour.RED,
    "Compression": lambda: bmq.Compression.ZLIB,
    "empty text": lambda: "",
    "text": lambda: "text",
    "surrogate": lambda: "\udc80",
    "NUL": lambda: "a\0b",
    "long text": lambda: "x" * 100_000,
    "text subclass": lambda: Text("text"),
    "newline": lambda: "a\nb",
    "empty bytes": lambda: b"",
    "bytes": lambda: b"bytes",
    "bytearray": lambda: bytearray(b"bytes"),
    "memoryview of shorts": lambda: memoryview(b"bytes!").cast("h"),
    "empty list": list,
    "list": lambda: [1, "x", None],
    "tuple": lambda: (1, 2),
    "dict": lambda: {"x": 1},
    "set": lambda: {"x"},
    "generator": lambda: (each for each in "ab"),
    "iterator that fails": failing,
    "object": object,
    "hostile": Hostile,
    "falsy": Falsy,
    "class": lambda: Falsy,
    "hostile class": lambda: Hostile,
    "function": lambda: refuse,
    "lambda without parameters": lambda: lambda: None,
    "function of three": lambda: lambda a, b, c: None,
    "function of one or more": lambda: one_or_more,
    "coroutine function": lambda: coroutine,
    "coroutine": coroutine,
    "exception": lambda: ValueError("x"),
    "datetime": lambda: datetime(2026, 1, 1, tzinfo=UTC),
    "naive datetime": lambda: datetime(2026, 1, 1),
    "timedelta": lambda: timedelta(seconds=1),
    "path": lambda: PurePosixPath("/x"),
    "not implemented": lambda: NotImplemented,
}


#: Values also tried inside a list and a mapping.
INNER = (
    *("None", "-1", "2**64", "10**5000", "0.5", "nan", "numpy.int64", "numpy.array", "int subclass", "Enum"),
    *("empty text", "surrogate", "NUL", "text subclass", "memoryview of shorts", "list", "hostile", "class"),
    *("coroutine", "datetime"),
)


def close(value: object) -> None:
    """Close all coroutines that are never awaited."""
    if asyncio.iscoroutine(value):
        value.close()
    elif type(value) is list or type(value) is dict:
        for each in value.values() if type(value) is dict else value:
            close(each)
