# SPDX-License-Identifier: Apache-2.0
"""The files of domains: a broker's own format, read by the rules of the embedded broker.

A broker reads these files leniently: it skips unknown members, takes 0 for missing numbers, and reports most
mistakes only when a client opens a queue. This module reports the mistakes before.

Settings are compared in a flat form: the path of a member, such as ``storage.queueLimits.messages``, and its
value.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import bmq
from bmq.broker.domain_config import DomainConfig, InvalidDomain, Mode, Redirect, parse_domain
from bmq.cli.output import BadInput
from bmq.subscriptions import Finding, check_domain

#: Values by path. The members that the schema does not know are below ``?``.
Settings: TypeAlias = dict[str, Any]

# Characters of a queue's URI in the place of the domain.
_NAME = re.compile(r"[-a-zA-Z0-9._~]+")
#: The prefix of members that the schema does not know.
UNKNOWN = "?"

# Objects with one member, whose name is the value; further settings are below the name.
_CHOICES: Final = {
    "mode": ("fanout", "priority", "broadcast"),
    "storage.config": ("inMemory", "fileBacked"),
    "consistency": ("eventual", "strong"),
}
# Members that the embedded broker skips, with their default values.
_GROUPS: Final = {"rebalance": False, "maxGroups": 2**31 - 1, "ttlSeconds": 0}
_METRICS: Final = "mode.fanout.publishAppIdMetrics"
_SKIPPED: Final = {
    "msgGroupIdConfig": _GROUPS,
    **{f"msgGroupIdConfig.{name}": value for name, value in _GROUPS.items()},
    _METRICS: True,
}
_ZERO: Final = "a broker takes 0, a single message"
# Members that every file has to have, and the reason.
_REQUIRED: Final = {
    "mode": "",
    "mode.fanout.appIDs": "",
    "storage": "",
    "storage.domainLimits": "",
    "storage.domainLimits.messages": _ZERO,
    "storage.domainLimits.bytes": _ZERO,
    "storage.queueLimits": "",
    "storage.queueLimits.messages": _ZERO,
    "storage.queueLimits.bytes": _ZERO,
    "storage.config": "",
    "messageTtl": "a broker takes 0 and deletes messages after a second",
    "consistency": "a broker takes eventual, and no longer shows the domain's configuration",
}


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _members(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Iterate over the members of an object, with their paths, and over the members of these members."""
    for name, member in value.items():
        yield prefix + name, member
        yield from _members(_object(member), f"{prefix}{name}.")


# The paths of all members.
_KNOWN: Final = {
    *(path for path, _ in _members(DomainConfig("", Mode.FANOUT).parameters())),
    *(f"{path}.{name}" for path, names in _CHOICES.items() for name in names),
    *_SKIPPED,
}


def _settings(parameters: Mapping[str, Any]) -> Settings:
    """Return the settings of complete parameters, in the order of the schema."""
    made: Settings = {}
    for path, value in _members(parameters):
        if path in _CHOICES:
            made[path] = next(iter(value), None)
        elif not isinstance(value, dict):
            made[path if path in _KNOWN else f"{UNKNOWN}{path}"] = value
    made.pop("name", None)
    if made["mode"] == "fanout":
        made.setdefault(_METRICS, True)
        made["mode.fanout.appIDs"] = sorted(made["mode.fanout.appIDs"])
    for entry in made.pop("subscriptions", ()):
        made[f"subscriptions[{entry.get('appId', '')}]"] = entry.get("expression", {}).get("text", "")
    return made


def running_settings(domain: bmq.admin.DomainInfo) -> Settings:
    """Return the settings of a running domain; members of newer brokers are below ``?``."""
    return _settings(domain.configuration) | {"location": domain.cluster}


# ---- files


@dataclass(slots=True)
class DomainFile:
    """The file of a domain.

    Attributes:
        name: name of the domain.
        path: the file.
        content: bytes of the file.
        settings: values by path; empty for a file with errors.
        findings: problems of the file.
    """

    name: str
    path: Path
    content: bytes = field(default=b"", repr=False)
    settings: Settings = field(default_factory=dict[str, Any], repr=False)
    findings: list[Finding] = field(default_factory=list[Finding])

    @property
    def valid(self) -> bool:
        """Whether no finding is an error."""
        return all(finding.severity != "error" for finding in self.findings)

    def error(self, where: str, message: str) -> None:
        """Add a finding with which a broker refuses or misunderstands the file."""
        self.findings.append(Finding("error", where, message))

    def warn(self, where: str, message: str) -> None:
        """Add a finding that may be intended."""
        self.findings.append(Finding("warning", where, message))


def domain_folder(folder: Path) -> Path:
    """Return the folder with the files: ``domains`` of a broker's configuration, or the folder itself."""
    inner = folder / "domains"
    return inner if inner.is_dir() else folder


