# SPDX-License-Identifier: Apache-2.0
"""Application subscriptions: the expressions in a domain's configuration file.

The broker evaluates application subscriptions once for each application when a message is posted. If the
subscription of an application does not match, the broker confirms the message at once, and the application
never receives the message. Unlike a consumer's subscription, an invalid application subscription prevents the
domain from loading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

from bmq import _checks
from bmq.errors import InvalidExpression, UsageError
from bmq.subscriptions._expression import Evaluation, Expression
from bmq.wire.properties import PropertyInput

__all__ = ["AppOutcome", "Finding", "check_domain", "explain_domain"]

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


@dataclass(frozen=True, slots=True)
class AppOutcome:
    """The outcome of a message for one application.

    Attributes:
        delivered: True if the message is kept for the application's consumers; False if the broker confirms
            the message at once.
        why: the reason in words.
        expression: the deciding subscription; None without a subscription.
        evaluation: the evaluation of the subscription; None without a subscription.
    """

    delivered: bool
    why: str
    expression: Expression | None = None
    evaluation: Evaluation | None = None


def check_domain(domain: Mapping[str, Any], *, strict: bool = False) -> list[Finding]:
    """Check the application subscriptions of a domain by the broker's rules.

    Args:
        domain: a domain file's content, or only its ``parameters``.
        strict: whether to raise for an error, instead of only listing the error.

    Raises:
        UsageError: with ``strict``, for an error; the message lists all findings.
    """
    strict = _checks.boolean("strict", strict)
    findings = _Domain(_checks.mapping("domain", domain)).findings
    if strict and any(finding.severity == "error" for finding in findings):
        raise UsageError("the broker would refuse this domain:\n" + "\n".join(map(str, findings)))
    return findings


def explain_domain(
    domain: Mapping[str, Any], properties: Mapping[str, PropertyInput] | None
) -> dict[str, AppOutcome]:
    """Return for each application of a domain whether it would receive a message, and the reason.

    If no application receives the message, the broker does not store the message, but still acknowledges the
    post.

    Args:
        domain: a domain file's content, or only its ``parameters``.
        properties: the message's properties, as for ``post``; None for a message without properties.

    Returns:
        The outcomes by application id; a priority or broadcast domain has the single id ``""``.

    Raises:
        UsageError: the broker would refuse the domain.
    """
    read = _Domain(_checks.mapping("domain", domain))
    if errors := [str(finding) for finding in read.findings if finding.severity == "error"]:
        raise UsageError("the broker would refuse this domain:\n" + "\n".join(errors))
    if read.mode == "fanout":
        chosen = {entry.app_id: entry for entry in read.entries}
        return {app_id: _outcome(chosen.get(app_id), properties) for app_id in read.app_ids}
    # In a domain without applications, the broker ignores the application id of an entry.
    return {"": _outcome(read.entries[-1] if read.entries else None, properties)}


def _outcome(entry: _Entry | None, properties: Mapping[str, PropertyInput] | None) -> AppOutcome:
    if entry is None:
        return AppOutcome(True, "no application subscription: the application receives every message")
    if not entry.text:
        return AppOutcome(True, f"{entry.where} has an empty expression, which every message matches")
    expression = Expression(entry.text, strict=False)
    evaluation = expression.evaluate(properties)
    if evaluation:
        return AppOutcome(True, f"{entry.where} matches: {entry.text}", expression, evaluation)
    why = f"confirmed at once: {entry.where} does not match: {entry.text}"
    if evaluation.error is not None:
        why += f" ({evaluation.error.name} error: {evaluation.reason})"
    return AppOutcome(False, why, expression, evaluation)


@dataclass(frozen=True, slots=True)
class _Entry:
    where: str
    app_id: str
    text: str


class _Domain:
    """The application subscriptions of a domain.

    Attributes:
        mode: the mode; "" if not legal.
        app_ids: the application ids of a fanout domain.
        entries: the well-formed entries.
        findings: the problems of the domain.
    """

    def __init__(self, domain: Mapping[str, Any]) -> None:
        self.mode = ""
        self.app_ids: list[str] = []
        self.entries: list[_Entry] = []
        self.findings: list[Finding] = []
        if "redirect" in domain:
            self._find("error", "redirect", f"the settings are in the file of domain {domain['redirect']!r}")
            return
        definition = domain.get("definition")
        parameters = domain if definition is None else _mapping(_mapping(definition).get("parameters"))
        modes = _mapping(parameters.get("mode"))
        if len(modes) == 1 and next(iter(modes)) in _MODES:
            ((self.mode, details),) = modes.items()
            listed = _mapping(details).get("appIDs")
            self.app_ids = [each for each in listed or () if isinstance(each, str)]
        else:
            known = 'exactly one of {"priority": {}}, {"fanout": {...}}, {"broadcast": {}}'
            self._find("error", "mode", known)
        entries = parameters.get("subscriptions")
        if isinstance(entries, list | tuple):
            for i, item in enumerate(cast("Sequence[Any]", entries)):
                self._read(f"subscriptions[{i}]", item)
        elif entries is not None:
            self._find("error", "subscriptions", f"must be a list, not {type(entries).__name__}")
        if self.mode == "fanout":
            self._check_fanout()
        elif self.mode:
            self._check_single()

    def _find(self, severity: Severity, where: str, message: str, app_id: str | None = None) -> None:
        self.findings.append(Finding(severity, where, message, app_id))

    def _read(self, where: str, item: object) -> None:
        """Check an entry, and keep it if the broker can compile it."""
        entry = _mapping(item)
        app_id: Any = entry.get("appId", "")
        found = entry.get("expression", {})
        details = _mapping(found)
        if not (isinstance(item, Mapping) and isinstance(app_id, str) and isinstance(found, Mapping)):
            form = '{"appId": "...", "expression": {"version": "E_VERSION_1", "text": "..."}}'
            self._find("error", where, f"an entry is {form}")
            return
        version, text = details.get("version", "E_UNDEFINED"), details.get("text", "")
        if version != _VERSION:
            needed = f'a domain needs "version": "{_VERSION}" in every expression'
            message = f"Unsupported version: {version}; {needed}"
            self._find("error", f"{where}.expression.version", message, app_id)
            return
        place = f"{where}.expression.text"
        if not isinstance(text, str):
            self._find("error", place, "must be a string", app_id)
            return
        if not text:
            message = "an empty expression matches every message, like a missing entry"
            self._find("warning", place, message, app_id)
        else:
            try:
                expression = Expression(text, strict=False)
                error = expression.error
            except InvalidExpression as raised:
                error = raised
                expression = None
            if expression is None or error is not None:
                self._find("error", place, str(error), app_id)
                return
            for doubt in expression.doubts:
                self._find("warning", place, doubt.message, app_id)
        self.entries.append(_Entry(where, app_id, text))

    def _check_fanout(self) -> None:
        last = {entry.app_id: entry for entry in self.entries}
        for entry in self.entries:
            winner = last[entry.app_id]
            if entry.app_id not in self.app_ids:
                message = f"ignored: the domain's appIDs are {', '.join(map(repr, self.app_ids)) or 'none'}"
            elif winner is not entry:
                message = (
                    f"ignored: {winner.where} is for the same appId, and the last entry wins (entries are "
                    "not joined by *or*); write one expression with `||`"
                )
            else:
                continue
            self._find("warning", entry.where, message, entry.app_id)

    def _check_single(self) -> None:
        if len(self.entries) > 1:
            message = (
                f"a {self.mode} domain takes one subscription at most. With more no queue can be opened: a "
                "real broker refuses the first queue with an error without text (E_UNKNOWN); then its "
                "process ends, with all its domains. Write one expression with `||`"
            )
            self._find("error", self.entries[1].where, message, self.entries[1].app_id)
        elif self.entries and self.entries[0].app_id:
            message = (
                f"a {self.mode} domain has no appIds: the name is ignored and the subscription applies to "
                'every consumer; by convention it is ""'
            )
            self._find("warning", self.entries[0].where, message, self.entries[0].app_id)


def _mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping; empty for any other value."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
