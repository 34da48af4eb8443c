# SPDX-License-Identifier: Apache-2.0
"""Reports, orders and crowns as messages of a control queue: JSON, with receiver and sender in properties."""

from __future__ import annotations

from typing import Any

from bmq._json import orjson
from bmq.conventions import GROUP_MEMBER as TO
from bmq.conventions import GROUP_SENDER as FROM
from bmq.errors import Error, ProtocolError
from bmq.groups._protocol import Crown, Order, Report, SeatState
from bmq.groups._ranking import MAX_WEIGHT, MIN_WEIGHT

__all__ = ["FROM", "TO", "decoded", "encoded"]

_KINDS: dict[str, type[Report | Order | Crown]] = {"report": Report, "order": Order, "crown": Crown}
_STATES = {state.name for state in SeatState}


def encoded(message: Report | Order | Crown, group: str = "") -> bytes:
    """Return the payload of a control message; ``group`` is the expression of the sender's first bucket."""
    kind = type(message).__name__.lower()
    return orjson.dumps({"kind": kind, "group": group, **message._asdict()}, option=orjson.OPT_NON_STR_KEYS)


def decoded(payload: bytes) -> tuple[Report | Order | Crown, str]:
    """Return the message of a payload, and the expression of the sender's first bucket.

    Raises:
        ProtocolError: the payload is not a control message of this version.
    """
    try:
        fields: dict[str, Any] = orjson.loads(payload)
        group = str(fields.pop("group", ""))
        made = _KINDS[fields.pop("kind")](**fields)
        if isinstance(made, Crown):
            members = None if made.members is None else tuple(map(str, made.members))
            return Crown(str(made.who), int(made.term), int(made.fence), members), group
        if isinstance(made, Order):
            granted = {int(b): (int(fence), fine is True) for b, (fence, fine) in made.buckets.items()}
            return Order(str(made.who), int(made.term), int(made.number), int(made.seq), granted), group
        states = {int(b): (int(fence), state) for b, (fence, state) in made.buckets.items()}
        if any(state not in _STATES for _, state in states.values()):
            raise ValueError(f"unknown states in {states}")
        term, number = made.seen
        weight = min(max(MIN_WEIGHT, float(made.weight)), MAX_WEIGHT)
        report = Report(
            str(made.who),
            str(made.was),
            int(made.seq),
            (int(term), int(number)),
            weight,
            made.leaving is True,
            states,
            made.stands is True,
        )
        return report, group
    except (ValueError, TypeError, KeyError, AttributeError, Error) as error:
        raise ProtocolError(f"{payload[:100]!r} is not a control message of a group: {error}") from error
