# SPDX-License-Identifier: Apache-2.0
"""Differences of domains, and what each difference does to existing queues.

A broker applies most settings at once when it reads a domain's file again (``DOMAINS RECONFIGURE``). Some
settings are fixed for a loaded domain, and some reach only new queues. The rules were measured with a broker
of 2026, except the deduplication time and the delivery attempts, which were read in its source.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from bmq.admin.words import number, several, size
from bmq.cli.domain_files import UNKNOWN, Settings

__all__ = ["Change", "Facts", "Weight", "change_lines", "change_object", "compare", "shown_value"]


class Weight(IntEnum):
    """How serious a change is."""

    #: Existing messages and clients are not affected.
    NOTE = 0
    #: Clients are affected: posts or opens are refused, or the change has no full effect.
    WARNING = 1
    #: Messages are deleted.
    DELETES = 2
    #: A broker refuses the change.
    REFUSED = 3


@dataclass(frozen=True, slots=True)
class Facts:
    """The contents of a running domain.

    Attributes:
        messages: stored messages.
        bytes: stored bytes.
        queues: messages and bytes of each queue, by URI.
        waiting: messages of each application by queue, as far as asked for.
        older: messages that are older than the new lifetime, by queue; None if not asked for.
    """

    messages: int = 0
    bytes: int = 0
    queues: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    waiting: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    older: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One difference.

    Attributes:
        path: the member.
        before: value before; None for a missing member.
        after: value after; None for a missing member.
        weight: how serious the change is.
        consequences: what the change does, in sentences.
    """

    path: str
    before: Any
    after: Any
    weight: Weight = Weight.NOTE
    consequences: tuple[str, ...] = ()


def compare(before: Settings, after: Settings, facts: Facts | None, *, unknown: bool) -> list[Change]:
    """Return the differences, in the order of the schema.

    Args:
        before: settings in use.
        after: wanted settings.
        facts: contents of the running domain; None if unknown.
        unknown: whether members that the schema does not know count.
    """
    paths = [*after, *(path for path in before if path not in after)]
    if ("redirect" in before) is not ("redirect" in after):
        paths = ["redirect"]
    elif before.get("mode") != after.get("mode"):
        paths = [path for path in paths if not path.startswith("mode.")]
    found: list[Change] = []
    for path in paths:
        if path.startswith(UNKNOWN) and not unknown:
            continue
        old, new = before.get(path), after.get(path)
        if path in before and path in after and old == new:
            continue
        weight, sentences = _judge(path, old, new, facts or Facts(), facts is not None)
        found.append(Change(path, old, new, weight, tuple(sentences)))
    return found


_Judged = tuple[Weight, list[str]]
_FIXED = "remove the domain with its messages first (bmq admin DOMAINS REMOVE), or use another name"


def _judge(path: str, old: Any, new: Any, facts: Facts, known: bool) -> _Judged:
    if path.startswith("subscriptions["):
        return _subscription(path, new)
    rule = _RULES.get(path)
    if rule is None:
        return Weight.NOTE, []
    return rule(old, new, facts, known)


def _refused(what: str) -> Callable[[Any, Any, Facts, bool], _Judged]:
    def judge(old: Any, new: Any, facts: Facts, known: bool) -> _Judged:
        held = f"; {several(facts.messages, 'message')} are stored" if facts.messages else ""
        return Weight.REFUSED, [f"a broker refuses to change {what} of a loaded domain{held}", _FIXED]

    return judge


def _location(old: Any, new: Any, facts: Facts, known: bool) -> _Judged:
    return Weight.REFUSED, [
        f"a loaded domain stays in cluster {old}, and its messages do not move to {new}",
        _FIXED,
    ]


def _app_ids(old: Any, new: Any, facts: Facts, known: bool) -> _Judged:
    removed = [each for each in old or () if each not in (new or ())]
    added = [each for each in new or () if each not in (old or ())]
    weight = Weight.WARNING if removed else Weight.NOTE
    sentences: list[str] = []
    for app in removed:
        waiting = facts.waiting.get(app)
        total = None if waiting is None else sum(waiting.values())
        if total != 0:
            weight = Weight.DELETES
        if waiting is None:
            sentences.append(f"the messages that wait for {app} are deleted for {app}")
        elif total:
            count = sum(1 for each in waiting.values() if each)
            held = f"{several(total, 'message')} in {several(count, 'queue')}"
            sentences.append(f"{app} loses {held}: removing the appId deletes them for {app}")
        else:
            sentences.append(f"no message waits for {app}")
        sentences.append(f"consumers of {app} stay connected and receive nothing")
    sentences += [f"{app} receives messages posted from now on, and no earlier message" for app in added]
    return weight, sentences


def _ttl(old: Any, new: Any, facts: Facts, known: bool) -> _Judged:
    if old is None or new is None:
        return Weight.NOTE, []
    if new > old:
        return Weight.NOTE, [f"stored messages live {number(new - old)} s longer too"]
    if facts.older is not None:
        total = sum(facts.older.values())
        if not total:
            return Weight.NOTE, [f"no stored message is older than {number(new)} s"]
        worst = max(facts.older, key=lambda uri: (facts.older or {})[uri])
        return Weight.DELETES, [
            f"older than {number(new)} s, and deleted at the next check: {number(total)} of "
            f"{several(facts.messages, 'message')}, most of them in {worst}"
        ]
    if known and not facts.messages:
        return Weight.NOTE, ["no message is stored"]
    return Weight.DELETES, [f"stored messages older than {number(new)} s are deleted at the next check"]


