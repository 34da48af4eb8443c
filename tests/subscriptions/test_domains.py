# SPDX-License-Identifier: Apache-2.0
"""Application subscriptions in a domain file: what the broker refuses, ignores, and does with a message."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.errors import UsageError
from bmq.subscriptions import Expression, check_domain
from tests.sweeps import sweep
from tests.transcripts import probes


def entry(app_id: str | None, text: str, version: Any = "E_VERSION_1") -> dict[str, Any]:
    result: dict[str, Any] = {"expression": {"version": version, "text": text}}
    return result if app_id is None else {"appId": app_id, **result}


def domain(mode: str, *subscriptions: Any, apps: tuple[str, ...] = ("foo", "bar", "baz")) -> dict[str, Any]:
    modes = {"fanout": {"appIDs": list(apps)}} if mode == "fanout" else {mode: {}}
    parameters = {"name": "bmq.test", "mode": modes, "subscriptions": list(subscriptions)}
    return {"definition": {"location": "local", "parameters": parameters}}


FANOUT = domain("fanout", entry("foo", "x == 1"), entry("bar", "x == 2"))


def test_a_good_domain_has_no_findings() -> None:
    assert check_domain(FANOUT) == []
    assert check_domain(FANOUT["definition"]["parameters"]) == []
    assert check_domain(domain("priority", entry("", "x > 0"))) == []
    assert check_domain(domain("broadcast", entry(None, "x > 0"))) == []
    assert check_domain({"mode": {"priority": {}}}) == []


@sweep(
    "given, where, message",
    [
        (
            domain("fanout", entry("foo", "x = 1")),
            "subscriptions[0].expression.text",
            "unexpected invalid character",
        ),
        (
            domain("fanout", entry("foo", "x == 1"), entry("bar", "a||b||c||d||e||f")),
            "subscriptions[1].expression.text",
            "too many operators (11), max allowed operators: 10",
        ),
        (
            domain("fanout", entry("foo", "1 == 1")),
            "subscriptions[0].expression.text",
            "does not use any properties",
        ),
        (
            domain("fanout", entry("foo", "x == 1", "E_UNDEFINED")),
            "subscriptions[0].expression.version",
            "Unsupported version: E_UNDEFINED",
        ),
        (
            domain("fanout", {"appId": "foo", "expression": {"text": "x == 1"}}),
            "subscriptions[0].expression.version",
            'needs "version": "E_VERSION_1"',
        ),
        (domain("fanout", {"appId": "foo"}), "subscriptions[0].expression.version", "Unsupported version"),
        (
            domain("fanout", entry("foo", "x", 1)),
            "subscriptions[0].expression.version",
            "Unsupported version: 1",
        ),
        (
            domain("priority", entry("", "x == 1"), entry("", "x == 2")),
            "subscriptions[1]",
            "a priority domain takes one subscription at most",
        ),
        (
            domain("broadcast", entry("", "x == 1"), entry("", "x == 2")),
            "subscriptions[1]",
            "a broadcast domain takes one subscription at most",
        ),
        (domain("fanout", "x == 1"), "subscriptions[0]", "an entry is"),
        (domain("fanout", {"appId": 1, "expression": {}}), "subscriptions[0]", "an entry is"),
        (domain("fanout", {"appId": "foo", "expression": "x"}), "subscriptions[0]", "an entry is"),
        (domain("fanout", entry("foo", None)), "subscriptions[0].expression.text", "must be a string"),
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
        (domain("fanout", entry("foo", "")), "subscriptions[0].expression.text", "matches every message"),
        (
            domain("fanout", entry("qux", "x == 1")),
            "subscriptions[0]",
            "ignored: the domain's appIDs are 'foo', 'bar'",
        ),
        (
            domain("fanout", entry("", "x == 1"), apps=()),
            "subscriptions[0]",
            "ignored: the domain's appIDs are none",
        ),
        (
            domain("fanout", entry("foo", "x == 1"), entry("foo", "x == 2")),
            "subscriptions[0]",
            "ignored: subscriptions[1] is for the same appId, and the last entry wins",
        ),
        (domain("priority", entry("foo", "x == 1")), "subscriptions[0]", "the name is ignored"),
    ],
)
def test_doubtful_domains_have_warnings(given: dict[str, Any], where: str, message: str) -> None:
    (finding,) = check_domain(given, strict=True)
    assert (finding.severity, finding.where) == ("warning", where)
    assert message in finding.message


def test_an_application_subscription_matches_as_at_a_real_broker() -> None:
    # x > 0 on a priority domain: x = 1 is called "pos"; x = -1 and a message without properties never came.
    posted: dict[str, dict[str, Any] | None] = {"pos": {"x": 1}, "neg": {"x": -1}, "none": None}
    kept = [name for name, properties in posted.items() if Expression("x > 0").matches(properties)]
    assert kept == probes()["application_subscription"]["pushed"]


@pytest.mark.statement("1.25")
def test_finding_describes_a_real_broker_with_several_entries() -> None:
    for mode in ("priority", "broadcast"):
        entry = {"appId": "", "expression": {"version": "E_VERSION_1", "text": "x == 1"}}
        (finding,) = check_domain({"mode": {mode: {}}, "subscriptions": [entry, entry]})
        assert finding.severity == "error"
        assert "its process ends" in finding.message
