# SPDX-License-Identifier: Apache-2.0
"""Splits text into tokens, with the broker's peculiarities.

A minus sign belongs to the following digits (``a-1`` is ``a``, ``-1``). A dot is legal in a name. Escapes in
strings are skipped but never decoded. Only space, tab and line feed are white space. Any other character is a
separate token, the *invalid character*, refused by the parser.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from bmq.subscriptions._syntax import INT64_MAX, INT64_MIN

#: The names of properties usable in an expression.
NAME_PATTERN: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_.]*")

# Refuse a NUL inside a string, although accepted by the broker's scanner: the broker cuts the literal at the
# NUL, one character too early. A literal of a single NUL ends the broker's process.
_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\n]+)
      | (?P<word>[a-zA-Z][a-zA-Z0-9_.]*)
      | (?P<integer>-?[0-9]+)
      | (?P<string>"(?:[^"\\\0]|\\[^\n\0])*")
      | (?P<symbol>\|\||&&|==|!=|<=|>=|[()!~+\-*/%<>])
      | (?P<invalid>.)""",
    re.VERBOSE | re.DOTALL,
)

END: Final = "end of expression"

#: The broker's names of tokens, if different from the text.
KIND: Final[dict[str, str]] = {"~": "!", "==": "=", "!=": "<>", "||": "OR", "&&": "AND"}
_KEYWORDS: Final = frozenset({"true", "false", "exists"})
_INT64_DIGITS: Final = 19


class Token(NamedTuple):
    """A token: the broker's name for the kind, the text, and the index into the expression."""

    kind: str
    text: str
    offset: int


def integer_value(digits: str) -> int | None:
    """Return the value of an integer token (decimal, leading zeros allowed); None outside 64 bits."""
    # Strip zeros and check the length first, because int() refuses very long texts.
    magnitude = digits.lstrip("-").lstrip("0") or "0"
    if len(magnitude) > _INT64_DIGITS:
        return None
    value = -int(magnitude) if digits[0] == "-" else int(magnitude)
    return value if INT64_MIN <= value <= INT64_MAX else None


def scan(text: str) -> list[Token]:
    """Split a text into tokens; the last token is always :data:`END`.

    END's offset is the broker's position of an unexpected end: the last character or token before the end.
    """
    tokens: list[Token] = []
    last = 0
    for match in _TOKEN.finditer(text):
        group, lexeme, last = match.lastgroup, match.group(), match.start()
        if group == "space":
            last = match.end() - 1
            continue
        if group == "word":
            kind = lexeme if lexeme in _KEYWORDS else "property"
        elif group == "integer":
            kind = "overflow" if integer_value(lexeme) is None else "integer"
        elif group == "string":
            kind = "string"
        elif group == "symbol":
            kind = KIND.get(lexeme, lexeme)
        else:
            kind = "invalid character"
        tokens.append(Token(kind, lexeme, last))
    tokens.append(Token(END, "", last))
    return tokens
