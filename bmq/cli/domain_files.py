# SPDX-License-Identifier: Apache-2.0
"""The files of domains: a broker's own format, read by the schema of brokers (``mqbconf.xsd``).

A broker reads these files leniently: it skips unknown members, takes 0 for missing numbers, and reports most
mistakes only when a client opens a queue. This module reports the mistakes before.

Settings are compared in a flat form: the path of a member, such as ``storage.queueLimits.messages``, and its
value.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from bmq.cli.output import BadInput
from bmq.subscriptions import Finding, check_domain

if TYPE_CHECKING:
    from bmq.admin import DomainInfo

#: Values by path. The members that the schema does not know are below ``?``.
Settings: TypeAlias = dict[str, Any]

_INT32 = 2**31 - 1
_INT64 = 2**63 - 1
# A broker counts deliveries in six bits.
_MOST_ATTEMPTS = 63
# Characters of a queue's URI in the place of the domain.
_NAME = re.compile(r"[-a-zA-Z0-9._~]+")
#: The prefix of members that the schema does not know.
UNKNOWN = "?"


# ---- the schema


@dataclass(frozen=True, slots=True)
class _Value:
    """A number, a text, a truth value or a list."""

    what: str
    legal: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class _Choice:
    """An object with one member, whose name is the value; further settings are below the name."""

    alternatives: Mapping[str, Mapping[str, _Member]]


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of an object.

    Attributes:
        kind: legal values.
        default: value of a missing member; None for no value.
        required: why a broker needs the member; None for an optional member.
    """

    kind: _Value | _Choice | Mapping[str, _Member]
    default: Any = None
    required: str | None = None


def _integer(high: int) -> _Value:
    return _Value(f"an integer from 0 to {high}", lambda value: type(value) is int and 0 <= value <= high)


def _are_names(value: Any) -> bool:
    items = cast("list[object]", value) if isinstance(value, list) else [None]
    return all(isinstance(each, str) and each for each in items)


_RATIO = _Value("a number from 0 to 1", lambda value: type(value) in (int, float) and 0 <= value <= 1)
_TEXT = _Value("a text", lambda value: isinstance(value, str))
_FLAG = _Value("true or false", lambda value: type(value) is bool)
_COUNT = _Member(_integer(_INT32), default=0)
_LIMITS = {
    "messages": _Member(_integer(_INT64), required="a broker takes 0, a single message"),
    "messagesWatermarkRatio": _Member(_RATIO, default=0.8),
    "bytes": _Member(_integer(_INT64), required="a broker takes 0, a single message"),
    "bytesWatermarkRatio": _Member(_RATIO, default=0.8),
}
_FANOUT = {
    "appIDs": _Member(_Value("a list of appIds", _are_names), required=""),
    "publishAppIdMetrics": _Member(_FLAG, default=True),
}
_PARAMETERS = {
    "name": _Member(_TEXT),
    "mode": _Member(_Choice({"fanout": _FANOUT, "priority": {}, "broadcast": {}}), required=""),
    "storage": _Member(
        {
            "domainLimits": _Member(_LIMITS, required=""),
            "queueLimits": _Member(_LIMITS, required=""),
            "config": _Member(_Choice({"inMemory": {}, "fileBacked": {}}), required=""),
        },
        required="",
    ),
    "maxConsumers": _COUNT,
    "maxProducers": _COUNT,
    "maxQueues": _COUNT,
    "msgGroupIdConfig": _Member(
        {
            "rebalance": _Member(_FLAG, default=False),
            "maxGroups": _Member(_integer(_INT32), default=_INT32),
            "ttlSeconds": _Member(_integer(_INT64), default=0),
        }
    ),
    "maxIdleTime": _COUNT,
    "messageTtl": _Member(_integer(_INT64), required="a broker takes 0 and deletes messages after a second"),
    "maxDeliveryAttempts": _Member(_integer(_MOST_ATTEMPTS), default=0),
    "deduplicationTimeMs": _Member(_integer(_INT32), default=300_000),
    "consistency": _Member(
        _Choice({"eventual": {}, "strong": {}}),
        required="a broker takes eventual, and no longer shows the domain's configuration",
    ),
    "subscriptions": _Member(_Value("a list", lambda value: isinstance(value, list))),
}
_DOCUMENT = {
    "definition": _Member(
        {"location": _Member(_TEXT, required=""), "parameters": _Member(_PARAMETERS, required="")}
    ),
    "redirect": _Member(_TEXT),
}
# Settings have these paths instead of the paths in the file.
_PLACES = {"definition.location": "location", "definition.parameters": ""}


