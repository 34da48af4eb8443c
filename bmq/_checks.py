# SPDX-License-Identifier: Apache-2.0
"""Checks of callers' values: every public argument passes one of these checks before the core uses it.

Each function returns the value in the core's type, or raises ``UsageError`` with the parameter, the
accepted range and the value. Integers are accepted from every integer type (``operator.index``: ``int``,
NumPy integers) and from floats without a fraction (``1e9``), because configuration files and people write
limits in this form. Booleans are never accepted as numbers.

A value may be hostile: its ``__repr__``, ``__eq__``, ``__bool__`` or ``__hash__`` may raise. So each check
tests the type first, and values of unknown types are never compared, hashed or tested for truth. Instances of
subclasses of ``int``, ``float`` and ``str`` are converted to the base class, so that the core never calls an
overridden method.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from bmq.errors import UsageError

__all__ = [
    "INT32_MAX",
    "INT64_MAX",
    "boolean",
    "choice",
    "exceptions",
    "function",
    "instance",
    "integer",
    "items",
    "keywords",
    "known_arguments",
    "mapping",
    "number",
    "octets",
    "one_of",
    "optional",
    "runs_later",
    "seconds",
    "shown",
    "text",
    "texts",
    "timeout",
]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
P = ParamSpec("P")

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

# Longer values are shortened in error messages.
_SHOWN: Final = 80
_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = _SHOWN


def integer(name: str, value: object, low: int = 0, high: int = INT64_MAX) -> int:
    """Return an integer between ``low`` and ``high``, both included.

    Raises:
        UsageError: the value is not an integer, is a boolean, or is out of range.
    """
    if type(value) is not int:
        value = _as_integer(name, value, low, high)
    if not low <= value <= high:
        raise UsageError(f"{name} must be an integer from {low} to {high}, not {shown(value)}")
    return value


def number(
    name: str,
    value: object,
    low: float = 0.0,
    high: float = math.inf,
    *,
    above: bool = False,
    unit: str = "",
    otherwise: str = "",
) -> float:
    """Return a finite number between ``low`` and ``high``; with ``above``, greater than ``low``.

    ``high=math.inf`` accepts every finite number. Integers stay integers. ``unit`` and ``otherwise`` (other
    accepted values) are for the error message.

    Raises:
        UsageError: the value is not a real number, is NaN or infinite, or is out of range.
    """
    result = _as_number(value)
    if result is None or not math.isfinite(result) or not low <= result <= high or (above and result == low):
        least = f"more than {low:g}" if above else f"at least {low:g}"
        most = f" and at most {high:g}" if high != math.inf else ""
        of = f" of {unit}" if unit else ""
        raise UsageError(f"{name} must be a number{of}, {least}{most},{otherwise} not {shown(value)}")
    return result


def seconds(name: str, value: object, *, positive: bool = False) -> float:
    """Return a finite duration in seconds, at least 0; with ``positive``, greater than 0.

    Raises:
        UsageError: the value is not such a duration.
    """
    return number(name, value, 0.0, above=positive, unit="seconds")


def timeout(value: object, name: str = "timeout", *, positive: bool = False) -> float | None:
    """Return a duration in seconds; None for no limit, or for the session's default.

    Raises:
        UsageError: the value is neither.
    """
    if value is None:
        return None
    return number(name, value, 0.0, above=positive, unit="seconds", otherwise=" or None,")


def text(name: str, value: object, *, empty: bool = True, longest: int | None = None) -> str:
    """Return text without NUL that can be encoded in UTF-8, of at most ``longest`` characters.

    Raises:
        UsageError: the value is not a ``str``, has a lone surrogate or a NUL, is empty, or is too long.
    """
    if not isinstance(value, str):
        raise UsageError(f"{name} must be a str, not {shown(value)}")
    if type(value) is not str:
        value = str.__str__(value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name} has a lone surrogate at character {error.start}, which UTF-8 cannot encode: "
            f"{shown(value)}"
        ) from None
    if "\0" in value:
        raise UsageError(f"{name} has a NUL at character {value.index(chr(0))}: {shown(value)}")
    if not value and not empty:
        raise UsageError(f"{name} must not be empty")
    if longest is not None and len(value) > longest:
        raise UsageError(f"{name} must have at most {longest} characters, not {len(value):,}")
    return value


def octets(name: str, value: object) -> bytes:
    """Return bytes; a ``bytearray`` and a ``memoryview`` are copied.

    Raises:
        UsageError: the value has another type.
    """
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return memoryview(cast("bytes", value)).tobytes()
    raise UsageError(f"{name} must be bytes, not {shown(value)}")


def boolean(name: str, value: object) -> bool:
    """Return True or False; NumPy's booleans count.

    Raises:
        UsageError: the value is neither.
    """
    if value is True or value is False:
        return value
    if _is_numpy_boolean(value):
        return bool(value)
    raise UsageError(f"{name} must be True or False, not {shown(value)}")


def choice(name: str, value: object, kind: type[T]) -> T:
    """Return an instance of ``kind``, a class of bmq.

    Raises:
        UsageError: the value has another type.
    """
    return instance(name, value, kind, f"a bmq {kind.__name__}")


def instance(name: str, value: object, kind: type[T] | tuple[type[T], ...], what: str) -> T:
    """Return an instance of a class, or of one of several.

    Args:
        name: name of the parameter.
        value: caller's value.
        kind: class or classes.
        what: noun for the classes, with its article.

    Raises:
        UsageError: the value has another type.
    """
    if not isinstance(value, kind):
        raise UsageError(f"{name} must be {what}, not {shown(value)}")
    return value


def one_of(name: str, value: object, known: Iterable[str]) -> str:
    """Return one of a few words.

    Raises:
        UsageError: the value is another word.
    """
    known = tuple(known)
    if not isinstance(value, str) or str.__str__(value) not in known:
        words = ", ".join(repr(word) for word in known)
        raise UsageError(f"{name} must be one of {words}, not {shown(value)}")
    return str.__str__(value)


def function(name: str, value: object, arguments: int | None = None, *, plain: bool = False) -> Any:
    """Return a callable; with ``arguments``, one that accepts this number of positional arguments.

    A callable without a signature, such as some written in C, is accepted. ``plain`` rejects functions whose
    call has no effect of its own: generators and ``async def``.

    Raises:
        UsageError: the value is not callable, or does not accept the arguments.
    """
    if not callable(value):
        takes = "" if arguments is None else f" that takes {_counted(arguments, 'argument')}"
        raise UsageError(f"{name} must be a function{takes}, not {shown(value)}")
    if plain and runs_later(value):
        raise UsageError(
            f"{name} is called and not awaited, and {shown(value)} is async or a generator: give a plain "
            "function, which may create a task"
        )
    if arguments is not None:
        try:
            signature = inspect.signature(value)
        except Exception:  # no signature, or a broken one
            return value
        try:
            signature.bind(*[None] * arguments)
        except TypeError as error:
            raise UsageError(
                f"{name} is called with {_counted(arguments, 'argument')}, and {shown(value)} does not "
                f"accept the call: {error}"
            ) from None
    return value


def runs_later(function: Callable[..., object]) -> bool:
    """Whether a call only creates a coroutine or a generator, for a function, a partial, or an object."""
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(type(function), "__call__", None)  # noqa: B004 - the method itself is wanted
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(kind(each) for kind in kinds for each in (function, call))


def items(name: str, value: Iterable[T] | object, what: str = "values") -> list[T]:
    """Return the items of an iterable as a list. Text, bytes and mappings are rejected.

    Raises:
        UsageError: the value is not such an iterable.
    """
    given: Any = value
    if isinstance(given, str | bytes | bytearray | memoryview | Mapping) or not isinstance(given, Iterable):
        raise UsageError(f"{name} must be a list of {what}, not {shown(value)}")
    return list(cast("Iterable[T]", given))


def texts(name: str, value: object, *, empty: bool = False) -> list[str]:
    """Return the strings of an iterable as a list. A single string is rejected.

    Raises:
        UsageError: the value is not an iterable of strings.
    """
    found: list[object] = items(name, value, "texts")
    return [text(f"{name}[{index}]", each, empty=empty) for index, each in enumerate(found)]


def mapping(name: str, value: object, what: str = "names to values") -> Mapping[Any, Any]:
    """Return a mapping.

    Raises:
        UsageError: the value is not a mapping.
    """
    given: Any = value
    if not isinstance(given, Mapping):
        raise UsageError(f"{name} must be a mapping of {what}, not {shown(value)}")
    return given  # pyright: ignore[reportUnknownVariableType]


def exceptions(name: str, value: object) -> None:
    """Check an exception type, or a tuple of exception types.

    Raises:
        UsageError: the value is neither.
    """
    given: Any = value
    kinds = cast("tuple[object, ...]", given if isinstance(given, tuple) else (given,))
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise UsageError(
            f"{name} must be an exception type or a tuple of exception types, not {shown(value)}"
        )


def optional(
    check: Callable[Concatenate[str, Any, P], T], name: str, value: object, *args: P.args, **kwargs: P.kwargs
) -> T | None:
    """Return None for None, or else the result of a check.

    Raises:
        UsageError: as for the check.
    """
    return None if value is None else check(name, value, *args, **kwargs)


def keywords(call: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Check the names of keyword arguments.

    Raises:
        UsageError: a name is unknown; the error suggests the nearest known name, or lists the known names.
    """
    known = sorted(known)
    for name in sorted(set(given).difference(known)):
        near = difflib.get_close_matches(name, known, 1)
        raise UsageError(
            f"{call} has no argument {name}"
            + (f": did you mean {near[0]}?" if near else f"; the arguments are {', '.join(known)}")
        )