def read_domains(path: Path) -> list[DomainFile]:
    """Read a file, or all files of a folder, by name.

    Raises:
        BadInput: the path does not exist, or the folder has no files of domains.
    """
    if path.is_file():
        return [read_domain(path)]
    if not path.is_dir():
        raise BadInput(f"{path} does not exist: give a folder with files DOMAIN.json, or one file")
    folder = domain_folder(path)
    files = sorted(each for each in folder.iterdir() if each.suffix == ".json" and each.is_file())
    if folder == path:  # the folder of a broker's configuration without domains
        files = [each for each in files if each.name not in ("bmqbrkrcfg.json", "clusters.json")]
    if not files:
        raise BadInput(f"{folder} has no files of domains: the file of domain D is D.json")
    return [read_domain(each) for each in files]


def read_domain(path: Path) -> DomainFile:
    """Read the file of one domain; problems are findings."""
    file = DomainFile(path.stem, path)
    if not _NAME.fullmatch(file.name):
        file.error("the file's name", f"{file.name!r} cannot be a domain: it has other characters than a URI")
    try:
        file.content = path.read_bytes()
        document = json.loads(file.content, object_pairs_hook=_unique, parse_constant=_no_constant)
        _read_document(file, document)
    except OSError as error:
        file.error("the file", f"cannot be read: {error.strerror}")
    except RecursionError:
        file.error("the file", "is nested too deeply")
    except InvalidDomain as error:
        where, _, why = str(error).removeprefix(f"{error.source}: ").partition(": ")
        file.error(where.removeprefix("definition.parameters."), why)
    except ValueError as error:
        file.error("the file", f"is not JSON: {error}")
    return file


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the member {twice!r} occurs twice in one object")
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def _read_document(file: DomainFile, document: Any) -> None:
    """Take the settings of a document.

    Raises:
        InvalidDomain: the broker would not read the document.
    """
    given = _object(document)
    if len({"definition", "redirect"} & given.keys()) != 1:
        file.error("the file", 'must have either "definition" or "redirect"')
        return
    definition = _object(given.get("definition"))
    parameters = _object(definition.get("parameters"))
    if parameters:
        _check_members(file, parameters)
    if not file.valid:
        return
    config = parse_domain(file.name, given)
    if isinstance(config, Redirect):
        file.settings = {"redirect": config.target}
        if config.target == file.name:
            file.error("redirect", "must be the name of another domain")
        return
    if not isinstance(definition.get("location"), str):
        file.error("definition.location", "must be the name of a cluster")
    if parameters.get("name", file.name) != file.name:
        file.error("name", f"must be the file's name, {file.name!r}: brokers find a domain by its file")
    _check_together(file, config)
    file.findings += [each for each in check_domain(parameters) if each.where.startswith("subscriptions")]
    if file.valid:
        defaults = config.parameters()
        if "msgGroupIdConfig" in parameters:
            defaults["msgGroupIdConfig"] = _GROUPS
        file.settings = {"location": definition["location"]} | _settings(_merged(defaults, parameters))


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {**defaults} | {
        name: _merged(defaults[name], _object(value)) if name in defaults and _object(value) else value
        for name, value in given.items()
    }


def _check_members(file: DomainFile, parameters: dict[str, Any]) -> None:
    """Report unknown and missing members, which a broker skips or takes as 0."""
    given = dict(_members(parameters))
    for path, value in given.items():
        parent, dot, name = path.rpartition(".")
        if path in _SKIPPED and type(value) is not type(_SKIPPED[path]):
            file.error(path, f"must be of the kind of {json.dumps(_SKIPPED[path])}, not {json.dumps(value)}")
        if path in _KNOWN or parent not in ("", *_KNOWN):
            continue
        prefix = parent + dot
        beside = {each.removeprefix(prefix).lower(): each for each in _KNOWN if each.startswith(prefix)}
        if parent in _CHOICES:
            file.error(parent, f"must be one of {', '.join(_CHOICES[parent])}, not {name}")
        elif near := difflib.get_close_matches(name.lower(), beside, 1):
            right = beside[near[0]].rpartition(".")[2]
            file.error(path, f"is unknown to brokers, which skip it: did you mean {right}?")
        else:
            file.warn(path, "is unknown to the schema: brokers skip the member, unless they are newer")
    for path, why in _REQUIRED.items():
        if path not in given and path.rpartition(".")[0] in ("", *given):
            file.error(path, f"is missing{': ' if why else ''}{why}")


def _check_together(file: DomainFile, config: DomainConfig) -> None:
    """Report values that are legal alone and wrong together."""
    broadcast, strong = config.mode is Mode.BROADCAST, config.consistency == "strong"
    if config.mode is Mode.FANOUT and not config.app_ids:
        file.warn("mode.fanout.appIDs", "no application: each message is deleted at once")
    if broadcast and config.file_backed:
        file.error(
            "storage.config", "must be inMemory in a broadcast domain: brokers refuse to open its queues"
        )
    if broadcast and strong:
        file.warn("consistency", "brokers take a broadcast domain as eventual")
    if strong and not config.file_backed:
        file.warn("consistency", "a broker acknowledges no post to a strong domain in memory")
    if config.message_ttl == 0:
        file.warn("messageTtl", "0 deletes messages after a second at most")
    for unit in ("messages", "bytes"):
        queue, domain = getattr(config.queue_limits, unit), getattr(config.domain_limits, unit)
        if queue > domain:
            why = f"has no effect: the limit of the whole domain is {domain}"
            file.warn(f"storage.queueLimits.{unit}", why)
