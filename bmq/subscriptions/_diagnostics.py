# SPDX-License-Identifier: Apache-2.0
"""The errors for invalid expressions.

The first line is the broker's own detailed message, word for word. The expression, a caret at the error, the
probable intention, and the legal alternatives follow.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from bmq import _checks
from bmq.errors import InvalidExpression, UsageError
from bmq.subscriptions._syntax import END, INT64_MAX, INT64_MIN, MAX_LENGTH, MAX_OPERATORS, Token


class ErrorKind(IntEnum):
    """The broker's error codes of compiling (-100 and below) and of evaluating an expression."""

    NAME = -1
    TYPE = -2
    BINARY = -3
    ARITHMETIC = -4
    UNDEFINED = -5
    SYNTAX = -100
    NO_PROPERTIES = -101
    TOO_COMPLEX = -102
    TOO_LONG = -103


_WINDOW: Final = 100
_ELLIPSIS: Final = "…"


class Problem(NamedTuple):
    """Position of the parser's error: the token, the legal alternatives, and the open parentheses."""

    tokens: list[Token]
    position: int
    expecting: str
    depth: int
    literal: bool = False


def point_at(text: str, offset: int) -> str:
    """Return two lines: the text, one printable character each, and a caret with the column (from 1)."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"text must be a str, not {_checks.shown(text)}")
    offset = _checks.integer("offset", offset, 0, len(text) + 1)
    start, end = 0, len(text)
    if end > _WINDOW:
        start = max(0, min(offset - _WINDOW // 2, end - _WINDOW))
        end = start + _WINDOW
    shown = "".join(_printable(c) for c in text[start:end])
    if start:
        shown = _ELLIPSIS + shown[1:]
    if end < len(text):
        shown = shown[:-1] + _ELLIPSIS
    return f"    {shown}\n    {' ' * (offset - start)}^ column {offset + 1}"


def _printable(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return character if character.isprintable() else "\ufffd"


def invalid(
    message: str, text: str = "", offset: int = 0, kind: ErrorKind = ErrorKind.SYNTAX, advice: str = ""
) -> InvalidExpression:
    """Return an error with the text, a caret at the offset, and advice, as far as given."""
    lines = [message, point_at(text, offset) if text else "", advice]
    told = "\n".join(line for line in lines if line)
    return InvalidExpression(told, expression=text, offset=offset, code=kind.name)


def too_long(text: str, size: int, advice: str = "") -> InvalidExpression:
    """Return the error for a text beyond the broker's limit of bytes."""
    fitting = len(text.encode("utf-8", "surrogateescape")[:MAX_LENGTH].decode("utf-8", "ignore"))
    message = f"expression is too long ({size}), max allowed length: {MAX_LENGTH}"
    usual = (
        f"The text from the caret on exceeds the limit. Remove spaces, shorten property names, or {_SPLIT}"
    )
    return invalid(message, text, fitting, ErrorKind.TOO_LONG, advice or usual)


def too_many_operators(text: str, count: int, offset: int, advice: str = "") -> InvalidExpression:
    """Return the error for an expression beyond the broker's limit of operators."""
    message = f"too many operators ({count}), max allowed operators: {MAX_OPERATORS}"
    usual = f"Each operator, each property and each exists() counts as one. {_SPLIT.capitalize()}"
    return invalid(message, text, offset, ErrorKind.TOO_COMPLEX, advice or usual)


_SPLIT: Final = (
    "split the expression at a `||` into several subscriptions of one consumer "
    "(bmq.subscriptions.plan does it)."
)


def unsendable(text: str, offset: int) -> InvalidExpression:
    """Return the error for a text with a NUL, or with a lone surrogate, which cannot be encoded."""
    advice = "bmq sends no NUL: a broker truncates the string there, or crashes."
    if text[offset] != "\0":
        advice = f"{text[offset]!r} is half of a surrogate pair, which UTF-8 cannot encode."
    message = f"syntax error, unexpected invalid character at offset {offset}"
    return invalid(message, text, offset, advice=advice)


def syntax_error(text: str, problem: Problem) -> InvalidExpression:
    """Return the error for an illegal token at its position."""
    token = problem.tokens[problem.position]
    at = len(text[: token.offset].encode("utf-8", "surrogateescape"))
    if problem.literal:
        message = f"integer overflow at offset {at}"
    else:
        expecting = _BROKER_EXPECTING.get(problem.expecting, "")
        message = f"syntax error, unexpected {token.kind}{expecting} at offset {at}"
    # The broker reports an unexpected end at the last token; the caret shows the position of the missing
    # part.
    caret = len(text) if token.kind == END else token.offset
    lines = [message, point_at(text, caret), _hint(text, problem), f"Legal here: {_legal(problem)}."]
    told = "\n".join(line for line in lines if line)
    return InvalidExpression(told, expression=text, offset=token.offset, code=ErrorKind.SYNTAX.name)


