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


@dataclass(frozen=True, slots=True)
class _Entry:
    where: str
    app_id: str
    text: str


def check_domain(domain: Mapping[str, Any], *, strict: bool = False) -> list[Finding]:
    """Check the application subscriptions of a domain by the broker's rules.

    Args:
        domain: a domain file's content, or only its ``parameters``.
        strict: whether to raise for an error, instead of only listing the error.

    Raises:
        UsageError: with ``strict``, for an error; the message lists all findings.
    """
    findings: list[Finding] = []
    strict = _checks.boolean("strict", strict)
    _read(_checks.mapping("domain", domain), findings)
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
    findings: list[Finding] = []
    mode, app_ids, entries = _read(_checks.mapping("domain", domain), findings)
    errors = [str(finding) for finding in findings if finding.severity == "error"]
    if errors:
        raise UsageError("the broker would refuse this domain:\n" + "\n".join(errors))
    if mode != "fanout":
        # In a domain without applications, the broker ignores the application id of an entry.
        chosen = {"": entries[-1]} if entries else {}
        app_ids = [""]
    else:
        chosen = {entry.app_id: entry for entry in entries}
    return {app_id: _outcome(chosen.get(app_id), properties) for app_id in app_ids}


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


def _mapping(value: object) -> Mapping[str, Any] | None:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


def _sequence(value: object) -> Sequence[Any] | None:
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else None


def _read(domain: Mapping[str, Any], findings: list[Finding]) -> tuple[str, list[str], list[_Entry]]:
    """Return the mode, the application ids and the well-formed entries; add problems to ``findings``."""
    if "redirect" in domain:
        findings.append(
            Finding("error", "redirect", f"the settings are in the file of domain {domain['redirect']!r}")
        )
        return "", [], []
    definition = _mapping(domain.get("definition"))
    parameters = domain if definition is None else _mapping(definition.get("parameters")) or {}
    mode, app_ids = _mode(parameters, findings)
    entries = _entries(parameters.get("subscriptions"), findings)
    if mode == "fanout":
        _check_fanout(app_ids, entries, findings)
    elif mode:
        _check_single(mode, entries, findings)
    return mode, app_ids, entries


def _mode(parameters: Mapping[str, Any], findings: list[Finding]) -> tuple[str, list[str]]:
    modes = _mapping(parameters.get("mode")) or {}
    if len(modes) != 1 or next(iter(modes)) not in _MODES:
        findings.append(
            Finding("error", "mode", 'exactly one of {"priority": {}}, {"fanout": {...}}, {"broadcast": {}}')
        )
        return "", []
    mode = next(iter(modes))
    listed = _sequence((_mapping(modes[mode]) or {}).get("appIDs")) or ()
    return mode, [app_id for app_id in listed if isinstance(app_id, str)]


def _entries(value: object, findings: list[Finding]) -> list[_Entry]:
    listed = () if value is None else _sequence(value)
    if listed is None:
        findings.append(Finding("error", "subscriptions", f"must be a list, not {type(value).__name__}"))
        return []
    entries: list[_Entry] = []
    for i, item in enumerate(listed):
        where = f"subscriptions[{i}]"
        entry = _mapping(item)
        expression = _mapping((entry or {}).get("expression", {}))
        app_id = (entry or {}).get("appId", "")
        if entry is None or expression is None or not isinstance(app_id, str):
            findings.append(
                Finding(
                    "error",
                    where,
                    'an entry is {"appId": "...", "expression": {"version": "E_VERSION_1", "text": "..."}}',
                )
            )
            continue
        text = expression.get("text", "")
        if not _check_version(expression, where, app_id, findings):
            continue
        if not isinstance(text, str):
            findings.append(Finding("error", f"{where}.expression.text", "must be a string", app_id))
        elif _check_text(text, where, app_id, findings):
            entries.append(_Entry(where, app_id, text))
    return entries


def _check_version(expression: Mapping[str, Any], where: str, app_id: str, findings: list[Finding]) -> bool:
    version = expression.get("version", "E_UNDEFINED")
    if version == _VERSION:
        return True
    message = f'Unsupported version: {version}; a domain needs "version": "{_VERSION}" in every expression'
    findings.append(Finding("error", f"{where}.expression.version", message, app_id))
    return False


def _check_text(text: str, where: str, app_id: str, findings: list[Finding]) -> bool:
    where = f"{where}.expression.text"
    if not text:
        findings.append(
            Finding(
                "warning", where, "an empty expression matches every message, like a missing entry", app_id
            )
        )
        return True
    try:
        expression = Expression(text, strict=False)
    except InvalidExpression as error:
        findings.append(Finding("error", where, str(error), app_id))
        return False
    if expression.error is not None:
        findings.append(Finding("error", where, str(expression.error), app_id))
        return False
    findings += [Finding("warning", where, doubt.message, app_id) for doubt in expression.doubts]
    return True


def _check_fanout(app_ids: list[str], entries: list[_Entry], findings: list[Finding]) -> None:
    last = {entry.app_id: entry for entry in entries}
    for entry in entries:
        winner = last[entry.app_id]
        if entry.app_id not in app_ids:
            message = f"ignored: the domain's appIDs are {', '.join(map(repr, app_ids)) or 'none'}"
        elif winner is not entry:
            message = (
                f"ignored: {winner.where} is for the same appId, and the last entry wins (entries are not "
                "joined by *or*); write one expression with `||`"
            )
        else:
            continue
        findings.append(Finding("warning", entry.where, message, entry.app_id))


def _check_single(mode: str, entries: list[_Entry], findings: list[Finding]) -> None:
    if len(entries) > 1:
        message = (
            f"a {mode} domain takes one subscription at most. With more no queue can be opened: a real "
            "broker refuses the first queue with an error without text (E_UNKNOWN); then its process "
            "ends, with all its domains. Write one expression with `||`"
        )
        findings.append(Finding("error", entries[1].where, message, entries[1].app_id))
    elif entries and entries[0].app_id:
        message = (
            f"a {mode} domain has no appIds: the name is ignored and the subscription applies to every "
            'consumer; by convention it is ""'
        )
        findings.append(Finding("warning", entries[0].where, message, entries[0].app_id))
