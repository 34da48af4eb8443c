# SPDX-License-Identifier: Apache-2.0
"""Domains: the behaviour of a kind of queues, from the files of a real broker.

A domain file is JSON: ``{"definition": {"location": ..., "parameters": {...}}}`` or
``{"redirect": "<another domain>"}``. Unknown members are skipped, as in a real broker; values of the wrong
type are errors that name the file and the member.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from functools import cache
from typing import Any, Final, NoReturn, TypeVar, cast

from bmq import _checks
from bmq._checks import INT32_MAX, INT64_MAX
from bmq._json import orjson
from bmq.broker._consumer_filter import ConsumerFilter
from bmq.errors import UsageError

__all__ = [
    "DEFAULT_TTL",
    "AppSubscription",
    "DomainConfig",
    "InvalidDomain",
    "Limits",
    "Mode",
    "Redirect",
    "builtin_domains",
    "parse_domain",
]

#: Name of the only expression language, as in domain files.
EXPRESSION_VERSION = "E_VERSION_1"
#: How long messages of the built-in domains live, in seconds.
DEFAULT_TTL = 300
#: The numbers of a domain: the value if a domain file has none, and the maximum.
_NUMBERS: Final = {
    "max_consumers": (0, INT32_MAX),
    "max_producers": (0, INT32_MAX),
    "max_queues": (0, INT32_MAX),
    "max_idle_time": (0, INT32_MAX),
    "message_ttl": (0, INT64_MAX),
    "max_delivery_attempts": (0, 63),
    "deduplication_time_ms": (300_000, INT32_MAX),
}
_Value = TypeVar("_Value", str, list[Any])
_NAME = re.compile(r"[-a-zA-Z0-9._~]*")


class InvalidDomain(UsageError):
    """A domain's configuration cannot be used.

    Attributes:
        source: the file or other origin.
        member: the wrong member, as a dotted path.
        decodes: whether the file is well-formed, and only its content is refused.
    """

    def __init__(self, source: str, member: str, message: str, *, decodes: bool = False) -> None:
        super().__init__(f"{source}: {member}: {message}" if member else f"{source}: {message}")
        self.source = source
        self.member = member
        self.decodes = decodes


class Mode(Enum):
    """How a domain's queues hand out messages."""

    PRIORITY = "priority"
    FANOUT = "fanout"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of storage. A limit of N admits N + 1: the check comes before the message is added.

    Attributes:
        messages: number of messages; without limit by default. A domain file without a limit has 0, which
            admits one message.
        bytes: bytes of application data; without limit by default.
        messages_watermark_ratio: share at which a real broker raises an alarm; no effect on clients.
        bytes_watermark_ratio: likewise.

    Raises:
        UsageError: a limit is no integer from 0 to 2**63 - 1, or a ratio no number from 0 to 1.
    """

    messages: int = INT64_MAX
    bytes: int = INT64_MAX
    messages_watermark_ratio: float = 0.8
    bytes_watermark_ratio: float = 0.8

    def __post_init__(self) -> None:
        for name in ("messages", "bytes"):
            object.__setattr__(self, name, _checks.integer(name, getattr(self, name)))
        for name in ("messages_watermark_ratio", "bytes_watermark_ratio"):
            object.__setattr__(self, name, _checks.number(name, getattr(self, name), 0.0, 1.0))


@dataclass(frozen=True, slots=True)
class AppSubscription:
    """An application subscription: messages without a match are confirmed at once for the application.

    Attributes:
        app_id: the application of a fanout domain; ignored in the other modes.
        text: the expression; empty matches every message.
    """

    app_id: str
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "app_id", _checks.text("app_id", self.app_id))
        object.__setattr__(self, "text", _checks.text("text", self.text))


@dataclass(frozen=True, slots=True)
class DomainConfig:
    """A domain's configuration.

    By default, a domain made in Python has no limits, and the lifetime of the built-in domains. In a domain
    file, missing values mean 0, as for a real broker: a single message with a lifetime of at most a second.

    Attributes:
        name: the domain's name; for files, the file's name decides.
        mode: priority, fanout or broadcast.
        app_ids: the applications of a fanout domain.
        domain_limits: limits of all queues together.
        queue_limits: limits of each queue.
        file_backed: whether a real broker would keep messages on disk. The embedded broker uses memory only.
        max_consumers: readers per application (fanout) or queue; 0 is unlimited.
        max_producers: writers per queue; 0 is unlimited.
        max_queues: queues in the domain; 0 is unlimited.
        max_idle_time: seconds after which a real broker raises an alarm; no effect here.
        message_ttl: seconds that a message lives, confirmed or not; 300 by default.
        max_delivery_attempts: lost connections a message survives; 0 is unlimited.
        deduplication_time_ms: how long a GUID is remembered.
        consistency: "eventual" or "strong", equal on a single node.
        subscriptions: the application subscriptions.
        consumer_filter: asked before each delivery whether the consumer receives the message, as in Pulsar's
            proposal of consumer filters; None for no filter, as in a real broker.

    Raises:
        UsageError: an attribute has another type, or is out of its range.
    """

    name: str
    mode: Mode
    app_ids: tuple[str, ...] = ()
    domain_limits: Limits = field(default_factory=Limits)
    queue_limits: Limits = field(default_factory=Limits)
    file_backed: bool = False
    max_consumers: int = 0
    max_producers: int = 0
    max_queues: int = 0
    max_idle_time: int = 0
    message_ttl: int = DEFAULT_TTL
    max_delivery_attempts: int = 0
    deduplication_time_ms: int = 300_000
    consistency: str = "eventual"
    subscriptions: tuple[AppSubscription, ...] = ()
    consumer_filter: ConsumerFilter | None = None

    def __post_init__(self) -> None:
        name = _checks.text("name", self.name)
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"a domain's name must consist of letters, digits, '-', '.' and '_', not {name!r:.80}"
            )
        subscriptions: list[object] = _checks.items("subscriptions", self.subscriptions, "AppSubscription")
        for each in subscriptions:
            _checks.choice("a subscription", each, AppSubscription)
        checked: dict[str, object] = {
            "name": name,
            "mode": _checks.instance("mode", self.mode, Mode, "one of bmq.broker.Mode"),
            "app_ids": tuple(_checks.texts("app_ids", self.app_ids)),
            "domain_limits": _checks.choice("domain_limits", self.domain_limits, Limits),
            "queue_limits": _checks.choice("queue_limits", self.queue_limits, Limits),
            "file_backed": _checks.boolean("file_backed", self.file_backed),
            "consistency": _checks.one_of("consistency", self.consistency, ("eventual", "strong")),
            "subscriptions": tuple(subscriptions),
        }
        for each, (_, most) in _NUMBERS.items():
            checked[each] = _checks.integer(each, getattr(self, each), 0, most)
        if self.consumer_filter is not None:
            _checks.function("consumer_filter", self.consumer_filter, 2, plain=True)
        for each, value in checked.items():
            object.__setattr__(self, each, value)

    def parameters(self) -> dict[str, Any]:
        """Return the same configuration as ``parameters`` of a domain file."""
        mode = {"appIDs": list(self.app_ids)} if self.mode is Mode.FANOUT else {}
        return {
            "name": self.name,
            "mode": {self.mode.value: mode},
            "storage": {
                "domainLimits": _members(asdict(self.domain_limits)),
                "queueLimits": _members(asdict(self.queue_limits)),
                "config": {"fileBacked" if self.file_backed else "inMemory": {}},
            },
            **_members({each: getattr(self, each) for each in _NUMBERS}),
            "consistency": {self.consistency: {}},
            "subscriptions": [
                {"appId": s.app_id, "expression": {"version": EXPRESSION_VERSION, "text": s.text}}
                for s in self.subscriptions
            ],
        }


def _member(attribute: str) -> str:
    """Return the name of an attribute in domain files."""
    first, *rest = attribute.split("_")
    return first + "".join(map(str.capitalize, rest))


def _members(values: dict[str, Any]) -> dict[str, Any]:
    return {_member(name): value for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class Redirect:
    """A second name for another domain."""

    target: str


class _Object:
    """One JSON object of a domain file, and its place in the file for error messages."""

    __slots__ = ("fields", "path", "source")

    def __init__(self, source: str, path: str, value: object) -> None:
        self.source = source
        self.path = path
        if not isinstance(value, dict):
            self.fields: dict[str, Any] = {}
            self.wrong("", f"must be an object, not {_checks.shown(value)}")
        self.fields = cast("dict[str, Any]", value)

    def _path(self, name: str) -> str:
        return ".".join(filter(None, (self.path, name)))

    def wrong(self, name: str, message: str, *, decodes: bool = False) -> NoReturn:
        raise InvalidDomain(self.source, self._path(name), message, decodes=decodes)

    def child(self, name: str, *, required: bool = False) -> _Object:
        if required and name not in self.fields:
            self.wrong(name, "is missing")
        return _Object(self.source, self._path(name), self.fields.get(name, {}))

    def choice(self, name: str, *options: str) -> tuple[str, _Object]:
        inner = self.child(name, required=True)
        chosen = [option for option in options if option in inner.fields]
        if len(chosen) != 1:
            got = ", ".join(inner.fields) or "none"
            self.wrong(name, f"must have exactly one of {', '.join(options)}; it has {got}")
        return chosen[0], inner.child(chosen[0])

    def integer(self, name: str, default: int, most: int) -> int:
        value = self.fields.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            self.wrong(name, f"must be an integer from 0 to {most}, not {_checks.shown(value)}")
        return value

    def ratio(self, name: str) -> float:
        value = self.fields.get(name, 0.8)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.wrong(name, f"must be a number from 0 to 1, not {_checks.shown(value)}")
        if not 0 <= value <= 1:
            self.wrong(name, f"must be from 0 to 1, not {_checks.shown(value)}", decodes=True)
        return float(value)

    def get(self, name: str, default: _Value) -> _Value:
        """Return a member of the default's type."""
        value: object = self.fields.get(name, default)
        if not isinstance(value, type(default)):
            kind = {str: "a string", list: "an array"}[type(default)]
            self.wrong(name, f"must be {kind}, not {_checks.shown(value)}")
        return value


