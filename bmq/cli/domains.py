# SPDX-License-Identifier: Apache-2.0
"""``bmq domains``: domains as files under version control, and what each difference does to queues.

A broker reads the files of domains from the local disk, and an admin command makes the broker read a file
again (``DOMAINS RECONFIGURE``). ``apply`` therefore writes only the folder of ``--config-dir``; without the
option, the files have to be in place already. After each command ``apply`` asks the broker for the settings
in use, and reports a file in the wrong folder.

A broker applies most settings at once. Some settings are fixed for a loaded domain, and some reach only new
queues. The rules were measured with a broker of 2026, except the deduplication time and the delivery
attempts, which were read in its source.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import bmq
from bmq import _world
from bmq._words import listed, number, several, size
from bmq.admin import Admin, DomainInfo
from bmq.admin.results import StoredQueue
from bmq.cli.domain_files import (
    UNKNOWN,
    DomainFile,
    Settings,
    domain_folder,
    read_domain,
    read_domains,
    running_settings,
)
from bmq.cli.files import replace_file
from bmq.cli.output import BadInput, ExitStatus, confirmed, emit, emit_json, note
from bmq.cli.records import Form, Records
from bmq.cli.target import BrokerTarget, target_of
from bmq.cli.verb import OUTPUT, argument, option, verb

#: Fields of a line of ``plan`` as CSV, of ``apply``, and of ``diff``.
FIELDS = ("name", "file", "action", "writes", "findings", "notes", "changes")
APPLIED = ("name", "done", "problems")
DIFFERENCE = ("name", "only", "changes")

#: Exit status of ``plan`` with differences.
_CHANGES = 2


_FOLDER = Annotated[Path, argument("FOLDER", "Folder with one file for each name, or one such file.")]
_CONFIG_DIR = Annotated[
    Path | None,
    option("--config-dir -c FOLDER", "The broker's configuration on this machine, which apply writes."),
]


@verb("domains plan", failed=ExitStatus.FAILED)
async def plan_changes(
    target: BrokerTarget,
    folder: _FOLDER,
    config_dir: _CONFIG_DIR = None,
    offline: bool = option("--offline", "Ask no broker: check the files, and compare with --config-dir."),
    output: OUTPUT = Form.TABLE,
) -> int:
    """Compare files of domains with the broker, and show the differences with their consequences.

    The exit status is 0 without differences, 2 with differences, and 1 if a file is wrong, the broker would
    refuse a change, or the broker cannot be asked.

    [bold]Examples[/]

    $ bmq domains plan config/
    $ bmq domains plan config/ --output json | jq .summary
    """
    async with _planned(target, folder, config_dir, offline=offline) as plan:
        _show(plan, output)
        if plan.by("refused", "invalid"):
            return ExitStatus.FAILED
        return _CHANGES if plan.by("change", "create") else ExitStatus.OK


@verb("domains apply")
async def apply(
    target: BrokerTarget,
    folder: _FOLDER,
    config_dir: _CONFIG_DIR = None,
    output: OUTPUT = Form.TABLE,
    yes: bool = option("--yes -y", "Do not ask first."),
) -> int:
    """Apply files of domains to the running broker, after showing the plan.

    The exit status is 0 if the brokers have all settings of the folder, and 1 otherwise.

    [bold]Examples[/]

    $ bmq domains apply config/ --config-dir /etc/bmqbrkr
    """
    async with _planned(target, folder, config_dir) as plan:
        return await _apply(plan, output, yes=yes)


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
class _Facts:
    """The contents of a running domain.

    Attributes:
        queues: the stored queues; None if unknown.
        waiting: messages of each application by queue, as far as asked for.
        older: messages that are older than the new lifetime, by queue; None if not asked for.
    """

    queues: tuple[StoredQueue, ...] | None = None
    waiting: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    older: Mapping[str, int] | None = None

    @property
    def messages(self) -> int:
        """The number of stored messages."""
        return sum(queue.messages for queue in self.queues or ())


@dataclass(frozen=True, slots=True)
class _Change:
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
    weight: Weight
    consequences: tuple[str, ...]


def _compare(
    before: Settings, after: Settings, facts: _Facts = _Facts(), *, unknown: bool = False
) -> tuple[_Change, ...]:
    """Return the differences, in the order of the schema.

    Args:
        before: settings in use.
        after: wanted settings.
        facts: contents of the running domain.
        unknown: whether members that the schema does not know count. A broker drops such members.
    """
    paths = [*after, *(path for path in before if path not in after)]
    if ("redirect" in before) is not ("redirect" in after):
        paths = ["redirect"]
    elif before.get("mode") != after.get("mode"):
        paths = [path for path in paths if not path.startswith("mode.")]
    found: list[_Change] = []
    for path in paths:
        old, new = before.get(path), after.get(path)
        same = old == new and (path in before) is (path in after)
        if not same and (unknown or not path.startswith(UNKNOWN)):
            weight, *sentences = _judge(path, old, new, facts)
            found.append(_Change(path.lstrip(UNKNOWN), old, new, weight, tuple(sentences)))
    return tuple(found)


# The weight of a change, and the consequences in sentences.
_Judged = tuple[Weight, *tuple[str, ...]]
_FULL = "posts are refused until consumers have made room, and no message is deleted"
_FIXED = "remove the domain with its messages first (bmq admin DOMAINS REMOVE), or use another name"
_FIXED_MEMBERS = {"redirect": "the redirection", "mode": "the mode", "storage.config": "the kind of storage"}


def _judge(path: str, old: Any, new: Any, facts: _Facts) -> _Judged:
    match path.split("."):
        case ["redirect"] | ["mode"] | ["storage", "config"]:
            stored = f"; {several(facts.messages, 'message')} are stored" if facts.messages else ""
            what = _FIXED_MEMBERS[path]
            return Weight.REFUSED, f"a broker refuses to change {what} of a loaded domain{stored}", _FIXED
        case ["location"]:
            why = f"a loaded domain stays in cluster {old}, and its messages do not move to {new}"
            return Weight.REFUSED, why, _FIXED
        case ["mode", "fanout", "appIDs"]:
            return _judge_apps(old or (), new or (), facts)
        case ["messageTtl"] if old is not None and new is not None:
            return _judge_ttl(old, new, facts)
        case ["storage", limits, "messages" | "bytes" as unit] if new is not None:
            held = {queue.uri: getattr(queue, unit) for queue in facts.queues or ()}
            total = sum(held.values())
            if limits == "domainLimits" and total > new:
                amount = several(total, "message") if unit == "messages" else size(total)
                return Weight.WARNING, f"the domain holds {amount}: {_FULL}"
            if limits == "queueLimits" and (full := [uri for uri in held if held[uri] > new]):
                return Weight.WARNING, f"above the limit: {listed(full, 3)}; {_FULL}"
        case ["maxConsumers" | "maxProducers"] if new and not (old and new > old):
            who = path.removeprefix("max").lower()
            return Weight.WARNING, f"{who} beyond {new} stay connected; further {who} are refused"
        case ["maxQueues"] if new and (count := len(facts.queues or ())) > new:
            return Weight.WARNING, f"the {count} existing queues stay; new queues are refused"
        case ["maxDeliveryAttempts"] if not new:
            return Weight.NOTE, "no message is deleted any more for its deliveries"
        case ["maxDeliveryAttempts"] if not old:
            what = f"a stored message is deleted after {new} further lost connections of its consumers"
            return Weight.WARNING, what
        case ["maxDeliveryAttempts"]:
            return Weight.NOTE, "messages posted from now on have the new count; stored messages keep theirs"
        case ["deduplicationTimeMs"] if facts.queues != ():
            what = "existing queues keep their time until the broker restarts; new queues have the new"
            return Weight.WARNING, what
        case ["consistency"] if new == "strong":
            return Weight.WARNING, "posts are acknowledged later, after a majority of nodes has the message"
        case ["consistency"]:
            return Weight.WARNING, "a lost primary can lose acknowledged messages"
        case ["maxIdleTime"] | ["storage", _, "messagesWatermarkRatio" | "bytesWatermarkRatio"]:
            return Weight.NOTE, "concerns alarms in the broker's log only"
        case _ if path.startswith("subscriptions["):
            app = path.removeprefix("subscriptions[").removesuffix("]")
            if not new:
                return Weight.NOTE, f"every message posted from now on is for {app or 'the consumers'}"
            whose = app or "all consumers"
            return (
                Weight.WARNING,
                f"messages posted from now on that do not match are confirmed at once for {whose}",
            )
        case _:
            pass
    return (Weight.NOTE,)


def _judge_apps(old: Sequence[str], new: Sequence[str], facts: _Facts) -> _Judged:
    weight, sentences = Weight.NOTE, list[str]()
    for app in (each for each in old if each not in new):
        waiting = facts.waiting.get(app)
        total = None if waiting is None else sum(waiting.values())
        if waiting is None:
            sentences.append(f"the messages that wait for {app} are deleted for {app}")
        elif total:
            held = f"{several(total, 'message')} in {several(sum(map(bool, waiting.values())), 'queue')}"
            sentences.append(f"{app} loses {held}: removing the appId deletes them for {app}")
        else:
            sentences.append(f"no message waits for {app}")
        sentences.append(f"consumers of {app} stay connected and receive nothing")
        weight = Weight.WARNING if total == 0 and weight is not Weight.DELETES else Weight.DELETES
    added = (each for each in new if each not in old)
    sentences += [f"{app} receives messages posted from now on, and no earlier message" for app in added]
    return weight, *sentences


def _judge_ttl(old: int, new: int, facts: _Facts) -> _Judged:
    if new > old:
        return Weight.NOTE, f"stored messages live {number(new - old)} s longer too"
    if facts.queues is not None and not facts.messages:
        return Weight.NOTE, "no message is stored"
    if facts.older is None:
        return Weight.DELETES, f"stored messages older than {number(new)} s are deleted at the next check"
    total = sum(facts.older.values())
    if not total:
        return Weight.NOTE, f"no stored message is older than {number(new)} s"
    worst = max(facts.older, key=facts.older.__getitem__)
    count = f"{number(total)} of {several(facts.messages, 'message')}, most of them in {worst}"
    return Weight.DELETES, f"older than {number(new)} s, and deleted at the next check: {count}"


_MARKS = {Weight.NOTE: " ", Weight.WARNING: "!", Weight.DELETES: "!!", Weight.REFUSED: "!!"}


def _shown(value: Any) -> str:
    if value is None:
        return "(absent)"
    return value if isinstance(value, str) else json.dumps(value)


def _change_lines(change: _Change) -> list[str]:
    lines = [f"    {change.path}: {_shown(change.before)} -> {_shown(change.after)}"]
    return lines + [f"      {_MARKS[change.weight]:<2} {each}" for each in change.consequences]


# ---- comparing two sides


@verb("domains diff", broker=False)
async def diff(
    before: str = argument("A", "Folder or file, tcp://HOST:PORT, or a broker's name."),
    after: str = argument("B", "As for A."),
    output: OUTPUT = Form.TABLE,
    timeout: float = option("--timeout SECONDS", "Time limit for each request.", 10.0, min=0.001),
) -> int:
    """Compare the configurations of domains of two folders, files or running brokers.

    A difference is shown with the consequences of changing A to B. Default values count as given. A broker
    shows loaded domains, and the domains named by side A or B.

    The exit status is 0 without differences, and 1 with differences.

    [bold]Examples[/]

    $ bmq domains diff staging/domains production/domains
    $ bmq domains diff tcp://localhost:30114 config/
    $ bmq domains diff staging production --output json
    """
    first, second = _read_side(before), _read_side(after)
    one = await _ask_side(before, second or (), timeout) if first is None else first
    two = await _ask_side(after, one, timeout) if second is None else second
    unknown = first is not None and second is not None
    records = Records.of(output, DIFFERENCE)
    different = False
    for name in sorted({*one, *two}):
        left, right = one.get(name), two.get(name)
        only = before if right is None else after if left is None else None
        changes = _compare(left, right, unknown=unknown) if left is not None and right is not None else ()
        if only is None and not changes:
            continue
        different = True
        if records is not None:
            records.write({"name": name, "only": only, "changes": changes})
            continue
        lines = [line for change in changes for line in _change_lines(change)]
        emit(f"{name}:" if only is None else f"{name}: only in {only}", *lines)
    return ExitStatus.FAILED if different else ExitStatus.OK


def _read_side(text: str) -> dict[str, Settings] | None:
    """Return the settings in a folder or a file by domain; None for a broker."""
    if "://" in text:
        return None
    if not Path(text).exists():
        if "/" in text or text.endswith(".json"):
            raise BadInput(f"{text} does not exist")
        return None
    files = read_domains(Path(text))
    for file in files:
        for finding in file.findings:
            note(f"bmq domains diff: {file.path}: {finding}")
        if not file.valid:
            raise BadInput(f"{file.path} is not a valid file of a domain")
    return {file.name: file.settings for file in files}


async def _ask_side(broker: str, others: Iterable[str], timeout: float) -> dict[str, Settings]:
    """Ask a broker for the settings of the loaded domains, and of other domains."""
    found: dict[str, Settings] = {}
    async with target_of("domains diff", {"broker": broker}, timeout=timeout).admin() as admin:
        loaded = [each.name for each in await admin.domains()]
        for name in dict.fromkeys([*loaded, *others]):
            try:
                info = await _running_domain(admin, name)
            except bmq.errors.AdminError as error:
                note(f"bmq domains diff: {broker} does not show {name}: {error.broker_message}")
            else:
                if info is not None:
                    found[name] = running_settings(info)
    return found


#: The actions: function and purpose.
SUBCOMMANDS: Final = {
    "plan": (plan_changes, "Show the differences between files and the broker."),
    "apply": (apply, "Apply the differences to the running broker."),
    "diff": (diff, "Compare the domains of two folders, files or brokers."),
}


def domains() -> None:
    """Compare files of domains with a broker, apply the differences, or compare two folders or brokers.

    The files have the broker's own format. Each difference has a list of consequences for existing
    queues: expired or dropped messages, refused posts, refused changes.

    [bold]Examples[/]

    $ bmq domains plan config/
    $ bmq domains apply config/ --config-dir /etc/bmqbrkr
    $ bmq domains diff staging/domains production/domains
    """


# ---- planning

#: The actions of steps, with their texts.
_ACTIONS: Final = {
    "none": "no change",
    "change": "change",
    "create": "new",
    "refused": "REFUSED by the broker",
    "invalid": "INVALID",
}
# Number of queues in a domain with counts by age or application. Each queue costs some commands.
_QUEUES_COUNTED = 200


@dataclass(slots=True)
class _Step:
    """The work for a domain.

    Attributes:
        file: the wanted domain.
        action: what is to be done.
        changes: differences of the running domain, or of the broker's file without a broker.
        path: the broker's file, if it has to be written.
        notes: further facts for people.
    """

    file: DomainFile
    action: str = "none"
    changes: tuple[_Change, ...] = ()
    path: Path | None = None
    notes: list[str] = field(default_factory=list[str])

    @property
    def row(self) -> dict[str, object]:
        """The step as a record."""
        findings = [
            {"severity": each.severity, "where": each.where, "message": each.message}
            for each in self.file.findings
        ]
        return {
            "name": self.file.name,
            "file": str(self.file.path),
            "action": self.action,
            "writes": self.path is not None,
            "findings": findings,
            "notes": self.notes,
            "changes": self.changes,
        }

    @property
    def lines(self) -> list[str]:
        """The step for people."""
        if self.action == "none" and not (self.notes or self.file.findings):
            return []
        lines = [f"{self.file.name}: {_ACTIONS[self.action]}"]
        lines += [f"    {each}" for each in (*self.file.findings, *self.notes)]
        for change in self.changes:
            lines += _change_lines(change)
        if self.action == "create":
            lines.append("    the broker loads the domain")
        if self.path is not None and self.action in ("change", "create"):
            lines.append("    the broker's file is written")
        return lines


@dataclass(frozen=True, slots=True)
class _Plan:
    """The work for all domains.

    Attributes:
        steps: a step for each file, by name.
        nodes: brokers by address; each node of a cluster has a separate configuration.
        unmanaged: loaded domains without a file in the folder. A plan does not change these domains.
    """

    steps: list[_Step]
    nodes: dict[str, Admin]
    unmanaged: list[str]

    def by(self, *actions: str) -> list[_Step]:
        """Return the steps with the given actions."""
        return [step for step in self.steps if step.action in actions]

    @property
    def summary(self) -> dict[str, int]:
        """The number of steps, by action."""
        counts = Counter(step.action for step in self.steps)
        return {action: counts[action] for action in _ACTIONS}

    @property
    def lines(self) -> list[str]:
        """The plan for people."""
        lines = [line for step in self.steps for line in step.lines]
        if self.unmanaged:
            lines.append(f"left alone, without a file: {', '.join(self.unmanaged)}")
        counts = self.summary
        parts = [
            f"{counts['change']} to change",
            f"{counts['create']} new",
            f"{counts['none']} without changes",
        ]
        parts += [f"{counts[each]} {each}" for each in ("refused", "invalid") if counts[each]]
        return [*lines, f"{several(len(self.steps), 'domain')}: {', '.join(parts)}"]


def _read_files(folder: Path, config_dir: Path | None) -> list[DomainFile]:
    if config_dir is not None and not config_dir.is_dir():
        raise BadInput(f"--config-dir must be a folder that exists, not {config_dir}")
    return read_domains(folder)


@asynccontextmanager
async def _planned(
    target: BrokerTarget, folder: Path, config_dir: Path | None, *, offline: bool = False
) -> AsyncGenerator[_Plan]:
    """Compare files with each broker, or without brokers with the folder of a broker's configuration."""
    files = _read_files(folder, config_dir)
    async with AsyncExitStack() as stack:
        nodes: dict[str, Admin] = {}
        for uri in dict.fromkeys(each.strip() for each in target.uri.split(",") if each.strip()):
            if not offline:
                nodes[uri] = await stack.enter_async_context(replace(target, uri=uri).admin())
        # The contents of queues come from all nodes.
        whole = await stack.enter_async_context(target.admin()) if len(nodes) > 1 else None
        clusters = {each.name for admin in nodes.values() for each in await admin.clusters()}
        loaded = {each.name for admin in nodes.values() for each in await admin.domains()}
        steps = [await _plan_step(file, nodes, config_dir, whole, clusters) for file in files]
        yield _Plan(steps, nodes, sorted(loaded - {file.name for file in files}))


