# SPDX-License-Identifier: Apache-2.0
"""Check a filter against the names and types of the known properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bmq import _checks
from bmq.conventions import PREFIX
from bmq.errors import UsageError
from bmq.subscriptions._diagnostics import ErrorKind, invalid
from bmq.subscriptions._evaluator import lowered
from bmq.subscriptions._filters import TAG_PREFIX, ExpressionInput, TagFilter, subscriptions_for
from bmq.subscriptions._lint import WORDS, Types

# Names possible in any message: conventions, tags, and the properties of dead letters.
_OTHERS: Final = (PREFIX, TAG_PREFIX)


def check_property_types(
    expression: ExpressionInput,
    kinds: Mapping[str, type],
    of: str = "a message",
    others: tuple[str, ...] = (),
) -> None:
    """Check that a filter uses only known properties, and compares them with values of the right types.

    Tag filters pass. Names beginning with ``bmq_``, and names of tags, are always known.

    Args:
        expression: as for :meth:`bmq.Queue.subscribe`.
        kinds: the known properties: bool, int, str or bytes, by name.
        of: description of messages with these properties, for the error.
        others: prefixes of further known names.

    Raises:
        InvalidExpression: the filter would match no message, or fail on every message; or the filter is not
            legal.
    """
    for name, kind in _checks.mapping("kinds", kinds, "names to types").items():
        _checks.text("the name of a property", name)
        if not isinstance(kind, type) or kind not in WORDS:
            raise UsageError(f"kinds must contain bool, int, str or bytes, not {_checks.shown(kind)}")
    of = _checks.text("of", of)
    others = tuple(_checks.texts("others", others))
    if (
        expression is None
        or isinstance(expression, TagFilter)
        or (isinstance(expression, str) and not expression)
    ):
        return
    for each in subscriptions_for(expression):
        if each is not None and each.ast is not None:
            types = Types(kinds, _OTHERS + others, of)
            types.require(bool, lowered(each.ast), "the whole expression", {})
            for doubt in types.doubts:
                raise invalid(doubt.message, each.text, doubt.offset, ErrorKind.TYPE)
