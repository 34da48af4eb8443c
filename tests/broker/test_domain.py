# SPDX-License-Identifier: Apache-2.0
"""Domain files: content, defaults, and errors that name file and member."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bmq.broker.domain_config import DomainConfig, InvalidDomain, Limits, Mode, builtin_domains, parse_domain
from bmq.wire.control import Status
from tests.broker.core import Core, domain
from tests.sweeps import sweep

#: As shipped with a real broker (bmq.test.mem.fanout).
SAMPLE = """
{"definition": {"location": "local", "parameters": {
  "maxDeliveryAttempts": 0, "deduplicationTimeMs": 300000, "consistency": {"eventual": {}},
  "storage": {"config": {"inMemory": {}},
    "domainLimits": {"bytes": 2097152, "messages": 2000, "bytesWatermarkRatio": 0.8,
                     "messagesWatermarkRatio": 0.8},
    "queueLimits": {"bytes": 1048576, "messages": 1000, "bytesWatermarkRatio": 0.8,
                    "messagesWatermarkRatio": 0.8}},
  "messageTtl": 300, "maxProducers": 0, "maxConsumers": 0, "maxQueues": 0, "maxIdleTime": 0,
  "mode": {"fanout": {"appIDs": ["foo", "bar", "baz"]}}}}}
"""


def test_a_domain_file_of_a_real_broker_is_read() -> None:
    config = parse_domain("bmq.test.mem.fanout", SAMPLE)
    assert config == DomainConfig(
        name="bmq.test.mem.fanout",
        mode=Mode.FANOUT,
        app_ids=("foo", "bar", "baz"),
        domain_limits=Limits(2000, 2097152),
        queue_limits=Limits(1000, 1048576),
        message_ttl=300,
    )


def test_written_values_read_back_equal() -> None:
    for config in builtin_domains().values():
        assert isinstance(config, DomainConfig)
        document = {"definition": {"location": "local", "parameters": config.parameters()}}
        assert parse_domain(config.name, document) == config


PRIORITY: dict[str, Any] = {"mode": {"priority": {}}, "storage": {"config": {"inMemory": {}}}}


def limited(**limits: Any) -> dict[str, Any]:
    return {"storage": {"config": {"inMemory": {}}, **limits}}


def subscriptions(*entries: Any) -> dict[str, Any]:
    return {"subscriptions": list(entries)}


_PARAMETERS: list[tuple[dict[str, Any], str, bool]] = [
    ({"mode": {}}, "mode", False),
    ({"mode": {"priority": {}, "fanout": {}}}, "mode", False),
    ({"mode": {"fanout": {"appIDs": "foo"}}}, "mode.fanout.appIDs", False),
    ({"mode": {"fanout": {"appIDs": [1]}}}, "mode.fanout.appIDs[0]", False),
    ({"mode": {"fanout": {"appIDs": ["a", "a"]}}}, "mode.fanout.appIDs[1]", True),
    ({"storage": {}}, "storage.config", False),
    (limited(queueLimits={"messages": "x"}), "storage.queueLimits.messages", False),
    (limited(domainLimits={"bytesWatermarkRatio": 2}), "storage.domainLimits.bytesWatermarkRatio", True),
    (limited(queueLimits={"bytesWatermarkRatio": "2"}), "storage.queueLimits.bytesWatermarkRatio", False),
    ({"messageTtl": -1}, "messageTtl", False),
    ({"messageTtl": True}, "messageTtl", False),
    ({"maxDeliveryAttempts": 64}, "maxDeliveryAttempts", False),
    ({"consistency": {"some": {}}}, "consistency", False),
    ({"subscriptions": {}}, "subscriptions", False),
    (subscriptions(1), "subscriptions[0]", False),
    (subscriptions({"expression": {"text": "x"}}), "subscriptions[0].expression.version", True),
    (subscriptions(*[{"expression": {"version": 1}}] * 2), "subscriptions", True),
]


@sweep(
    "document, member, decodes",
    [
        ("{", "", False),
        ([], "", False),
        ({}, "definition", False),
        ({"definition": {}}, "definition.parameters", False),
        ({"definition": {"parameters": 1}}, "definition.parameters", False),
        ({"redirect": ""}, "redirect", False),
        ({"redirect": 5}, "redirect", False),
        ({"redirect": "x", "definition": {}}, "redirect", False),
        *(
            ({"definition": {"parameters": PRIORITY | changes}}, f"definition.parameters.{member}", decodes)
            for changes, member, decodes in _PARAMETERS
        ),
    ],
)
def test_errors_name_the_member(document: Any, member: str, decodes: bool) -> None:
    with pytest.raises(InvalidDomain, match=r"d\.json") as caught:
        parse_domain("d", document, source="d.json")
    assert (caught.value.source, caught.value.member, caught.value.decodes) == ("d.json", member, decodes)


def test_clients_use_the_domain_files_of_a_real_broker(tmp_path: Path) -> None:
    """A definition, a redirection, two redirections, and unusable files."""
    directory = tmp_path / "domains"
    directory.mkdir()

    def write(name: str, **changes: Any) -> None:
        definition = {"location": "local", "parameters": domain().parameters() | changes, "later": 1}
        (directory / f"{name}.json").write_text(json.dumps({"definition": definition}))

    def subscriptions(version: str, text: str) -> list[dict[str, Any]]:
        return [{"appId": "", "expression": {"version": version, "text": text}}]

    write("good")
    write("nothing", mode={})
    write("unsupported", subscriptions=subscriptions("E_UNDEFINED", "x"))
    write("wrong", subscriptions=subscriptions("E_VERSION_1", "x >"))
    (directory / "other.name.json").write_text('{"redirect": "good"}')
    (directory / "twice.json").write_text('{"redirect": "other.name"}')
    (directory / "broken.json").write_text("{")
    core = Core()
    core.source.configured.clear()
    core.source.directory = tmp_path
    there = "the domains of this broker: broken, good, nothing, other.name, twice, unsupported, wrong"
    for name, refusal in (
        ("good", None),
        ("other.name", None),
        ("missing", ("E_UNKNOWN", -1, f"'domains/missing.json' doesn't exist; {there}")),
        ("broken", ("E_UNKNOWN", -2, "Error while decoding domain configuration")),
        ("nothing", ("E_UNKNOWN", -2, "Error while decoding domain configuration")),
        ("twice", ("E_UNKNOWN", -3, "Too many redirections")),
        ("unsupported", ("E_REFUSED", -10, "Attempt failed. Details: ")),
        ("wrong", ("E_REFUSED", -10, "Attempt failed. Details: ")),
    ):  # fmt: skip
        answer = core.client().open(f"bmq://{name}/q", read=True)
        assert isinstance(answer, Status) is (refusal is not None), name
        if isinstance(answer, Status) and refusal is not None:
            assert (answer.category.name, answer.code) == refusal[:2], name
            assert refusal[2] in answer.message
            assert str(tmp_path) not in answer.message, "a stranger is told no path of this machine"
    assert [len(queue.handles) for queue in core.node.queues.values()] == [2], (
        "a redirection is the same queue"
    )