async def _plan_step(
    file: DomainFile,
    nodes: dict[str, Admin],
    config_dir: Path | None,
    whole: Admin | None,
    clusters: set[str],
) -> _Step:
    step = _Step(file)
    if not file.valid:
        step.action = "invalid"
        return step
    location = file.settings.get("location")
    if clusters and location is not None and location not in clusters:
        known = ", ".join(sorted(clusters))
        step.action = "refused"
        step.notes.append(f"the broker has no cluster {location}, but {known}")
        return step
    path = None if config_dir is None else domain_folder(config_dir) / f"{file.name}.json"
    there = read_domain(path) if path is not None and path.is_file() else None
    if there is None or there.content != file.content:
        step.path = path
    if nodes and "redirect" not in file.settings:
        before = await _compare_nodes(step, nodes, whole)
    elif nodes and path is None:
        step.notes.append("brokers do not show redirections: only the file is checked")
        return step
    else:
        before = None if there is None else there.settings
        step.changes = () if before is None else _compare(before, file.settings, unknown=True)
    if before is None:
        step.action = "create"
    elif any(change.weight is Weight.REFUSED for change in step.changes):
        step.action = "refused"
    elif step.changes or step.path is not None:
        step.action = "change"
    return step


async def _compare_nodes(step: _Step, nodes: dict[str, Admin], whole: Admin | None) -> Settings | None:
    """Store the changes of the first node that differs, and return the node's settings.

    None if no node has the domain.
    """
    file, before = step.file, None
    lacking = 0
    for broker, admin in nodes.items():
        try:
            info = await _running_domain(admin, file.name)
        except bmq.errors.AdminError as error:
            step.notes.append(f"{broker} cannot use its file: {error.broker_message}")
            info = None
        if info is None:
            lacking += 1
            continue
        settings = running_settings(info)
        changes = _compare(settings, file.settings)
        if before is None or (changes and not step.changes):
            before = settings
            facts = await _ask_facts(whole or admin, info, changes)
            step.changes = _compare(settings, file.settings, facts)
        elif settings != before:
            step.notes.append(f"the nodes differ: {broker} has other settings")
    if lacking and before is not None:
        step.notes.append(f"{lacking} of {len(nodes)} brokers have not loaded the domain")
        step.action = "change"
    return before


