# SPDX-License-Identifier: Apache-2.0
"""Names and domains for tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from bmq import _checks, _world
from bmq.broker import AppSubscription, DomainConfig, Mode
from bmq.broker.domain_config import builtin_domains
from bmq.errors import UsageError
from bmq.wire.uri import QueueUri

__all__ = ["domain_like", "fresh_queue_uri"]

_SETTINGS = {field.name for field in fields(DomainConfig)} - {"name", "mode"}


def fresh_queue_uri(domain: str, hint: str = "queue") -> str:
    """Return the URI of a queue without other users.

    Args:
        domain: the queue's domain.
        hint: beginning of the name, reduced to legal characters.

    Raises:
        InvalidURI: the domain has no legal name.
        UsageError: an argument is no text.
    """
    domain = _checks.text("domain", domain)
    QueueUri.parse(f"bmq://{domain}/queue")
    hint = _checks.text("hint", hint)
    # A queue name has 64 characters at most; a test appends ".dead", ".later.delayed" and the like.
    name = re.sub(r"[^A-Za-z0-9_]+", "-", hint).strip("-")[:32]
    return f"bmq://{domain}/{name or 'queue'}-{_world.token_hex(6)}"


def domain_like(mode: str, number: int, settings: Mapping[str, Any]) -> DomainConfig:
    """Return a domain as ``bmq.test.mem.<mode>`` with other settings.

    ``subscriptions`` may be a mapping of appIds to expressions, and ``app_ids`` any sequence.

    Raises:
        UsageError: the mode or a setting does not exist.
    """
    modes = [each.value for each in Mode]
    if mode not in modes:
        raise UsageError(f"{mode!r} is not a mode of a domain; use one of: {', '.join(modes)}")
    unknown = set(settings) - _SETTINGS
    if unknown:
        known = ", ".join(sorted(_SETTINGS))
        raise UsageError(f"unknown setting {', '.join(sorted(unknown))} of a domain; known names: {known}")
    values = dict(settings)
    if "app_ids" in values:
        values["app_ids"] = tuple(values["app_ids"])
    if isinstance(values.get("subscriptions"), Mapping):
        subscriptions = [AppSubscription(app_id, text) for app_id, text in values["subscriptions"].items()]
        values["subscriptions"] = tuple(subscriptions)
    base = builtin_domains()[f"bmq.test.mem.{mode}"]
    assert isinstance(base, DomainConfig)
    return replace(base, name=f"bmq.test.made{number}.{mode}", **values)
