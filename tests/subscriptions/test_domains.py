# SPDX-License-Identifier: Apache-2.0
"""Application subscriptions in a domain file: what the broker refuses, ignores, and does with a message."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.errors import UsageError
from bmq.subscriptions import check_domain
from tests.sweeps import sweep


def entry(app_id: str | None, text: str, version: Any = "E_VERSION_1") -> dict[str, Any]:
    result: dict[str, Any] = {"expression": {"version": version, "text": text}}
    return result if app_id is None else {"appId": app_id, **result}


def domain(mode: str, *subscriptions: Any, apps: tuple[str, ...] = ("foo", "bar", "baz")) -> dict[str, Any]:
    modes = {"fanout": {"appIDs": list(apps)}} if mode == "fanout" else {mode: {}}
    parameters = {"name": "bmq.test", "mode": modes, "subscriptions": list(subscriptions)}
    return {"definition": {"location": "local", "parameters": parameters}}


def fanout(*subscriptions: Any, **apps: Any) -> dict[str, Any]:
    return domain("fanout", *subscriptions, **apps)


GOOD, TEN = entry("foo", "x == 1"), entry("", "x == 10")
FANOUT = fanout(GOOD, entry("bar", "x == 2"))
FIRST, SECOND = "subscriptions[0]", "subscriptions[1]"
TEXT, VERSION = f"{FIRST}.expression.text", f"{FIRST}.expression.version"


def test_a_good_domain_has_no_findings() -> None:
    assert check_domain(FANOUT) == []
    assert check_domain(FANOUT["definition"]["parameters"]) == []
    assert check_domain(domain("priority", entry("", "x > 0"))) == []
    assert check_domain(domain("broadcast", entry(None, "x > 0"))) == []
    assert check_domain({"mode": {"priority": {}}}) == []


@sweep(
    "given, where, message",
    [
        (fanout(entry("foo", "x = 1")), TEXT, "unexpected invalid character"),
        (fanout(GOOD, entry("bar", "a||b||c||d||e||f")), f"{SECOND}.expression.text", "too many operators"),
        (fanout(entry("foo", "1 == 1")), TEXT, "does not use any properties"),
        (fanout(entry("foo", "x == 1", "E_UNDEFINED")), VERSION, "Unsupported version: E_UNDEFINED"),
        (fanout({"appId": "foo", "expression": {"text": "x == 1"}}), VERSION, 'needs "version"'),
        (fanout({"appId": "foo"}), VERSION, "Unsupported version"),
        (fanout(entry("foo", "x", 1)), VERSION, "Unsupported version: 1"),
        (
            domain("priority", entry("", "x == 1"), entry("", "x == 2")),
            "subscriptions[1]",
            "takes one subscription at most",
        ),
        (
            domain("broadcast", entry("", "x == 1"), entry("", "x == 2")),
            "subscriptions[1]",
            "takes one subscription at most",
        ),
        (fanout("x == 1"), FIRST, "an entry is"),
        (fanout({"appId": 1, "expression": {}}), FIRST, "an entry is"),
        (fanout({"appId": "foo", "expression": "x"}), FIRST, "an entry is"),
        (fanout(entry("foo", None)), TEXT, "must be a string"),
        ({"mode": {"priority": {}}, "subscriptions": {}}, "subscriptions", "must be a list, not dict"),
        ({"subscriptions": []}, "mode", "exactly one of"),
        ({"mode": {"quorum": {}}}, "mode", "exactly one of"),
        ({"redirect": "bmq.other"}, "redirect", "the settings are in the file of domain 'bmq.other'"),
    ],
)
def test_invalid_domains_have_errors(given: dict[str, Any], where: str, message: str) -> None:
    (finding,) = check_domain(given)
    assert (finding.severity, finding.where) == ("error", where)
    assert message in finding.message
    assert str(finding).startswith(f"error: {where}")
    with pytest.raises(UsageError, match="the broker would refuse this domain"):
        check_domain(given, strict=True)


@sweep(
    "given, where, message",
    [
        (fanout(entry("foo", "")), TEXT, "matches every message"),
        (fanout(entry("qux", "x == 1")), FIRST, "the domain's appIDs are 'foo', 'bar'"),
        (fanout(entry("", "x == 1"), apps=()), FIRST, "ignored: the domain's appIDs are none"),
        (
            fanout(entry("foo", "x == 1"), entry("foo", "x == 2")),
            FIRST,
            "is for the same appId, and the last",
        ),
        (domain("priority", entry("foo", "x == 1")), FIRST, "the name is ignored"),
    ],
)
def test_doubtful_domains_have_warnings(given: dict[str, Any], where: str, message: str) -> None:
    (finding,) = check_domain(given, strict=True)
    assert (finding.severity, finding.where) == ("warning", where)
    assert message in finding.message
