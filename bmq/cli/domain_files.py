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

from bmq.cli.messages import BadInput
from bmq.subscriptions import Finding, check_domain

__all__ = ["DomainFile", "Settings", "domain_folder", "read_domain", "read_domains", "running_settings"]

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


class _Problems:
    """Collects findings of one file."""

    def __init__(self) -> None:
        self.found: list[Finding] = []

    def error(self, where: str, message: str) -> None:
        self.found.append(Finding("error", where, message))

    def warning(self, where: str, message: str) -> None:
        self.found.append(Finding("warning", where, message))


# ---- the schema

# A reader checks a value, stores the value in the settings, and reports problems.
_Reader: TypeAlias = Callable[[Any, str, Settings, _Problems], None]


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _value(what: str, legal: Callable[[Any], bool], stored: Callable[[Any], Any] | None = None) -> _Reader:
    def read(value: Any, path: str, settings: Settings, problems: _Problems) -> None:
        if legal(value):
            settings[path] = value if stored is None else stored(value)
        else:
            problems.error(path, f"must be {what}, not {_shown(value)}")

    return read


def _integer(low: int, high: int) -> _Reader:
    return _value(
        f"an integer from {low} to {high}", lambda value: type(value) is int and low <= value <= high
    )


_ratio = _value("a number from 0 to 1", lambda value: type(value) in (int, float) and 0 <= value <= 1, float)
_text = _value("a text", lambda value: isinstance(value, str))
_flag = _value("true or false", lambda value: type(value) is bool)


def _app_ids(value: Any, path: str, settings: Settings, problems: _Problems) -> None:
    if type(value) is not list:
        problems.error(path, f"must be a list of appIds, not {_shown(value)}")
        return
    items = _items(value)
    for index, each in enumerate(items):
        if not isinstance(each, str) or not each:
            problems.error(f"{path}[{index}]", f"must be a name, not {_shown(each)}")
            return
        if each in items[:index]:
            problems.error(f"{path}[{index}]", f"{each!r} is listed twice")
            return
    if not items:
        problems.warning(path, "no application: each message is deleted at once")
    settings[path] = sorted(cast("list[str]", items))


def _items(value: Any) -> list[Any]:
    return cast("list[Any]", value)


