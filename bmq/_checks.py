# SPDX-License-Identifier: Apache-2.0
"""The gate for callers' values: every public argument passes one of these checks before the core sees it.

Each function returns the value in the type the core works with, or raises ``InvalidArgument`` naming the
parameter, the accepted range and the value. Integers are accepted from every type that is one
(``operator.index``: ``int``, NumPy integers) and from floats without a fraction (``1e9``), because limits are
written that way and come from configuration files that way. Booleans are never numbers here.
"""

from __future__ import annotations

import math
import operator
from typing import Final, TypeVar

from bmq.errors import InvalidArgument

__all__ = ["INT32_MAX", "INT64_MAX", "boolean", "choice", "integer", "number", "seconds", "text"]

T = TypeVar("T")

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

# Longer values are shortened in error messages.
_SHOWN: Final = 80


def integer(name: str, value: object, low: int = 0, high: int = INT64_MAX) -> int:
    """Return an integer between ``low`` and ``high``, both included.

    Raises:
        InvalidArgument: the value is no integer, a boolean, or out of range.
    """
    if type(value) is not int:
        value = _as_integer(name, value, low, high)
    if not low <= value <= high:
        raise InvalidArgument(f"{name} is an integer from {low} to {high}, not {_shown(value)}")
    return value


def number(
    name: str, value: object, low: float = 0.0, high: float = math.inf, *, above: bool = False, unit: str = ""
) -> float:
    """Return a finite number between ``low`` and ``high``; with ``above``, greater than ``low``.

    ``high=math.inf`` accepts every finite number. Integers stay integers.

    Raises:
        InvalidArgument: the value is no real number, NaN, infinite, or out of range.
    """
    result = _as_number(value)
    if result is None or not math.isfinite(result) or not low <= result <= high or (above and result == low):
        least = f"more than {low:g}" if above else f"at least {low:g}"
        most = f" and at most {high:g}" if high != math.inf else ""
        of = f" of {unit}" if unit else ""
        raise InvalidArgument(f"{name} is a number{of}, {least}{most}, not {_shown(value)}")
    return result


def seconds(name: str, value: object, *, positive: bool = False) -> float:
    """Return a duration in seconds: finite, and at least 0; with ``positive``, more than 0.

    Raises:
        InvalidArgument: the value is no such duration.
    """
    return number(name, value, 0.0, above=positive, unit="seconds")


def text(name: str, value: object, *, empty: bool = True) -> str:
    """Return text that can be written in UTF-8 and has no NUL.

    Raises:
        InvalidArgument: the value is no ``str``, has a lone surrogate or a NUL, or is empty.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is a str, not {_shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{name} has a lone surrogate at character {error.start}, which has no UTF-8: {_shown(value)}"
        ) from None
    if "\0" in value:
        raise InvalidArgument(f"{name} has a NUL at character {value.index(chr(0))}: {_shown(value)}")
    if not value and not empty:
        raise InvalidArgument(f"{name} is empty")
    return value


def boolean(name: str, value: object) -> bool:
    """Return True or False; NumPy's booleans count.

    Raises:
        InvalidArgument: the value is neither.
    """
    if value is True or value is False:
        return value
    if _is_numpy_boolean(value):
        return bool(value)
    raise InvalidArgument(f"{name} is True or False, not {_shown(value)}")


def choice(name: str, value: object, kind: type[T]) -> T:
    """Return an instance of ``kind``.

    Raises:
        InvalidArgument: the value has another type.
    """
    if not isinstance(value, kind):
        raise InvalidArgument(f"{name} is a bmq {kind.__name__}, not {_shown(value)}")
    return value


def _as_integer(name: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except Exception:  # a foreign type may raise anything
            real = _as_number(value)
            if real is not None and math.isfinite(real) and real == int(real):
                return int(real)
    raise InvalidArgument(f"{name} is an integer from {low} to {high}, not {_shown(value)}")


def _as_number(value: object) -> float | None:
    if isinstance(value, bool) or _is_numpy_boolean(value):
        return None
    if isinstance(value, float):
        return value
    try:
        result = operator.index(value)  # type: ignore[arg-type]
    except Exception:  # a foreign type may raise anything
        pass
    else:
        return result if -(2**1000) < result < 2**1000 else None
    if type(value).__module__ == "numpy" and hasattr(value, "__float__") and not hasattr(value, "__len__"):
        try:
            return float(value)
        except Exception:  # complex numbers, dates
            return None
    return None


def _is_numpy_boolean(value: object) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")


def _shown(value: object) -> str:
    try:
        written = ascii(value)
    except Exception:  # the value's own __repr__ fails
        written = f"<unprintable {type(value).__name__}>"
    if len(written) > _SHOWN:
        written = written[: _SHOWN - 3] + "..."
    return f"{written} ({type(value).__name__})"
