# SPDX-License-Identifier: Apache-2.0
"""Differences of domains, and what each difference does to existing queues.

A broker applies most settings at once when it reads a domain's file again (``DOMAINS RECONFIGURE``). Some
settings are fixed for a loaded domain, and some reach only new queues. The rules were measured with a broker
of 2026, except the deduplication time and the delivery attempts, which were read in its source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bmq.admin.words import number, several, size
from bmq.cli.domain_files import UNKNOWN, Settings


class Weight(StrEnum):
    """How serious a change is."""

    #: Existing messages and clients are not affected.
    NOTE = "note"
    #: Clients are affected: posts or opens are refused, or the change has no full effect.
    WARNING = "warning"
    #: Messages are deleted.
    DELETES = "deletes"
    #: A broker refuses the change.
    REFUSED = "refused"


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
        weight, sentences = _judge(path, old, new, facts or Facts(), known=facts is not None)
        found.append(Change(path.lstrip(UNKNOWN), old, new, weight, tuple(sentences)))
    return found


_Judged = tuple[Weight, list[str]]
_FIXED = "remove the domain with its messages first (bmq admin DOMAINS REMOVE), or use another name"
_FIXED_MEMBERS = {
    "redirect": "the redirection",
    "mode": "the mode",
    "storage.config": "the kind of storage",
}


def _judge(path: str, old: Any, new: Any, facts: Facts, *, known: bool) -> _Judged:
    """Return the weight and the consequences of a change; ``known`` tells whether the facts are known."""
    last = path.rpartition(".")[2]
    match path:
        case "redirect" | "mode" | "storage.config":
            stored = f"; {several(facts.messages, 'message')} are stored" if facts.messages else ""
            what = _FIXED_MEMBERS[path]
            return Weight.REFUSED, [f"a broker refuses to change {what} of a loaded domain{stored}", _FIXED]
        case "location":
            why = f"a loaded domain stays in cluster {old}, and its messages do not move to {new}"
            return Weight.REFUSED, [why, _FIXED]
        case "mode.fanout.appIDs":
            return _judge_apps(old or (), new or (), facts)
        case "messageTtl" if old is not None and new is not None:
            return _judge_ttl(old, new, facts, known=known)
        case "storage.domainLimits.messages" | "storage.domainLimits.bytes" if new is not None and known:
            in_use = facts.messages if last == "messages" else facts.bytes
            amount = several(in_use, "message") if last == "messages" else size(in_use)
            if in_use > new:
                return Weight.WARNING, [f"the domain holds {amount}: {_FULL}"]
        case "storage.queueLimits.messages" | "storage.queueLimits.bytes" if new is not None:
            place = 0 if last == "messages" else 1
            if full := [uri for uri, held in facts.queues.items() if held[place] > new]:
                names = ", ".join(full[:3]) + (f" and {len(full) - 3} more" if len(full) > 3 else "")
                return Weight.WARNING, [f"above the limit: {names}; {_FULL}"]
        case "maxConsumers" | "maxProducers" if new and not (old and new > old):
            who = path.removeprefix("max").lower()
            return Weight.WARNING, [f"{who} beyond {new} stay connected; further {who} are refused"]
        case "maxQueues" if new and len(facts.queues) > new:
            return Weight.WARNING, [f"the {len(facts.queues)} existing queues stay; new queues are refused"]
        case "maxDeliveryAttempts" if not new:
            return Weight.NOTE, ["no message is deleted any more for its deliveries"]
        case "maxDeliveryAttempts" if not old:
            return Weight.WARNING, [
                f"a stored message is deleted after {new} further lost connections of its consumers"
            ]
        case "maxDeliveryAttempts":
            return Weight.NOTE, [
                "messages posted from now on have the new count; stored messages keep theirs"
            ]
        case "deduplicationTimeMs" if facts.queues or not known:
            return Weight.WARNING, [
                "existing queues keep their time until the broker restarts; new queues have the new"
            ]
        case "consistency" if new == "strong":
            return Weight.WARNING, ["posts are acknowledged later, after a majority of nodes has the message"]
        case "consistency":
            return Weight.WARNING, ["a lost primary can lose acknowledged messages"]
        case _ if path == "maxIdleTime" or last.endswith("WatermarkRatio"):
            return Weight.NOTE, ["concerns alarms in the broker's log only"]
        case _ if path.startswith("subscriptions["):
            app = path.removeprefix("subscriptions[").removesuffix("]")
            posted = "messages posted from now on"
            if not new:
                return Weight.NOTE, [f"every message posted from now on is for {app or 'the consumers'}"]
            return Weight.WARNING, [
                f"{posted} that do not match are confirmed at once for {app or 'all consumers'}"
            ]
        case _:
            pass
    return Weight.NOTE, []


_FULL = "posts are refused until consumers have made room, and no message is deleted"


def _judge_apps(old: Sequence[str], new: Sequence[str], facts: Facts) -> _Judged:
    removed = [each for each in old if each not in new]
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
    added = [each for each in new if each not in old]
    sentences += [f"{app} receives messages posted from now on, and no earlier message" for app in added]
    return weight, sentences


def _judge_ttl(old: int, new: int, facts: Facts, *, known: bool) -> _Judged:
    if new > old:
        return Weight.NOTE, [f"stored messages live {number(new - old)} s longer too"]
    if facts.older is not None:
        total = sum(facts.older.values())
        if not total:
            return Weight.NOTE, [f"no stored message is older than {number(new)} s"]
        worst = max(facts.older, key=facts.older.__getitem__)
        return Weight.DELETES, [
            f"older than {number(new)} s, and deleted at the next check: {number(total)} of "
            f"{several(facts.messages, 'message')}, most of them in {worst}"
        ]
    if known and not facts.messages:
        return Weight.NOTE, ["no message is stored"]
    return Weight.DELETES, [f"stored messages older than {number(new)} s are deleted at the next check"]


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
    lines = [f"    {change.path}: {shown_value(change.before)} -> {shown_value(change.after)}"]
    lines += [f"      {_MARKS[change.weight]:<2} {each}" for each in change.consequences]
    return lines
