# SPDX-License-Identifier: Apache-2.0
"""Domain files: content, defaults, and errors that name file and member."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.broker.domain_config import (
    DomainConfig,
    InvalidDomain,
    Limits,
    Mode,
    builtin_domains,
    parse_domain,
)
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


def parsed(**parameters: Any) -> DomainConfig:
    least: dict[str, Any] = {"mode": {"priority": {}}, "storage": {"config": {"inMemory": {}}}}
    found = parse_domain("d", {"definition": {"parameters": least | parameters}}, source="d.json")
    assert isinstance(found, DomainConfig)
    return found


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


@sweep(
    "document, member",
    [
        ("{", ""),
        ("[]", ""),
        ("{}", "definition"),
        ('{"definition": {}}', "definition.parameters"),
        ('{"definition": {"parameters": 1}}', "definition.parameters"),
        ('{"definition": {"parameters": {}}}', "definition.parameters.mode"),
        ('{"redirect": ""}', "redirect"),
        ('{"redirect": 5}', "redirect"),
        ('{"redirect": "x", "definition": {}}', "redirect"),
    ],
)
def test_invalid_documents_are_refused(document: str, member: str) -> None:
    with pytest.raises(InvalidDomain, match=r"d\.json") as caught:
        parse_domain("d", document, source="d.json")
    assert caught.value.member == member
    assert not caught.value.decodes


@sweep(
    "parameters, member, decodes",
    [
        ({"mode": {}}, "mode", False),
        ({"mode": {"priority": {}, "fanout": {}}}, "mode", False),
        ({"mode": {"fanout": {"appIDs": "foo"}}}, "mode.fanout.appIDs", False),
        ({"mode": {"fanout": {"appIDs": [1]}}}, "mode.fanout.appIDs[0]", False),
        ({"mode": {"fanout": {"appIDs": ["a", "a"]}}}, "mode.fanout.appIDs[1]", True),
        ({"storage": {}}, "storage.config", False),
        ({"storage": {"config": {"inMemory": {}}, "queueLimits": {"messages": "x"}}},
         "storage.queueLimits.messages", False),
        ({"storage": {"config": {"inMemory": {}}, "domainLimits": {"bytesWatermarkRatio": 2}}},
         "storage.domainLimits.bytesWatermarkRatio", True),
        ({"storage": {"config": {"inMemory": {}}, "domainLimits": {"messagesWatermarkRatio": 2}}},
         "storage.domainLimits.messagesWatermarkRatio", True),
        ({"messageTtl": -1}, "messageTtl", False),
        ({"messageTtl": True}, "messageTtl", False),
        ({"maxDeliveryAttempts": 64}, "maxDeliveryAttempts", False),
        ({"consistency": {"some": {}}}, "consistency", False),
        ({"subscriptions": {}}, "subscriptions", False),
        ({"subscriptions": [1]}, "subscriptions[0]", False),
        ({"subscriptions": [{"expression": {"text": "x"}}]}, "subscriptions[0].expression.version", True),
        ({"subscriptions": [{"expression": {"version": 1}}, {"expression": {"version": 1}}]},
         "subscriptions", True),
    ],
)  # fmt: skip
def test_errors_name_the_member(parameters: dict[str, Any], member: str, decodes: bool) -> None:
    with pytest.raises(InvalidDomain, match=r"d\.json") as caught:
        parsed(**parameters)
    assert caught.value.source == "d.json"
    assert caught.value.member == f"definition.parameters.{member}"
    assert caught.value.decodes is decodes


def test_the_built_in_domains() -> None:
    domains = builtin_domains()
    assert {"bmq.test.mem.priority", "bmq.test.mem.fanout", "bmq.test.mem.broadcast"} <= domains.keys()
    fanout = domains["bmq.test.mem.fanout"]
    assert isinstance(fanout, DomainConfig)
    assert fanout.app_ids == ("foo", "bar", "baz")
    small = domains["bmq.test.small.priority"]
    assert isinstance(small, DomainConfig)
    assert small.queue_limits == Limits(10, 4096)