async def _running_domain(admin: Admin, name: str) -> DomainInfo | None:
    """Return a domain of a broker; None for an unknown domain, and for a redirection.

    Raises:
        AdminError: the broker has the domain and cannot use the file.
    """
    try:
        info = await admin.domain(name)
    except bmq.errors.AdminError as error:
        if "doesn't exist" in error.broker_message:
            return None
        raise
    return info if info.name == name else None


async def _ask_facts(admin: Admin, info: DomainInfo, changes: Iterable[_Change]) -> _Facts:
    """Count the messages and clients affected by the changes. Other changes cost no further command."""
    facts = _Facts(info.queues)
    held = {queue.uri: queue.messages for queue in info.queues if queue.messages}
    if len(held) > _QUEUES_COUNTED:
        return facts
    for change in changes:
        if change.path == "mode.fanout.appIDs":
            waiting: dict[str, dict[str, int]] = {app: {} for app in change.before or ()}
            for uri, stored in held.items():
                for app in (await admin.queue(uri).depth()).apps:
                    # After an expiry a broker counts more messages for an application than it stores.
                    waiting.setdefault(app.app_id, {})[uri] = min(app.messages, stored)
            facts = replace(facts, waiting=waiting)
        elif change.path == "messageTtl" and change.weight is Weight.DELETES:
            facts = replace(facts, older={uri: await _older(admin, uri, change.after) for uri in held})
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


