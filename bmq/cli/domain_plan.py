# SPDX-License-Identifier: Apache-2.0
"""The steps from the domains of brokers to the domains of a folder, and what each difference does to queues.

A broker applies most settings at once when it reads a domain's file again (``DOMAINS RECONFIGURE``). Some
settings are fixed for a loaded domain, and some reach only new queues. The rules were measured with a broker
of 2026, except the deduplication time and the delivery attempts, which were read in its source.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bmq import _world
from bmq._words import number, several, size
from bmq.cli.domain_files import (
    UNKNOWN,
    DomainFile,
    Settings,
    domain_folder,
    read_domain,
    running_settings,
)

if TYPE_CHECKING:
    from bmq.admin import Admin, DomainInfo

# ---- differences


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


# ---- steps

#: The actions of steps.
ACTIONS = ("none", "change", "create", "refused", "invalid")
# Number of queues in a domain with counts by age or application. Each queue costs some commands.
_QUEUES_COUNTED = 200


@dataclass(frozen=True, slots=True)
class DomainStep:
    """The work for a domain.

    Attributes:
        file: the wanted domain.
        action: one of :data:`ACTIONS`.
        changes: differences of the running domain, or of the broker's file without a broker.
        writes: whether the broker's file has to be written.
        notes: further facts for people.
    """

    file: DomainFile
    action: str
    changes: tuple[Change, ...] = ()
    writes: bool = False
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the domain."""
        return self.file.name


@dataclass(frozen=True, slots=True)
class Plan:
    """The work for all domains.

    Attributes:
        steps: a step for each file, by name.
        unmanaged: loaded domains without a file in the folder. A plan does not change these domains.
    """

    steps: tuple[DomainStep, ...]
    unmanaged: tuple[str, ...] = ()
    brokers: tuple[str, ...] = ()

    def by(self, *actions: str) -> list[DomainStep]:
        """Return the steps with the given actions."""
        return [step for step in self.steps if step.action in actions]

    @property
    def summary(self) -> dict[str, int]:
        """The number of steps, by action."""
        return {action: len(self.by(action)) for action in ACTIONS}


async def running_domain(admin: Admin, name: str) -> DomainInfo | None:
    """Return a domain of a broker; None for an unknown domain.

    Raises:
        AdminError: the broker has the domain and cannot use the file.
    """
    import bmq

    try:
        return await admin.domain(name)
    except bmq.errors.AdminError as error:
        if "doesn't exist" in error.broker_message:
            return None
        raise


async def make_plan(
    files: list[DomainFile], nodes: dict[str, Admin], config_dir: Path | None, whole: Admin | None
) -> Plan:
    """Compare files with brokers and with the broker's folder.

    Args:
        files: the wanted domains.
        nodes: brokers by address; each node of a cluster has a separate configuration.
        config_dir: folder of the broker's configuration on this machine; None if unknown.
        whole: an admin client of all nodes, for the contents of queues; None without brokers.
    """
    clusters = {each.name for admin in nodes.values() for each in await admin.clusters()}
    steps = [await _step(file, nodes, config_dir, whole, clusters) for file in files]
    wanted = {file.name for file in files}
    loaded = {each.name for admin in nodes.values() for each in await admin.domains()}
    return Plan(tuple(steps), tuple(sorted(loaded - wanted)), tuple(nodes))


