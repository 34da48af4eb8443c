# SPDX-License-Identifier: Apache-2.0
"""The domains of an embedded broker without any file.

Names, modes, appIds, TTL and deduplication window agree with a real broker's sample domains, and with the
test domains in our recorded conversations. Quotas are generous, unlike the samples' 1,000 messages a queue: a
benchmark of some hundred thousand messages fits. Use the ``small`` domain to meet a quota. The ``persistent``
names exist for services with such names in their configuration; the messages are in memory too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from bmq.broker._domain_config import AppSubscription, DomainConfig, Limits, Mode, Redirect

__all__ = ["builtin_domains"]

_GIB = 2**30
_TTL = 300
_APPS = ("foo", "bar", "baz")

_PRIORITY = DomainConfig(
    name="",
    mode=Mode.PRIORITY,
    domain_limits=Limits(4_000_000, 8 * _GIB),
    queue_limits=Limits(2_000_000, 4 * _GIB),
    message_ttl=_TTL,
)
_FANOUT = replace(_PRIORITY, mode=Mode.FANOUT, app_ids=_APPS)


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