def _show(plan: _Plan, output: Form) -> None:
    if output is Form.JSON:
        emit_json(
            {
                "summary": plan.summary,
                "brokers": [*plan.nodes],
                "domains": [step.row for step in plan.steps],
                "unmanaged": plan.unmanaged,
            }
        )
    elif records := Records.of(output, FIELDS):
        for step in plan.steps:
            records.write(step.row)
    else:
        emit(*plan.lines)


# ---- applying


async def _apply(plan: _Plan, output: Form, *, yes: bool) -> int:
    steps, left = plan.by("change", "create"), plan.by("refused", "invalid")
    results = Records.of(output, APPLIED)
    if results is None:
        emit(*plan.lines)
    elif not yes:
        note("\n".join(plan.lines))  # stdout has records alone
    if steps and not yes and not confirmed(f"Apply {several(len(steps), 'change')}?"):
        return ExitStatus.FAILED
    failed = False
    for step in (*steps, *left):
        name, problems = step.file.name, ["not applied: see the plan"]
        if step in steps:
            problems = await _apply_step(step, plan.nodes)
        if results is not None:
            results.write({"name": name, "done": not problems, "problems": problems})
        elif not problems:
            emit(f"{name}: done")
        for problem in problems:
            failed = True
            note(f"bmq domains apply: {name}: {problem}")
    return ExitStatus.FAILED if failed else ExitStatus.OK


