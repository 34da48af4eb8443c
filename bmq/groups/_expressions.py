# SPDX-License-Identifier: Apache-2.0
"""The expressions of a group: one a bucket, and one for messages without a key."""

from __future__ import annotations

from bmq.conventions import BUCKET
from bmq.errors import InvalidExpression
from bmq.subscriptions import Expression, Selector, subscriptions_for

__all__ = ["bucket_expression", "keyless_expression"]


def bucket_expression(key: str | None, buckets: int, bucket: int, selector: Selector) -> str:
    """Return what selects the messages of one bucket.

    ``%`` takes the sign of its left side in a broker, as in C: -5 % 16 is -5. A difference of the key and the
    bucket has no remainder on either side of 0, and costs one operator more; buckets of the convention are
    never negative.

    Raises:
        InvalidExpression: key and selector do not make a legal expression.
    """
    if key is None:
        match = f"{BUCKET} % {buckets} == {bucket}"
    elif bucket:
        match = f"({key} - {bucket}) % {buckets} == 0"
    else:
        match = f"{key} % {buckets} == 0"
    return _with(match, selector, key)


def keyless_expression(key: str | None, selector: Selector) -> str:
    """Return what selects the messages that have no key."""
    return _with(f"!exists({BUCKET if key is None else key})", selector, key)


def _with(match: str, selector: Selector, key: str | None) -> str:
    parts = subscriptions_for(selector) if selector is not None else [None]
    if len(parts) != 1:
        raise InvalidExpression(
            f"a group's selector has to fit one expression beside the bucket's, and {selector!r} takes "
            f"{len(parts)}: select less, or let the handler pass over what it does not want"
        )
    part = str(parts[0] or "")
    text = f"{match} && ({part})" if part else match
    expression = Expression(text, strict=False)
    if expression.error is not None:
        of = f"key {key!r}" if key is not None else f"property {BUCKET}"
        raise InvalidExpression(
            f"{expression.error}\nThe group puts together the bucket of the {of} and its selector. The "
            f"bucket takes {_COST if key is not None else _COST - 1} of 10 operators, and && one"
        )
    return text


# Key, minus, remainder and comparison.
_COST = 4