def known_arguments(function: F, more: Iterable[str] = ()) -> F:
    """Decorate a function or method: a misspelt keyword argument raises an error with the right name.

    The error names the class of the object: ``App.consumer()`` for a method of a base class of ``App``.

    Args:
        function: the function.
        more: names that it takes as ``**options``.
    """
    code = function.__code__
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    accepted = frozenset((*named, *more)) - {"self"}

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if args and not accepted.issuperset(kwargs):
            name = "" if function.__name__ == "__init__" else f".{function.__name__}"
            keywords(f"{type(args[0]).__qualname__}{name}()", kwargs, accepted)
        return function(*args, **kwargs)

    return cast("F", called)


def shown(value: object) -> str:
    """Return the description of a value for an error message: short, in ASCII, with the type.

    Never raises.
    """
    try:
        written = _short.repr(value).encode("ascii", "backslashreplace").decode()
    except Exception:  # the value's own __repr__ may fail
        written = f"<unprintable {type(value).__name__}>"
    if len(written) > _SHOWN:
        written = written[: _SHOWN - 3] + "..."
    return f"{written} ({type(value).__name__})"


def _as_integer(name: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, bool):
        try:
            return int.__index__(operator.index(value))  # type: ignore[arg-type]
        except Exception:  # a foreign type may raise anything
            real = _as_number(value)
            if real is not None and math.isfinite(real) and real == int(real):
                return int(real)
    raise UsageError(f"{name} must be an integer from {low} to {high}, not {shown(value)}")


def _as_number(value: object) -> float | None:
    if type(value) is float:
        return value
    if isinstance(value, bool) or _is_numpy_boolean(value):
        return None
    if isinstance(value, float):
        return float.__add__(value, 0.0)
    try:
        result = int.__index__(operator.index(value))  # type: ignore[arg-type]
    except Exception:  # a foreign type may raise anything
        pass
    else:
        return result if -(2**1000) < result < 2**1000 else None
    if type(value).__module__ == "numpy" and hasattr(value, "__float__") and not hasattr(value, "__len__"):
        try:
            return float(cast("Any", value))
        except Exception:  # complex numbers, dates
            return None
    return None


def _is_numpy_boolean(value: object) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