_BROKER_EXPECTING: Final = {"name": ", expecting property or exists", "close": ", expecting )"}


def _legal(problem: Problem) -> str:
    match problem.expecting:
        case "operand":
            return 'a property, a number, a "string", true, false, exists(name), `!`, `-` or `(`'
        case "name":
            return "the bare name of one property"
        case "close":
            return "`)`"
        case "chain":
            return f"`&&`, `||`, + - * / % or {_end(problem)}"
        case _:
            return f"an operator (&& || == != < <= > >= + - * / %) or {_end(problem)}"


def _end(problem: Problem) -> str:
    return "`)`" if problem.depth else "the end"


_WORDS: Final = {"and": "`&&`", "or": "`||`", "not": "`!`"}
_NO_SUCH_WORDS: Final = frozenset({"in", "is", "like", "between", "matches", "contains", "mod", "div", "xor"})

_CHARACTERS: Final = {
    "=": "Equality is written `==`.",
    "|": "Or is written `||`.",
    "&": "And is written `&&`.",
    "'": 'Strings need double quotes: "…".',
    **dict.fromkeys("\u2018\u2019\u201c\u201d", 'Strings need straight double quotes: "…".'),
    '"': "This string has no closing double quote (a backslash escapes the next character; a NUL is not "
    "possible).",
    "_": "A property's name starts with an ASCII letter; `_`, digits and `.` may follow.",
    "\r": "A carriage return is not white space here: only space, tab and line feed are.",
    "^": "The language has no bit operators and no powers.",
    ",": "The language has no lists: compare with each value and join with `||`.",
    "?": "The language has no conditional operator.",
    "\0": "A NUL cannot be part of an expression.",
}


def _hint(text: str, problem: Problem) -> str:
    """Return the probable intention; "" if unknown."""
    token = problem.tokens[problem.position]
    previous = problem.tokens[problem.position - 1] if problem.position else None
    if token.kind == "invalid character":
        return _character_hint(text, token, previous)
    if token.kind == "overflow" and problem.literal:
        return f"Integers are 64 bits: {INT64_MIN} to {INT64_MAX}."
    if problem.expecting == "chain":
        return "Comparisons do not chain: write `a < b && b < c`, or put one of them in parentheses."
    if problem.expecting in ("name", "close"):
        return "exists() takes one bare property name, as in exists(CustomerId)."
    adjacent = previous is not None and previous.offset + len(previous.text) == token.offset
    if token.kind == ">" and adjacent and previous is not None and previous.kind == "<":
        return "Inequality is written `!=`."
    if problem.expecting == "operator":
        return _operator_hint(problem, token, previous, adjacent)
    if token.kind == END and previous is None:
        return "The expression is empty. To receive all messages, subscribe without an expression."
    return ""


def _operator_hint(problem: Problem, token: Token, previous: Token | None, adjacent: bool) -> str:
    for word in (token, previous):
        if word is None or word.kind != "property":
            continue
        if word.text.lower() in _WORDS:
            return f"`{word.text}` is a property name here: write {_WORDS[word.text.lower()]}."
        if word.text.lower() in _NO_SUCH_WORDS:
            return f"The language has no operator `{word.text}`; the word is read as a property name."
    if token.kind in ("integer", "overflow") and token.text.startswith("-"):
        return (
            f"A minus directly before digits belongs to the number: `{token.text}` is one token. "
            f"To subtract, write `- {token.text[1:]}`."
        )
    if token.kind == "property" and adjacent and previous is not None and previous.kind == "integer":
        return "A property's name starts with an ASCII letter, not with a digit."
    if token.kind == END and problem.depth:
        return "A closing parenthesis is missing."
    if token.kind == ")":
        return "This parenthesis has no opening parenthesis."
    if token.kind in ("property", "exists", "string", "integer", "true", "false", "("):
        return "An operator is missing before the caret."
    return ""


def _character_hint(text: str, token: Token, previous: Token | None) -> str:
    character = token.text
    following = text[token.offset + 1 : token.offset + 2]
    if character == "=":
        if text[: token.offset].endswith("=="):
            return "Equality is written `==`, with two signs."
        if text[: token.offset].endswith("!="):
            return "Inequality is written `!=`, with one equals sign."
        if following in ("<", ">"):
            return f"Write `{following}=`."
    if character == "." and previous is not None and previous.kind == "integer":
        return "Numbers are whole: fractions are not possible."
    if character in _CHARACTERS:
        return _CHARACTERS[character]
    if character.isspace():
        return f"{character!r} is not white space here: only space, tab and line feed are."
    if not character.isascii():
        return (
            "Outside of strings only ASCII is possible: names consist of ASCII letters, digits, `_` and `.`."
        )
    return f"`{_printable(character)}` has no meaning in this language."