def parse_domain(
    name: str, document: bytes | str | dict[str, Any], *, source: str = ""
) -> DomainConfig | Redirect:
    """Read a domain's configuration.

    Args:
        name: the domain's name.
        document: the file's content, as text or as a dictionary.
        source: the origin, for error messages.

    Raises:
        InvalidDomain: the configuration cannot be used; the error names the member.
    """
    source = source or f"domain {name!r}"
    if isinstance(document, bytes | str):
        try:
            document = cast("dict[str, Any]", orjson.loads(document))
        except orjson.JSONDecodeError as error:
            raise InvalidDomain(source, "", f"must be JSON: {error}") from error
    top = _Object(source, "", document)
    if "redirect" in top.fields:
        target = top.get("redirect", "")
        if not target or "definition" in top.fields:
            top.wrong("redirect", "must be a domain's name, without a definition beside it")
        return Redirect(target)
    parameters = top.child("definition", required=True).child("parameters", required=True)
    return _parse_parameters(name, parameters)


def _parse_parameters(name: str, parameters: _Object) -> DomainConfig:
    chosen, options = parameters.choice("mode", "priority", "fanout", "broadcast")
    mode = Mode(chosen)
    app_ids: list[str] = []
    for index, app_id in enumerate(options.get("appIDs", []) if mode is Mode.FANOUT else []):
        if not isinstance(app_id, str) or not app_id:
            options.wrong(f"appIDs[{index}]", f"must be a name, not {_checks.shown(app_id)}")
        if app_id in app_ids:
            options.wrong(f"appIDs[{index}]", f"{app_id!r} is listed twice", decodes=True)
        app_ids.append(app_id)
    storage = parameters.child("storage", required=True)
    kept, _ = storage.choice("config", "inMemory", "fileBacked")
    consistency = "eventual"
    if "consistency" in parameters.fields:
        consistency, _ = parameters.choice("consistency", "eventual", "strong")
    return DomainConfig(
        name=name,
        mode=mode,
        app_ids=tuple(app_ids),
        domain_limits=_parse_limits(storage.child("domainLimits")),
        queue_limits=_parse_limits(storage.child("queueLimits")),
        file_backed=kept == "fileBacked",
        consistency=consistency,
        subscriptions=_parse_subscriptions(parameters, mode),
        consumer_filter=None,  # no real broker has one
        **{name: parameters.integer(_member(name), *bounds) for name, bounds in _NUMBERS.items()},
    )