def _members(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _subscriptions(value: Any, path: str, settings: Settings, problems: _Problems) -> None:
    """Store the expressions by appId; :func:`check_domain` judges the entries."""
    if type(value) is not list:
        problems.error(path, f"must be a list, not {_shown(value)}")
        return
    for each in _items(value):
        entry = _members(each)
        text: Any = _members(entry.get("expression")).get("text", "")
        settings[f"{path}[{entry.get('appId', '')}]"] = text


@dataclass(frozen=True)
class _Member:
    read: _Reader
    default: Any = None
    required: bool = False
    #: Why a broker needs a required member.
    missing: str = ""


def _object(members: dict[str, _Member]) -> _Reader:
    def read(value: Any, path: str, settings: Settings, problems: _Problems) -> None:
        if not isinstance(value, dict):
            problems.error(path or "the file", f"must be an object, not {_shown(value)}")
            return
        given = cast("dict[str, Any]", value)
        for name, content in given.items():
            if name not in members:
                _unknown(name, content, path, members, settings, problems)
        for name, member in members.items():
            where = f"{path}.{name}" if path else name
            if name in given:
                member.read(given[name], where, settings, problems)
            elif member.required:
                problems.error(where, f"is missing{': ' if member.missing else ''}{member.missing}")
            elif member.default is not None:
                member.read(member.default, where, settings, problems)

    return read


def _unknown(
    name: str, content: Any, path: str, known: Iterable[str], settings: Settings, problems: _Problems
) -> None:
    where = f"{path}.{name}" if path else name
    near = difflib.get_close_matches(name.lower(), {each.lower(): each for each in known}, 1)
    if near:
        right = next(each for each in known if each.lower() == near[0])
        problems.error(where, f"is unknown to brokers, which skip it: did you mean {right}?")
        return
    problems.warning(where, "is unknown to the schema: brokers skip the member, unless they are newer")
    settings[f"{UNKNOWN}{where}"] = content


def _choice(alternatives: dict[str, dict[str, _Member]]) -> _Reader:
    """Read an object with one member, whose name is the value; further settings are below the name."""
    readers = {name: _object(members) for name, members in alternatives.items()}

    def read(value: Any, path: str, settings: Settings, problems: _Problems) -> None:
        chosen: list[str] = [*cast("dict[str, Any]", value)] if isinstance(value, dict) else []
        if len(chosen) != 1 or chosen[0] not in readers:
            names = " or ".join(f'{{"{name}": {{}}}}' for name in readers)
            problems.error(path, f"must be {names}, not {_shown(value)}")
            return
        settings[path] = chosen[0]
        readers[chosen[0]](value[chosen[0]], f"{path}.{chosen[0]}", settings, problems)

    return read


_COUNT = _Member(_integer(0, _INT32), default=0)
_LIMITS = _object(
    {
        "messages": _Member(_integer(0, _INT64), required=True, missing="a broker takes 0, a single message"),
        "messagesWatermarkRatio": _Member(_ratio, default=0.8),
        "bytes": _Member(_integer(0, _INT64), required=True, missing="a broker takes 0, a single message"),
        "bytesWatermarkRatio": _Member(_ratio, default=0.8),
    }
)
_PARAMETERS: dict[str, _Member] = {
    "name": _Member(_text),
    "mode": _Member(
        _choice(
            {
                "fanout": {
                    "appIDs": _Member(_app_ids, required=True),
                    "publishAppIdMetrics": _Member(_flag, default=True),
                },
                "priority": {},
                "broadcast": {},
            }
        ),
        required=True,
    ),
    "storage": _Member(
        _object(
            {
                "domainLimits": _Member(_LIMITS, required=True),
                "queueLimits": _Member(_LIMITS, required=True),
                "config": _Member(_choice({"inMemory": {}, "fileBacked": {}}), required=True),
            }
        ),
        required=True,
    ),
    "maxConsumers": _COUNT,
    "maxProducers": _COUNT,
    "maxQueues": _COUNT,
    "msgGroupIdConfig": _Member(
        _object(
            {
                "rebalance": _Member(_flag, default=False),
                "maxGroups": _Member(_integer(0, _INT32), default=_INT32),
                "ttlSeconds": _Member(_integer(0, _INT64), default=0),
            }
        )
    ),
    "maxIdleTime": _COUNT,
    "messageTtl": _Member(
        _integer(0, _INT64), required=True, missing="a broker takes 0 and deletes messages after a second"
    ),
    "maxDeliveryAttempts": _Member(_integer(0, _MOST_ATTEMPTS), default=0),
    "deduplicationTimeMs": _Member(_integer(0, _INT32), default=300_000),
    "consistency": _Member(
        _choice({"eventual": {}, "strong": {}}),
        required=True,
        missing="a broker takes eventual, and no longer shows the domain's configuration",
    ),
    "subscriptions": _Member(_subscriptions),
}
_read_parameters = _object(_PARAMETERS)


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
    problems = _Problems()
    settings: Settings = {}
    name = path.stem
    if not _NAME.fullmatch(name):
        problems.error("the file's name", f"{name!r} cannot be a domain: it has other characters than a URI")
    try:
        content = path.read_bytes()
    except OSError as error:
        problems.error("the file", f"cannot be read: {error.strerror}")
        return DomainFile(name, path, b"", {}, tuple(problems.found))
    try:
        document = json.loads(content, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        problems.error("the file", "is nested too deeply")
    except ValueError as error:
        problems.error("the file", f"is not JSON: {error}")
    else:
        _read_document(name, document, settings, problems)
    return DomainFile(name, path, content, settings, tuple(problems.found))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the member {twice!r} occurs twice in one object")
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def _read_document(name: str, document: Any, settings: Settings, problems: _Problems) -> None:
    if not isinstance(document, dict) or len(cast("dict[str, Any]", document).keys() & _TOP) != 1:
        problems.error("the file", 'must have either "definition" or "redirect"')
        return
    content = cast("dict[str, Any]", document)
    for other in content:
        if other not in _TOP:
            _unknown(other, content[other], "", _TOP, settings, problems)
    if "redirect" in content:
        _text(content["redirect"], "redirect", settings, problems)
        if settings.get("redirect") in ("", name):
            problems.error("redirect", "must be the name of another domain")
        return
    definition = content["definition"]
    if not isinstance(definition, dict):
        problems.error("definition", f"must be an object, not {_shown(definition)}")
        return
    members = cast("dict[str, Any]", definition)
    for required in ("location", "parameters"):
        if required not in members:
            problems.error(f"definition.{required}", "is missing")
    for other in members:
        if other not in ("location", "parameters"):
            _unknown(other, members[other], "definition", ("location", "parameters"), settings, problems)
    if "location" in members:
        _text(members["location"], "location", settings, problems)
    if "parameters" in members:
        _read_parameters(members["parameters"], "", settings, problems)
        _check_parameters(name, members["parameters"], settings, problems)


_TOP = frozenset({"definition", "redirect"})


def _check_parameters(name: str, parameters: Any, settings: Settings, problems: _Problems) -> None:
    """Report values that are legal alone and wrong together."""
    if settings.pop("name", name) != name:
        problems.error("name", f"must be the file's name, {name!r}: brokers find a domain by its file")
    mode = settings.get("mode")
    if mode == "broadcast" and settings.get("storage.config") == "fileBacked":
        problems.error(
            "storage.config", "must be inMemory in a broadcast domain: brokers refuse to open its queues"
        )
    if mode == "broadcast" and settings.get("consistency") == "strong":
        problems.warning("consistency", "brokers take a broadcast domain as eventual")
    if settings.get("storage.config") == "inMemory" and settings.get("consistency") == "strong":
        problems.warning("consistency", "a broker acknowledges no post to a strong domain in memory")
    if settings.get("messageTtl") == 0:
        problems.warning("messageTtl", "0 deletes messages after a second at most")
    for unit in ("messages", "bytes"):
        queue, domain = f"storage.queueLimits.{unit}", f"storage.domainLimits.{unit}"
        if settings.get(queue, 0) > settings.get(domain, 0):
            problems.warning(queue, f"has no effect: the limit of the whole domain is {settings.get(domain)}")
    if mode is not None and isinstance(parameters, dict) and not _has_error(problems, "subscriptions"):
        checked = cast("dict[str, Any]", parameters)
        problems.found += [each for each in check_domain(checked) if each.where.startswith("subscriptions")]


def _has_error(problems: _Problems, prefix: str) -> bool:
    return any(each.severity == "error" and each.where.startswith(prefix) for each in problems.found)


def running_settings(configuration: Mapping[str, Any], location: str) -> Settings:
    """Return the settings of a running domain; members of newer brokers are below ``?``."""
    settings: Settings = {}
    _read_parameters(dict(configuration), "", settings, _Problems())
    settings.pop("name", None)
    settings["location"] = location
    return settings