class _Reader:
    """Reads one file: the settings, and the problems."""

    def __init__(self) -> None:
        self.settings: Settings = {}
        self.found: list[Finding] = []

    def error(self, where: str, message: str) -> None:
        self.found.append(Finding("error", where, message))

    def warning(self, where: str, message: str) -> None:
        self.found.append(Finding("warning", where, message))

    @property
    def valid(self) -> bool:
        return all(each.severity != "error" for each in self.found)

    def read(self, kind: _Value | _Choice | Mapping[str, _Member], value: Any, path: str) -> None:
        """Check a value, and store the settings in the value."""
        given = cast("dict[str, Any]", value) if isinstance(value, dict) else None
        match kind:
            case _Value(what, legal):
                if not legal(value):
                    self.error(path, f"must be {what}, not {_shown(value)}")
                else:
                    self.settings[path] = value
            case _Choice(alternatives):
                chosen = next(iter(given)) if given is not None and len(given) == 1 else ""
                if given is None or chosen not in alternatives:
                    names = " or ".join(f'{{"{name}": {{}}}}' for name in alternatives)
                    self.error(path, f"must be {names}, not {_shown(value)}")
                else:
                    self.settings[path] = chosen
                    self.read(alternatives[chosen], given[chosen], f"{path}.{chosen}")
            case _ if given is None:
                self.error(path or "the file", f"must be an object, not {_shown(value)}")
            case _:
                self._members(kind, given, f"{path}." if path else "")

    def _members(self, members: Mapping[str, _Member], given: dict[str, Any], prefix: str) -> None:
        by_small_name = {each.lower(): each for each in members}
        for name in (each for each in given if each not in members):
            where = prefix + name
            if near := difflib.get_close_matches(name.lower(), by_small_name, 1):
                right = by_small_name[near[0]]
                self.error(where, f"is unknown to brokers, which skip it: did you mean {right}?")
            else:
                self.warning(
                    where, "is unknown to the schema: brokers skip the member, unless they are newer"
                )
                self.settings[f"{UNKNOWN}{where}"] = given[name]
        for name, member in members.items():
            where = prefix + name
            if name in given:
                self.read(member.kind, given[name], _PLACES.get(where, where))
            elif member.required is not None:
                self.error(where, f"is missing{': ' if member.required else ''}{member.required}")
            elif member.default is not None:
                self.settings[where] = member.default


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _in_any_order(settings: Settings) -> Settings:
    """Return legal settings with sorted appIds, and with the expressions of subscriptions by appId."""
    made = {path: value for path, value in settings.items() if path not in ("name", "subscriptions")}
    if "mode.fanout.appIDs" in made:
        made["mode.fanout.appIDs"] = sorted(made["mode.fanout.appIDs"])
    for entry in settings.get("subscriptions", ()):
        made[f"subscriptions[{entry.get('appId', '')}]"] = entry.get("expression", {}).get("text", "")
    return made


# ---- files


@dataclass(frozen=True, slots=True)
class DomainFile:
    """The file of a domain.

    Attributes:
        name: name of the domain.
        path: the file.
        content: bytes of the file.
        settings: values by path; empty for a file with errors.
        findings: problems of the file.
        valid: whether no finding is an error.
    """

    name: str
    path: Path
    content: bytes = field(repr=False)
    settings: Settings = field(repr=False)
    findings: tuple[Finding, ...]
    valid: bool


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
    reader = _Reader()
    name, content = path.stem, b""
    if not _NAME.fullmatch(name):
        reader.error("the file's name", f"{name!r} cannot be a domain: it has other characters than a URI")
    try:
        content = path.read_bytes()
        document = json.loads(content, object_pairs_hook=_unique, parse_constant=_no_constant)
        _read_document(name, document, reader)
    except OSError as error:
        reader.error("the file", f"cannot be read: {error.strerror}")
    except RecursionError:
        reader.error("the file", "is nested too deeply")
    except ValueError as error:
        reader.error("the file", f"is not JSON: {error}")
    settings = _in_any_order(reader.settings) if reader.valid else {}
    return DomainFile(name, path, content, settings, tuple(reader.found), reader.valid)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the member {twice!r} occurs twice in one object")
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def _read_document(name: str, document: Any, reader: _Reader) -> None:
    """Read the settings, and report values that are legal alone and wrong together."""
    given = cast("dict[str, Any]", document) if isinstance(document, dict) else {}
    if len(given.keys() & _DOCUMENT) != 1:
        reader.error("the file", 'must have either "definition" or "redirect"')
        return
    reader.read(_DOCUMENT, given, "")
    settings = reader.settings
    if settings.get("redirect") in ("", name):
        reader.error("redirect", "must be the name of another domain")
    if settings.get("name", name) != name:
        reader.error("name", f"must be the file's name, {name!r}: brokers find a domain by its file")
    apps = settings.get("mode.fanout.appIDs", [])
    for app in dict.fromkeys(each for each in apps if apps.count(each) > 1):
        reader.error("mode.fanout.appIDs", f"{app!r} is listed twice")
    if not apps and "mode.fanout.appIDs" in settings:
        reader.warning("mode.fanout.appIDs", "no application: each message is deleted at once")
    mode, storage = settings.get("mode"), settings.get("storage.config")
    strong = settings.get("consistency") == "strong"
    if mode == "broadcast" and storage == "fileBacked":
        reader.error(
            "storage.config", "must be inMemory in a broadcast domain: brokers refuse to open its queues"
        )
    if mode == "broadcast" and strong:
        reader.warning("consistency", "brokers take a broadcast domain as eventual")
    if storage == "inMemory" and strong:
        reader.warning("consistency", "a broker acknowledges no post to a strong domain in memory")
    if settings.get("messageTtl") == 0:
        reader.warning("messageTtl", "0 deletes messages after a second at most")
    for unit in ("messages", "bytes"):
        queue, domain = f"storage.queueLimits.{unit}", f"storage.domainLimits.{unit}"
        if settings.get(queue, 0) > settings.get(domain, 0):
            reader.warning(queue, f"has no effect: the limit of the whole domain is {settings.get(domain)}")
    if mode is not None and "subscriptions" in settings:
        checked = check_domain(given)
        reader.found += [each for each in checked if each.where.startswith("subscriptions")]


def running_settings(domain: DomainInfo) -> Settings:
    """Return the settings of a running domain; members of newer brokers are below ``?``."""
    reader = _Reader()
    reader.read(_PARAMETERS, {**domain.configuration}, "")
    return _in_any_order(reader.settings) | {"location": domain.cluster}
