# SPDX-License-Identifier: Apache-2.0
"""The expressions of a group: one a bucket, one for messages without a key, and one a kind of unusable key.

Together the expressions match every message of the group exactly once. An evaluation that ends in an error
matches nothing, so a single expression cannot say "none of the buckets". Each kind of unusable key therefore
has an expression, which compares the key with a value of the key's type.
"""

from __future__ import annotations

from functools import lru_cache

from bmq.conventions import BUCKET
from bmq.errors import InvalidExpression
from bmq.subscriptions import Expression, ExpressionInput, complement, subscriptions_for

# Key, minus, remainder and comparison.
_COST = 4
_INT64_MIN = -(2**63)


def bucket_expression(key: str | None, buckets: int, bucket: int, expression: ExpressionInput) -> Expression:
    """Return the expression for the messages of one bucket.

    In a broker, ``%`` takes the sign of its left side, as in C: -5 % 16 is -5. The difference of key and
    bucket has remainder 0 on either side of 0, and costs one more operator. Buckets of the convention are
    never negative.

    Raises:
        InvalidExpression: key and expression do not make a legal expression.
    """
    if key is None:
        match = f"{BUCKET} % {buckets} == {bucket}"
    elif bucket:
        match = f"({key} - {bucket}) % {buckets} == 0"
    else:
        match = f"{key} % {buckets} == 0"
    return _joined(match, expression, key)


def other_expressions(key: str | None, buckets: int, expression: ExpressionInput) -> dict[str, Expression]:
    """Return the expressions for messages in no bucket, by the kind of key; "" for messages without a key.

    A key of binary type counts as missing.

    Raises:
        InvalidExpression: key and expression do not make a legal expression.
    """
    name = BUCKET if key is None else key
    matches = {"": f"!exists({name})", "text": f'{name} >= ""', "true": name, "false": f"!{name}"}
    if key is None:
        matches["a negative number"] = f"{name} % {buckets} < 0"
    elif buckets & (buckets - 1):
        # Subtracting a bucket from a very low number overflows, and may leave a remainder for every bucket.
        matches["a number too low"] = f"{name} < {_INT64_MIN + buckets}"
    return {kind: _joined(text, expression, key) for kind, text in matches.items()}


def unselected_expressions(expression: ExpressionInput) -> list[Expression | None]:
    """Return the expressions for messages outside of the expression; none if these would not be exact.

    An inexact subscription would take messages of buckets that change hands.
    """
    if expression is None:
        return []
    opposite = complement(expression)
    return [] if opposite.catch_all else opposite.subscriptions()


def _joined(match: str, expression: ExpressionInput, key: str | None) -> Expression:
    """Return both conditions as one expression.

    Raises:
        InvalidExpression: the conditions do not make a legal expression.
    """
    parts = subscriptions_for(expression) if expression is not None else [None]
    if len(parts) != 1:
        raise InvalidExpression(
            "the expression of a group must fit into one expression together with the bucket, and "
            f"{expression!r} takes {len(parts)}: simplify the expression, or let the handler skip messages"
        )
    part = str(parts[0] or "")
    joined = _compiled(f"{match} && ({part})" if part else match)
    if joined.error is not None:
        of = f"key {key!r}" if key is not None else f"property {BUCKET}"
        raise InvalidExpression(
            f"{joined.error}\nThe group joins the bucket of the {of} and its expression with &&. The "
            f"bucket takes {_COST if key is not None else _COST - 1} of the 10 possible operators, and && "
            "one"
        )
    return joined


@lru_cache(maxsize=1024)
def _compiled(text: str) -> Expression:
    """Compile an expression, once for all members of a process.

    Not strict: a search for probable mistakes in each of 512 expressions takes a third of a second, and the
    comparison of an unusable key holds for every text on purpose.
    """
    return Expression(text, strict=False)