async def _apply_step(step: _Step, nodes: dict[str, Admin]) -> list[str]:
    """Write the file, have each broker read the file, and compare; return the problems."""
    previous: bytes | None = None
    path = step.path
    if path is not None:
        try:
            previous = path.read_bytes() if path.exists() else None
            _write(path, step.file.content)
        except OSError as error:
            return [f"{path} cannot be written: {error.strerror}"]
    problems: list[str] = []
    refused = False
    for broker, admin in nodes.items():
        try:
            if "redirect" in step.file.settings:
                await admin.clear_caches()
            else:
                await admin.reconfigure(step.file.name)
                problems += await _check_applied(broker, admin, step.file)
        except bmq.errors.AdminError as error:
            refused = True
            problems.append(f"{broker} refused: {error.broker_message}")
        except bmq.Error as error:
            problems.append(f"{broker}: {error}")
    if refused and path is not None and len(nodes) == 1:
        # The broker keeps the settings: the file must not differ at the next start.
        try:
            _write(path, previous)
            problems.append(f"{path} has its previous content again")
        except OSError as error:
            problems.append(f"{path} keeps the refused content: {error.strerror}")
    return problems


async def _check_applied(broker: str, admin: Admin, file: DomainFile) -> list[str]:
    info = await _running_domain(admin, file.name)
    if info is None:
        return [f"{broker} has no such domain: does the broker read the file?"]
    return [
        f"{broker} still has {each.path} {_shown(each.before)} instead of {_shown(each.after)}: "
        "the broker reads another file; copy the files to the broker's folder, or give --config-dir"
        for each in _compare(running_settings(info), file.settings)[:1]
    ]


def _write(path: Path, content: bytes | None) -> None:
    """Replace a file at once: a broker never reads half a file. None deletes the file."""
    if content is None:
        path.unlink(missing_ok=True)
    else:
        replace_file(path, content, path.stat().st_mode & 0o777 if path.exists() else 0o644)
