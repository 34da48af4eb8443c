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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

from bmq.cli.output import BadInput
from bmq.subscriptions import Finding, check_domain

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
    """A number, a text or a truth value."""

    what: str
    legal: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class _Choice:
    """An object with one member, whose name is the value; further settings are below the name."""

    alternatives: Mapping[str, Mapping[str, _Member]]


_Kind: TypeAlias = "_Value | _Choice | Mapping[str, _Member] | Callable[[_Reader, Any, str], None]"


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of an object.

    Attributes:
        kind: legal values.
        default: value of a missing member; None for no value.
        required: why a broker needs the member; None for an optional member.
    """

    kind: _Kind
    default: Any = None
    required: str | None = None


class _Reader:
    """Reads one file: the settings, and the problems."""

    def __init__(self) -> None:
        self.settings: Settings = {}
        self.found: list[Finding] = []

    def error(self, where: str, message: str) -> None:
        self.found.append(Finding("error", where, message))

    def warning(self, where: str, message: str) -> None:
        self.found.append(Finding("warning", where, message))

    def has_error(self, prefix: str) -> bool:
        return any(each.severity == "error" and each.where.startswith(prefix) for each in self.found)

    def read(self, kind: _Kind, value: Any, path: str) -> None:
        """Check a value, and store the settings in the value."""
        match kind:
            case _Value(what, legal):
                if legal(value):
                    self.settings[path] = value
                else:
                    self.error(path, f"must be {what}, not {_shown(value)}")
            case _Choice(alternatives):
                given = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
                chosen = next(iter(given), "")
                if len(given) != 1 or chosen not in alternatives:
                    names = " or ".join(f'{{"{name}": {{}}}}' for name in alternatives)
                    self.error(path, f"must be {names}, not {_shown(value)}")
                    return
                self.settings[path] = chosen
                self.read(alternatives[chosen], given[chosen], f"{path}.{chosen}")
            case Mapping():
                self._object(kind, value, path)
            case _:
                kind(self, value, path)

    def _object(self, members: Mapping[str, _Member], value: Any, path: str) -> None:
        if not isinstance(value, dict):
            self.error(path or "the file", f"must be an object, not {_shown(value)}")
            return
        given = cast("dict[str, Any]", value)
        for name, content in given.items():
            if name not in members:
                self._unknown(f"{path}.{name}" if path else name, name, content, members)
        for name, member in members.items():
            where = f"{path}.{name}" if path else name
            if name in given:
                self.read(member.kind, given[name], _PLACES.get(where, where))
            elif member.required is not None:
                self.error(where, f"is missing{': ' if member.required else ''}{member.required}")
            elif member.default is not None:
                self.read(member.kind, member.default, where)

    def _unknown(self, where: str, name: str, content: Any, known: Iterable[str]) -> None:
        near = difflib.get_close_matches(name.lower(), {each.lower(): each for each in known}, 1)
        if near:
            right = next(each for each in known if each.lower() == near[0])
            self.error(where, f"is unknown to brokers, which skip it: did you mean {right}?")
            return
        self.warning(where, "is unknown to the schema: brokers skip the member, unless they are newer")
        self.settings[f"{UNKNOWN}{where}"] = content


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _integer(high: int) -> _Value:
    return _Value(f"an integer from 0 to {high}", lambda value: type(value) is int and 0 <= value <= high)


def _app_ids(reader: _Reader, value: Any, path: str) -> None:
    if not isinstance(value, list):
        reader.error(path, f"must be a list of appIds, not {_shown(value)}")
        return
    items = cast("list[object]", value)
    for index, each in enumerate(items):
        if not isinstance(each, str) or not each:
            reader.error(f"{path}[{index}]", f"must be a name, not {_shown(each)}")
            return
        if each in items[:index]:
            reader.error(f"{path}[{index}]", f"{each!r} is listed twice")
            return
    if not items:
        reader.warning(path, "no application: each message is deleted at once")
    reader.settings[path] = sorted(map(str, items))


def _subscriptions(reader: _Reader, value: Any, path: str) -> None:
    """Store the expressions by appId; :func:`check_domain` judges the entries."""
    if not isinstance(value, list):
        reader.error(path, f"must be a list, not {_shown(value)}")
        return
    for each in cast("list[object]", value):
        entry = _members(each)
        text: Any = _members(entry.get("expression")).get("text", "")
        reader.settings[f"{path}[{entry.get('appId', '')}]"] = text


def _members(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


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
    "appIDs": _Member(_app_ids, required=""),
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
    "subscriptions": _Member(_subscriptions),
}
_DOCUMENT = {
    "definition": _Member(
        {"location": _Member(_TEXT, required=""), "parameters": _Member(_PARAMETERS, required="")}
    ),
    "redirect": _Member(_TEXT),
}
# Settings have these paths instead of the paths in the file.
_PLACES = {"definition.location": "location", "definition.parameters": ""}


# ---- files


@dataclass(frozen=True, slots=True)
class DomainFile:
    """The file of a domain.

    Attributes:
        name: name of the domain.
        path: the file.
        content: bytes of the file.
        settings: values by path; empty for a file that cannot be read.
        findings: problems of the file.
    """

    name: str
    path: Path
    content: bytes = field(repr=False)
    settings: Settings = field(repr=False)
    findings: tuple[Finding, ...]

    @property
    def valid(self) -> bool:
        """Whether no finding is an error."""
        return all(finding.severity != "error" for finding in self.findings)


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
    except OSError as error:
        reader.error("the file", f"cannot be read: {error.strerror}")
    except RecursionError:
        reader.error("the file", "is nested too deeply")
    except ValueError as error:
        reader.error("the file", f"is not JSON: {error}")
    else:
        _read_document(name, document, reader)
    return DomainFile(name, path, content, reader.settings, tuple(reader.found))


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
    if not isinstance(document, dict) or len(cast("dict[str, Any]", document).keys() & _DOCUMENT) != 1:
        reader.error("the file", 'must have either "definition" or "redirect"')
        return
    reader.read(_DOCUMENT, document, "")
    if reader.settings.get("redirect") in ("", name):
        reader.error("redirect", "must be the name of another domain")
    parameters = _members(_members(document.get("definition")).get("parameters"))  # pyright: ignore[reportUnknownMemberType]
    if parameters:
        _check_parameters(name, parameters, reader)


def _check_parameters(name: str, parameters: Mapping[str, Any], reader: _Reader) -> None:
    """Report values that are legal alone and wrong together."""
    settings = reader.settings
    if settings.pop("name", name) != name:
        reader.error("name", f"must be the file's name, {name!r}: brokers find a domain by its file")
    mode = settings.get("mode")
    if mode == "broadcast" and settings.get("storage.config") == "fileBacked":
        reader.error(
            "storage.config", "must be inMemory in a broadcast domain: brokers refuse to open its queues"
        )
    if mode == "broadcast" and settings.get("consistency") == "strong":
        reader.warning("consistency", "brokers take a broadcast domain as eventual")
    if settings.get("storage.config") == "inMemory" and settings.get("consistency") == "strong":
        reader.warning("consistency", "a broker acknowledges no post to a strong domain in memory")
    if settings.get("messageTtl") == 0:
        reader.warning("messageTtl", "0 deletes messages after a second at most")
    for unit in ("messages", "bytes"):
        queue, domain = f"storage.queueLimits.{unit}", f"storage.domainLimits.{unit}"
        if settings.get(queue, 0) > settings.get(domain, 0):
            reader.warning(queue, f"has no effect: the limit of the whole domain is {settings.get(domain)}")
    if mode is not None and not reader.has_error("subscriptions"):
        checked = check_domain(dict(parameters))
        reader.found += [each for each in checked if each.where.startswith("subscriptions")]


def running_settings(configuration: Mapping[str, Any], location: str) -> Settings:
    """Return the settings of a running domain; members of newer brokers are below ``?``."""
    reader = _Reader()
    reader.read(_PARAMETERS, dict(configuration), "")
    reader.settings.pop("name", None)
    return reader.settings | {"location": location}