async def _step(
    file: DomainFile,
    nodes: dict[str, Admin],
    config_dir: Path | None,
    whole: Admin | None,
    clusters: set[str],
) -> DomainStep:
    import bmq

    if not file.valid:
        return DomainStep(file, "invalid")
    location = file.settings.get("location")
    notes: list[str] = []
    if clusters and location is not None and location not in clusters:
        known = ", ".join(sorted(clusters))
        return DomainStep(file, "refused", notes=(f"the broker has no cluster {location}, but {known}",))
    there = _file_of(config_dir, file.name)
    writes = config_dir is not None and (there is None or there.content != file.content)
    if not nodes or "redirect" in file.settings:  # a broker shows only the target of a redirection
        if nodes and config_dir is None:
            unseen = "brokers do not show redirections: only the file is checked"
            return DomainStep(file, "none", notes=(unseen,))
        before = None if there is None else there.settings
        return _judged(file, before, None, writes, notes, unknown=True)
    before, facts, lacking = None, None, 0
    for broker, admin in nodes.items():
        try:
            info = await running_domain(admin, file.name)
        except bmq.errors.AdminError as error:
            notes.append(f"{broker} cannot use its file: {error.broker_message}")
            lacking += 1
            continue
        if info is None or info.name != file.name:
            lacking += 1
            continue
        settings = running_settings(info.configuration, info.cluster)
        changes = compare(settings, file.settings, None, unknown=False)
        if before is None or (changes and not compare(before, file.settings, None, unknown=False)):
            before = settings
            facts = await _facts(whole or admin, info, changes, file.settings)
        elif settings != before:
            notes.append(f"the nodes differ: {broker} has other settings")
    if lacking and before is not None:
        notes.append(f"{lacking} of {len(nodes)} brokers have not loaded the domain")
    step = _judged(file, before, facts, writes, notes, unknown=False)
    if lacking and before is not None and step.action == "none":
        return replace(step, action="change")
    return step


def _judged(
    file: DomainFile,
    before: Settings | None,
    facts: Facts | None,
    writes: bool,
    notes: list[str],
    *,
    unknown: bool,
) -> DomainStep:
    if before is None:
        return DomainStep(file, "create", writes=writes, notes=tuple(notes))
    changes = tuple(compare(before, file.settings, facts, unknown=unknown))
    if any(change.weight is Weight.REFUSED for change in changes):
        action = "refused"
    else:
        action = "change" if changes or writes else "none"
    return DomainStep(file, action, changes, writes, tuple(notes))


def _file_of(config_dir: Path | None, name: str) -> DomainFile | None:
    if config_dir is None:
        return None
    path = domain_folder(config_dir) / f"{name}.json"
    return read_domain(path) if path.is_file() else None


async def _facts(admin: Admin, info: DomainInfo, changes: Iterable[Change], wanted: Settings) -> Facts:
    """Count the messages and clients affected by the changes. Other changes cost no further command."""
    facts = Facts(
        messages=sum(queue.messages for queue in info.queues),
        bytes=sum(queue.bytes for queue in info.queues),
        queues={queue.uri: (queue.messages, queue.bytes) for queue in info.queues},
    )
    filled = [queue.uri for queue in info.queues if queue.messages]
    if len(filled) > _QUEUES_COUNTED:
        return facts
    by_path = {change.path: change for change in changes}
    apps = by_path.get("mode.fanout.appIDs")
    if apps is not None:
        waiting: dict[str, dict[str, int]] = {app: {} for app in apps.before or ()}
        for uri in filled:
            for app in (await admin.queue(uri).depth()).apps:
                # After an expiry a broker counts more messages for an application than the broker stores.
                held = dict(facts.queues)[uri][0]
                waiting.setdefault(app.app_id, {})[uri] = min(app.messages, held)
        facts = replace(facts, waiting=waiting)
    ttl = by_path.get("messageTtl")
    if ttl is not None and ttl.before is not None and ttl.after < ttl.before:
        facts = replace(facts, older={uri: await _older(admin, uri, ttl.after) for uri in filled})
    return facts


async def _older(admin: Admin, uri: str, seconds: int) -> int:
    """Count the messages older than a lifetime. A broker lists messages by age."""
    queue = admin.queue(uri)
    oldest = _world.now() - timedelta(seconds=min(seconds, 10**9))
    low, high = 0, (await queue.depth()).messages
    while low < high:
        middle = (low + high) // 2
        page = await queue.messages(middle, 1)
        if page.messages and page.messages[0].arrival < oldest:
            low = middle + 1
        else:
            high = middle
    return low
