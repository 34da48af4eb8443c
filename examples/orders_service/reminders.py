# SPDX-License-Identifier: Apache-2.0
"""A delayed reminder becomes a letter, if the order is unpaid."""

# No "from __future__ import annotations": annotations name dependencies.
from messages import PREFIX, Letter, Reminder
from orders import REMIND_AFTER, retry
from repository import Orders

import bmq

router = bmq.Router(prefix=PREFIX)
router.mover("reminders.delayed", longest=REMIND_AFTER)


@router.consumer("reminders", timeout=20, retry=retry)
@router.publish_to("letters")
async def remind(reminder: Reminder, orders: Orders) -> Letter | None:
    """Write a letter about an unpaid order. ``publish_to`` loses none."""
    debt = await orders.debt(reminder.number)
    if debt is None:
        return None
    return Letter(
        debt.customer,
        f"Please pay {debt.total / 100:.2f} for order {reminder.number}.",
    )
