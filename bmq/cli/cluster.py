# SPDX-License-Identifier: Apache-2.0
"""Lines and exit statuses that show which node of a cluster has answered."""

from __future__ import annotations

from bmq.admin import Standing
from bmq.cli.output import note
from bmq.cli.status import ExitStatus

__all__ = ["tell", "tell_gap"]


def tell(standing: Standing) -> ExitStatus:
    """Print which node answers, and return the exit status: FAILED unless the node is the queue's primary."""
    if not standing.gap and standing.node:
        note(f"{standing.node} at {standing.broker}, the primary of this queue, answers")
    return tell_gap(standing.gap)


def tell_gap(gap: str) -> ExitStatus:
    """Print why an answer is incomplete, and return the exit status: OK if the answer is complete."""
    if not gap:
        return ExitStatus.OK
    note(gap)
    return ExitStatus.FAILED
