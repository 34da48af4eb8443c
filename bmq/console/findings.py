# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a queue: the finding, its severity, and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from bmq.admin import AppDepth, Internals
from bmq.admin.explanation import Explanation
from bmq.admin.words import number, several
from bmq.console.source import Figures
from bmq.conventions import DUE

__all__ = ["Finding", "at_a_glance", "inside", "worst"]

Level = Literal["critical", "warning", "note"]
_RANK = {"critical": 0, "warning": 1, "note": 2}
#: Share of a quota from which on the use is reported.
_NEAR = 0.8
_DEAD = ".dead"
# The subscription of a mover of delayed messages.
_MOVER = f"{DUE} <="


@dataclass(frozen=True, slots=True)
class Finding:
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


def worst(findings: Iterable[Finding]) -> Finding | None:
    """Return the most severe finding; the first of several."""
    return min(findings, key=lambda finding: _RANK[finding.level], default=None)


def at_a_glance(figures: Figures) -> Iterator[Finding]:
    """Find the problems that the figures of a queue show without another question to the broker."""
    yield from _quota(figures)
    if not figures.messages:
        return
    if _holds_dead_letters(figures.uri):
        yield Finding(
            "dead",
            "warning",
            several(figures.messages, "dead letter"),
            f"Handlers have given up {several(figures.messages, 'message')}.",
            "Look inside: each dead letter names its queue and its error. Repair the cause, then post the "
            "messages again.",
        )
    elif figures.current and not figures.consumers and figures.mode != "broadcast":
        yield _no_readers(several(figures.messages, "message"), "")


def inside(internals: Internals, explanation: Explanation) -> Iterator[Finding]:
    """Find the problems of a queue's applications that only its clients and subscriptions show."""
    if internals.mode == "broadcast" or _holds_dead_letters(internals.uri):
        return
    for app in internals.depth.apps:
        if app.messages:
            yield from _of_app(internals, explanation, app)


def _of_app(internals: Internals, explanation: Explanation, app: AppDepth) -> Iterator[Finding]:
    name = "" if app.app_id == "__default" else f" for application {app.app_id}"
    readers = explanation.readers(app)
    held = sum(
        stream.unconfirmed or 0
        for client in internals.clients
        for stream in client.streams
        if stream.app_id == app.app_id
    )
    waiting = app.messages - held
    if not readers:
        yield _no_readers(several(app.messages, "message"), name)
    elif waiting <= 0:
        return
    elif all(reader.full for reader in readers):
        yield Finding(
            "limit",
            "warning",
            "Readers at their limit" + name,
            f"{several(waiting, 'message')} wait: every subscription has reached its limit of unconfirmed "
            "messages.",
            "Find out why the readers confirm slowly or never: the table of clients shows what each holds.",
        )
    elif any(not reader.full and not reader.subscription.expression for reader in readers):
        return  # the delivery is under way
    elif any(reader.full for reader in readers):
        yield Finding(
            "held",
            "warning",
            "Messages held back" + name,
            f"{several(waiting, 'message')} wait, and some subscriptions are at their limit. The messages "
            "match only these, or nothing, or are behind a message that waits for these.",
            "Find out why these readers confirm slowly or never. Subscriptions that do not compete should "
            "have the same priority.",
        )
    elif any(reader.subscription.expression.startswith(_MOVER) for reader in readers):
        return  # the messages are not due yet
    else:
        yield Finding(
            "unmatched",
            "critical",
            "Nothing matches" + name,
            f"{several(waiting, 'message')} wait although the readers have room: no subscription matches.",
            "Compare the expressions below with the properties of a waiting message (Look inside). Then "
            "deploy a consumer with a matching expression, or one without an expression.",
        )


def _no_readers(what: str, name: str) -> Finding:
    return Finding(
        "unread",
        "critical",
        "No readers" + name,
        f"{what} wait{name}, and no client reads.",
        "Start the consumers. Until then the queue grows to its quota, and old messages expire.",
    )


def _quota(figures: Figures) -> Iterator[Finding]:
    if figures.full:
        yield Finding(
            "full",
            "critical",
            "Full",
            f"The {figures.quota_of} has reached its quota: the broker refuses every post.",
            "Start or speed up the consumers, or raise the quota in the domain's configuration. A purge "
            "frees room at once, and loses the messages.",
        )
    elif figures.quota >= _NEAR:
        share = f"{int(figures.quota * 100)} %"
        yield Finding(
            "near",
            "warning",
            f"{share} of the quota",
            f"The {figures.quota_of} uses {share} of its quota ({number(figures.messages)} messages in this "
            "queue). At the quota, the broker refuses every post.",
            "Start or speed up the consumers, or raise the quota in the domain's configuration.",
        )


def _holds_dead_letters(uri: str) -> bool:
    return uri.endswith(_DEAD)
