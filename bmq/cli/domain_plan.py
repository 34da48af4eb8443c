# SPDX-License-Identifier: Apache-2.0
"""The steps from the domains of brokers to the domains of a folder, a step for each domain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from bmq import _world
from bmq.cli.domain_changes import Change, Facts, Weight, compare
from bmq.cli.domain_files import DomainFile, Settings, domain_folder, read_domain, running_settings

if TYPE_CHECKING:
    from bmq.admin import Admin, DomainInfo

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
