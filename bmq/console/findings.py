# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a queue: the finding, its severity, and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from bmq import _checks, _world
from bmq._words import age, number, several
from bmq.admin import AppDepth
from bmq.admin.explanation import Explanation, Obstacle, is_mover
from bmq.admin.watch import QueueFigures

__all__ = ["DEAD", "LONG", "DeadLetters", "QueueFinding", "at_a_glance", "inside", "worst"]

Level = Literal["critical", "warning", "note"]
_RANK = {"critical": 0, "warning": 1, "note": 2}
#: Share of a quota from which on the use is reported.
_NEAR = 0.8
#: Queues with dead letters, if nothing else is given.
DEAD = ("*.dead",)
#: Age in seconds of a delivered message from which on its confirmation is missed.
LONG = 120.0


@dataclass(frozen=True, slots=True)
class QueueFinding:
    """One problem of a queue.

    Attributes:
        kind: name of the problem, for the page and for tests.
        level: critical if messages are refused or never delivered; warning if a person has to look.
        title: the problem in a few words.
        text: the problem in a sentence, with figures.
        remedy: the next step.
    """

    kind: str
    level: Level
    title: str
    text: str
    remedy: str


class DeadLetters:
    """The queues that hold dead letters.

    Args:
        patterns: patterns of URIs, as ``bmq://shop/*.failed``.
    """

    def __init__(self, patterns: Iterable[str] = DEAD) -> None:
        self._patterns = _checks.texts("dead_letters", patterns)

    def __contains__(self, uri: str) -> bool:
        return any(fnmatchcase(uri, pattern) for pattern in self._patterns)


def worst(findings: Iterable[QueueFinding]) -> QueueFinding | None:
    """Return the most severe finding; the first of several."""
    return min(findings, key=lambda finding: _RANK[finding.level], default=None)


def at_a_glance(figures: QueueFigures, dead: DeadLetters, expired: int = 0) -> Iterator[QueueFinding]:
    """Find the problems that the figures of a queue show without another question to the broker.

    Args:
        figures: the queue.
        dead: the queues with dead letters.
        expired: messages whose time to live ended lately.
    """
    yield from _quota(figures)
    if expired:
        yield QueueFinding(
            "expired",
            "critical",
            several(expired, "message") + " expired",
            f"{several(expired, 'message')} expired lately: their time to live ended before "
            "every application had confirmed. The broker deleted them.",
            "Compare the domain's time to live with the time that messages wait. Then raise messageTtl in "
            "the domain's configuration, or start or speed up the consumers.",
        )
    if not figures.messages:
        return
    if figures.uri in dead:
        yield QueueFinding(
            "dead",
            "warning",
            several(figures.messages, "dead letter"),
            f"Handlers have given up {several(figures.messages, 'message')}.",
            "Look inside: each dead letter names its queue and its error. Repair the cause, then post the "
            "messages again.",
        )


def inside(explanation: Explanation, dead: DeadLetters) -> Iterator[QueueFinding]:
    """Find the problems of a queue's applications that only its clients and subscriptions show.

    Args:
        explanation: the broker's answers about the queue.
        dead: the queues with dead letters.
    """
    internals = explanation.internals
    if internals.mode == "broadcast" or internals.uri in dead:
        return
    for app in internals.depth.apps:
        if app.messages:
            yield from _of_app(explanation, app)
        for _, text in explanation.outranked(app):
            name = "" if app.app_id == "__default" else f" for application {app.app_id}"
            yield QueueFinding(
                "outranked",
                "note",
                "A reader of higher priority takes everything" + name,
                text,
                "If the reader with the higher priority does not belong here, stop its process.",
            )


def _of_app(explanation: Explanation, app: AppDepth) -> Iterator[QueueFinding]:
    oldest = explanation.oldest
    name = "" if app.app_id == "__default" else f" for application {app.app_id}"
    moved = any(is_mover(reader.subscription) for reader in explanation.readers(app))
    waiting, obstacle = explanation.undelivered(app)
    if obstacle is Obstacle.NO_CONSUMER:
        yield QueueFinding(
            "unread",
            "critical",
            "No readers" + name,
            f"{_waiting(app.messages)}{name}, and no client reads.",
            "Start the consumers. Until then the queue grows to its quota, and old messages expire.",
        )
    elif not waiting:
        if (
            oldest is not None
            and app.messages == explanation.internals.depth.messages
            and (_world.now() - oldest.arrival).total_seconds() > LONG
            and not moved  # a mover holds messages until they are due
        ):
            yield QueueFinding(
                "unconfirmed",
                "warning",
                "Confirmations are missing" + name,
                f"All {several(app.messages, 'waiting message')} are delivered, and the oldest arrived "
                f"{age(oldest.arrival)} ago.",
                "The table of clients shows who holds the messages. The process hangs, is stopped, retries a "
                "message or omits confirm(): read its log, or restart it.",
            )
    elif obstacle is Obstacle.FULL:
        yield QueueFinding(
            "limit",
            "warning",
            "Readers at their limit" + name,
            f"{_waiting(waiting)}: every subscription has reached its limit of unconfirmed messages.",
            "Find out why the readers confirm slowly or never: the table of clients shows what each holds.",
        )
    elif obstacle is Obstacle.PARTLY_FULL:
        yield QueueFinding(
            "held",
            "warning",
            "Messages held back" + name,
            f"{_waiting(waiting)}, and some subscriptions are at their limit. The messages "
            "match only these, or nothing, or are behind a message that waits for these.",
            "Find out why these readers confirm slowly or never. Subscriptions that do not compete should "
            "have the same priority.",
        )
    elif obstacle is Obstacle.UNMATCHED and not moved:
        yield QueueFinding(
            "unmatched",
            "critical",
            "Nothing matches" + name,
            f"{_waiting(waiting)} although the readers have room: no subscription matches. (If the number "
            "falls in bursts, one a second, the broker is busy and limits the evaluation of expressions.)",
            "Compare the expressions below with the properties of a waiting message (Look inside). Then "
            "deploy a consumer with a matching expression, or one without an expression.",
        )


def _quota(figures: QueueFigures) -> Iterator[QueueFinding]:
    share, whose, full = figures.use()
    if full:
        yield QueueFinding(
            "full",
            "critical",
            "Full",
            f"The {whose} has reached its quota: the broker refuses every post.",
            "Start or speed up the consumers, or raise the quota in the domain's configuration. A purge "
            "frees room at once, and loses the messages.",
        )
    elif share >= _NEAR:
        percent = f"{int(share * 100)} %"
        yield QueueFinding(
            "near",
            "warning",
            f"{percent} of the quota",
            f"The {whose} uses {percent} of its quota ({number(figures.messages)} messages in this "
            "queue). At the quota, the broker refuses every post.",
            "Start or speed up the consumers, or raise the quota in the domain's configuration.",
        )


def _waiting(count: int) -> str:
    return several(count, "message") + (" waits" if count == 1 else " wait")