def _domain_limit(unit: str) -> Callable[[Any, Any, Facts, bool], _Judged]:
    def judge(old: Any, new: Any, facts: Facts, known: bool) -> _Judged:
        held = facts.messages if unit == "messages" else facts.bytes
        if new is None or not known or held <= new:
            return Weight.NOTE, []
        return Weight.WARNING, [
            f"the domain holds {_amount(held, unit)}: posts are refused until consumers have made room, and "
            "no message is deleted"
        ]

    return judge


def _queue_limit(unit: str) -> Callable[[Any, Any, Facts, bool], _Judged]:
    def judge(old: Any, new: Any, facts: Facts, known: bool) -> _Judged:
        place = 0 if unit == "messages" else 1
        full = [uri for uri, held in facts.queues.items() if new is not None and held[place] > new]
        if not full:
            return Weight.NOTE, []
        names = ", ".join(full[:3]) + (f" and {len(full) - 3} more" if len(full) > 3 else "")
        return Weight.WARNING, [
            f"above the limit: {names}; posts are refused until consumers have made room, and no message is "
            "deleted"
        ]

    return judge


def _amount(held: int, unit: str) -> str:
    return several(held, "message") if unit == "messages" else size(held)


def _clients(who: str) -> Callable[[Any, Any, Facts, bool], _Judged]:
    def judge(old: Any, new: Any, facts: Facts, known: bool) -> _Judged:
        if not new or (old and new > old):
            return Weight.NOTE, []
        return Weight.WARNING, [f"{who} beyond {new} stay connected; further {who} are refused"]

    return judge


def _queues(old: Any, new: Any, facts: Facts, known: bool) -> _Judged:
    if not new or len(facts.queues) <= new:
        return Weight.NOTE, []
    return Weight.WARNING, [f"the {len(facts.queues)} existing queues stay; new queues are refused"]


def _attempts(old: Any, new: Any, facts: Facts, known: bool) -> _Judged:
    if not new:
        return Weight.NOTE, ["no message is deleted any more for its deliveries"]
    if not old:
        return Weight.WARNING, [
            f"a stored message is deleted after {new} further lost connections of its consumers"
        ]
    return Weight.NOTE, ["messages posted from now on have the new count; stored messages keep theirs"]


def _deduplication(old: Any, new: Any, facts: Facts, known: bool) -> _Judged:
    if known and not facts.queues:
        return Weight.NOTE, []
    return Weight.WARNING, [
        "existing queues keep their time until the broker restarts; new queues have the new"
    ]


def _consistency(old: Any, new: Any, facts: Facts, known: bool) -> _Judged:
    if new == "strong":
        return Weight.WARNING, ["posts are acknowledged later, after a majority of nodes has the message"]
    return Weight.WARNING, ["a lost primary can lose acknowledged messages"]


def _subscription(path: str, new: Any) -> _Judged:
    app = path.removeprefix("subscriptions[").removesuffix("]")
    if not new:
        return Weight.NOTE, [f"every message posted from now on is for {app or 'the consumers'}"]
    return Weight.WARNING, [
        f"messages posted from now on that do not match are confirmed at once for {app or 'all consumers'}"
    ]


def _idle(old: Any, new: Any, facts: Facts, known: bool) -> _Judged:
    return Weight.NOTE, ["concerns alarms in the broker's log only"]


_RULES: dict[str, Callable[[Any, Any, Facts, bool], _Judged]] = {
    "location": _location,
    "redirect": _refused("the redirection"),
    "mode": _refused("the mode"),
    "mode.fanout.appIDs": _app_ids,
    "storage.config": _refused("the kind of storage"),
    "storage.domainLimits.messages": _domain_limit("messages"),
    "storage.domainLimits.bytes": _domain_limit("bytes"),
    "storage.queueLimits.messages": _queue_limit("messages"),
    "storage.queueLimits.bytes": _queue_limit("bytes"),
    **{
        f"storage.{limits}.{unit}WatermarkRatio": _idle
        for limits in ("domainLimits", "queueLimits")
        for unit in ("messages", "bytes")
    },
    "maxConsumers": _clients("consumers"),
    "maxProducers": _clients("producers"),
    "maxQueues": _queues,
    "maxIdleTime": _idle,
    "messageTtl": _ttl,
    "maxDeliveryAttempts": _attempts,
    "deduplicationTimeMs": _deduplication,
    "consistency": _consistency,
}


# ---- showing

_MARKS = {Weight.NOTE: " ", Weight.WARNING: "!", Weight.DELETES: "!!", Weight.REFUSED: "!!"}


def shown_value(value: Any) -> str:
    """Return a value of a setting as text."""
    if value is None:
        return "(absent)"
    if type(value) in (list, dict):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def change_lines(change: Change) -> list[str]:
    """Return a difference and the consequences as lines of text."""
    lines = [f"    {change.path.lstrip('?')}: {shown_value(change.before)} -> {shown_value(change.after)}"]
    lines += [f"      {_MARKS[change.weight]:<2} {each}" for each in change.consequences]
    return lines


def change_object(change: Change) -> dict[str, Any]:
    """Return a difference for JSON."""
    return {
        "path": change.path.lstrip("?"),
        "before": change.before,
        "after": change.after,
        "weight": change.weight.name.lower(),
        "consequences": list(change.consequences),
    }