def _parse_limits(limits: _Object) -> Limits:
    return Limits(
        messages=limits.integer("messages", 0, INT64_MAX),
        bytes=limits.integer("bytes", 0, INT64_MAX),
        messages_watermark_ratio=limits.ratio("messagesWatermarkRatio"),
        bytes_watermark_ratio=limits.ratio("bytesWatermarkRatio"),
    )


def _parse_subscriptions(parameters: _Object, mode: Mode) -> tuple[AppSubscription, ...]:
    found: list[AppSubscription] = []
    for index, value in enumerate(parameters.get("subscriptions", [])):
        entry = _Object(parameters.source, f"{parameters.path}.subscriptions[{index}]", value)
        expression = entry.child("expression")
        version = expression.fields.get("version", "E_UNDEFINED")
        if version not in (EXPRESSION_VERSION, 1):
            expression.wrong("version", f"Unsupported version: {version}", decodes=True)
        found.append(AppSubscription(entry.get("appId", ""), expression.get("text", "")))
    if mode is not Mode.FANOUT and len(found) > 1:
        parameters.wrong(
            "subscriptions", f"a {mode.value} domain must have at most one, not {len(found)}", decodes=True
        )
    return tuple(found)


# Names, modes, appIds, TTL and deduplication window of the built-in domains agree with a real broker's sample
# domains, and with the test domains in our recorded conversations. Quotas are generous, unlike the samples'
# 1,000 messages a queue: a benchmark of some hundred thousand messages fits. Use the ``small`` domain to meet
# a quota. The ``persistent`` names exist for services with such names in their configuration; the messages
# are in memory too.
_GIB = 2**30

