# SPDX-License-Identifier: Apache-2.0
"""Application subscriptions: the expressions in a domain's configuration file.

The broker evaluates application subscriptions once for each application when a message is posted. If the
subscription of an application does not match, the broker confirms the message at once, and the application
never receives the message. Unlike a consumer's subscription, an invalid application subscription prevents the
domain from loading.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from bmq import _checks
from bmq.errors import InvalidExpression, UsageError
from bmq.subscriptions._lint import find_doubts
from bmq.subscriptions._parser import check

_MODES: Final = ("priority", "fanout", "broadcast")
_VERSION: Final = "E_VERSION_1"

Severity: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem in a domain's subscriptions.

    Attributes:
        severity: ``error``: the broker refuses the domain, or refuses to open its queues. ``warning``: the
            broker accepts a configuration that is probably a mistake.
        where: position in the file, such as ``subscriptions[1].expression.text``.
        message: the problem and the remedy.
        app_id: application id of the entry, if present.
    """

    severity: Severity
    where: str
    message: str
    app_id: str | None = None

    def __str__(self) -> str:
        app = f" (appId {self.app_id!r})" if self.app_id is not None else ""
        return f"{self.severity}: {self.where}{app}: {self.message}"


def check_domain(domain: Mapping[str, Any], *, strict: bool = False) -> list[Finding]:
    """Check the application subscriptions of a domain by the broker's rules.

    Args:
        domain: a domain file's content, or only its ``parameters``.
        strict: whether to raise for an error, instead of only listing the error.

    Raises:
        UsageError: with ``strict``, for an error; the message lists all findings.
    """
    strict = _checks.boolean("strict", strict)
    findings = list(_findings(_checks.mapping("domain", domain)))
    if strict and any(finding.severity == "error" for finding in findings):
        raise UsageError("the broker would refuse this domain:\n" + "\n".join(map(str, findings)))
    return findings


class _Entry(NamedTuple):
    """A well-formed entry."""

    where: str
    app_id: str


def _findings(domain: Mapping[str, Any]) -> Iterator[Finding]:
    if "redirect" in domain:
        message = f"the settings are in the file of domain {domain['redirect']!r}"
        yield Finding("error", "redirect", message)
        return
    definition = domain.get("definition")
    parameters = domain if definition is None else _mapping(_mapping(definition).get("parameters"))
    modes = _mapping(parameters.get("mode"))
    mode = next(iter(modes)) if len(modes) == 1 else ""
    if mode not in _MODES:
        known = 'exactly one of {"priority": {}}, {"fanout": {...}}, {"broadcast": {}}'
        yield Finding("error", "mode", known)
    given = parameters.get("subscriptions", [])
    if not isinstance(given, list | tuple):
        yield Finding("error", "subscriptions", f"must be a list, not {type(given).__name__}")
        return
    entries: list[_Entry] = []
    for i, item in enumerate(cast("Sequence[Any]", given)):
        found = list(_problems(f"subscriptions[{i}]", item))
        if all(finding.severity == "warning" for finding in found):
            entries.append(_Entry(f"subscriptions[{i}]", item.get("appId", "")))
        yield from found
    if mode == "fanout":
        listed = _mapping(modes[mode]).get("appIDs")
        yield from _ignored(entries, cast("list[object]", listed) if isinstance(listed, list | tuple) else [])
    elif mode in _MODES and len(entries) > 1:
        message = (
            f"a {mode} domain takes one subscription at most. With more no queue can be opened: a real "
            "broker refuses the first queue with an error without text (E_UNKNOWN); then its process ends, "
            "with all its domains. Write one expression with `||`"
        )
        yield Finding("error", entries[1].where, message, entries[1].app_id)
    elif mode in _MODES and entries and entries[0].app_id:
        message = (
            f"a {mode} domain has no appIds: the name is ignored and the subscription applies to every "
            'consumer; by convention it is ""'
        )
        yield Finding("warning", entries[0].where, message, entries[0].app_id)


def _problems(where: str, item: object) -> Iterator[Finding]:
    """Check an entry; without an error the broker can compile the entry."""
    entry = _mapping(item)
    app_id: Any = entry.get("appId", "")
    found = entry.get("expression", {})
    details = _mapping(found)
    if not (isinstance(item, Mapping) and isinstance(app_id, str) and isinstance(found, Mapping)):
        form = '{"appId": "...", "expression": {"version": "E_VERSION_1", "text": "..."}}'
        yield Finding("error", where, f"an entry is {form}")
        return
    version, text = details.get("version", "E_UNDEFINED"), details.get("text", "")
    place = f"{where}.expression.text"
    if version != _VERSION:
        needed = f'a domain needs "version": "{_VERSION}" in every expression'
        message = f"Unsupported version: {version}; {needed}"
        yield Finding("error", f"{where}.expression.version", message, app_id)
    elif not isinstance(text, str):
        yield Finding("error", place, "must be a string", app_id)
    elif not text:
        message = "an empty expression matches every message, like a missing entry"
        yield Finding("warning", place, message, app_id)
    else:
        try:
            tree = check(text)
        except InvalidExpression as error:
            yield Finding("error", place, str(error), app_id)
            return
        for doubt in find_doubts(tree):
            yield Finding("warning", place, doubt.message, app_id)


def _ignored(entries: list[_Entry], app_ids: Sequence[object]) -> Iterator[Finding]:
    last = {entry.app_id: entry for entry in entries}
    for entry in entries:
        winner = last[entry.app_id]
        if entry.app_id not in app_ids:
            message = f"ignored: the domain's appIDs are {', '.join(map(repr, app_ids)) or 'none'}"
            yield Finding("warning", entry.where, message, entry.app_id)
        elif winner is not entry:
            message = (
                f"ignored: {winner.where} is for the same appId, and the last entry wins (entries are "
                "not joined by *or*); write one expression with `||`"
            )
            yield Finding("warning", entry.where, message, entry.app_id)


def _mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping; empty for any other value."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