_PRIORITY = DomainConfig(
    name="",
    mode=Mode.PRIORITY,
    domain_limits=Limits(4_000_000, 8 * _GIB),
    queue_limits=Limits(2_000_000, 4 * _GIB),
    message_ttl=DEFAULT_TTL,
)
_FANOUT = replace(_PRIORITY, mode=Mode.FANOUT, app_ids=("foo", "bar", "baz"))


def builtin_domains() -> dict[str, DomainConfig | Redirect]:
    """Return the built-in domains by name."""
    return dict(_domains())


@cache
def _domains() -> dict[str, DomainConfig | Redirect]:
    # Once for all brokers of a process: checking a configuration takes a while.
    domains = {
        "bmq.test.mem.priority": _PRIORITY,
        "bmq.test.mem.fanout": _FANOUT,
        "bmq.test.mem.broadcast": replace(_PRIORITY, mode=Mode.BROADCAST),
        # The official client's examples use these names.
        "bmq.test.mmap.priority": replace(_PRIORITY, file_backed=True),
        "bmq.test.mmap.fanout": replace(_FANOUT, file_backed=True),
        "bmq.test.persistent.priority": replace(_PRIORITY, file_backed=True),
        "bmq.test.persistent.fanout": replace(_FANOUT, file_backed=True),
        "bmq.test.persistent.priority.sc": replace(_PRIORITY, file_backed=True, consistency="strong"),
        "bmq.test.persistent.fanout.sc": replace(
            _FANOUT, file_backed=True, consistency="strong", max_consumers=1
        ),
        "bmq.test.small.priority": replace(_PRIORITY, queue_limits=Limits(10, 4096)),
        "bmq.test.rda.priority": replace(_PRIORITY, max_delivery_attempts=3),
        "bmq.test.ttl.priority": replace(_PRIORITY, message_ttl=2),
        "bmq.test.appsub.fanout": replace(
            _FANOUT, subscriptions=(AppSubscription("foo", "x == 1"), AppSubscription("bar", "x == 2"))
        ),
        "bmq.test.appsub.priority": replace(_PRIORITY, subscriptions=(AppSubscription("", "x > 0"),)),
        "bmq.test.window.priority": replace(_PRIORITY, deduplication_time_ms=1000),
        "bmq.test.quota.priority": replace(_PRIORITY, domain_limits=Limits(20, 8192), message_ttl=10),
        "bmq.test.few.priority": replace(_PRIORITY, max_producers=1, max_consumers=1),
        "bmq.test.fewqueues.priority": replace(_PRIORITY, max_queues=2),
    }
    return {name: replace(domain, name=name) for name, domain in domains.items()}
