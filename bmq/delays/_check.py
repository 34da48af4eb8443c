# SPDX-License-Identifier: Apache-2.0
"""Whether a delay queue can keep its messages."""

from __future__ import annotations

import asyncio
import logging

from bmq import _checks, _world
from bmq._logging import Log
from bmq.admin.client import Admin
from bmq.admin.results import limits_of
from bmq.errors import AdminError, Error
from bmq.wire.printable import described

logger = Log("bmq.delays")

# Part of a limit from which a warning is due.
_NEARLY = 0.8


async def longest_delay(admin: Admin, uri: str) -> float | None:
    """Ask the broker for the maximum delay of messages in a queue.

    The result is for the option ``longest_delay`` of sessions that post with delays.

    Args:
        admin: asks the broker.
        uri: the delay queue, which may not exist yet.

    Returns:
        The ``messageTtl`` of the queue's domain, in seconds; None if not reported by the broker.

    Raises:
        AdminError: the broker does not know the domain.
        ConnectionFailed, RequestTimeout: the broker did not answer.
        InvalidURI: the URI is not legal.

    Cancelling the call changes nothing.
    """
    _checks.choice("admin", admin, Admin)
    ttl = (await admin.domain(admin.queue(uri).domain)).configuration.get("messageTtl")
    return float(ttl) if isinstance(ttl, int) else None


async def check(admin: Admin, uri: str, *, longest: float | None = None) -> list[str]:
    """Ask the broker whether a delay queue can keep its messages.

    Args:
        admin: asks the broker.
        uri: the delay queue.
        longest: maximum delay of messages in seconds, if known.

    Returns:
        The problems, for people: messages deleted before their due time, because the domain's ``messageTtl``
        is shorter, or because some movers have died in a domain with ``maxDeliveryAttempts``; a queue or a
        domain that is nearly full; a domain other than a priority domain. Empty without problems.

    Raises:
        AdminError: the broker refused.
        ConnectionFailed, RequestTimeout: the broker did not answer.

    Cancelling the call changes nothing.
    """
    longest = _checks.timeout(longest, "longest")
    queue = _checks.choice("admin", admin, Admin).queue(uri)
    domain = await admin.domain(queue.domain)
    problems: list[str] = []
    if domain.mode and domain.mode != "priority":
        problems.append(
            f"{queue.domain} is a {domain.mode} domain, and a delay queue needs a priority domain: name a "
            "queue with open_queue(delay_queue_uri=...)"
        )
        return problems
    ttl = domain.configuration.get("messageTtl")
    if isinstance(ttl, int) and longest is not None and ttl < longest:
        problems.append(
            f"the broker deletes messages that have waited for {ttl} s (messageTtl of {queue.domain}): "
            f"messages that wait up to {longest:g} s are lost"
        )
    attempts = domain.configuration.get("maxDeliveryAttempts")
    if isinstance(attempts, int) and attempts > 0:
        problems.append(
            f"the broker deletes messages that {attempts} movers held when they died (maxDeliveryAttempts "
            f"of {queue.domain})"
        )
    try:
        page = await queue.messages(0, 1)
    except AdminError:
        return problems  # no client has opened the queue yet
    if page.messages and isinstance(ttl, int) and ttl > 0:
        age = (_world.now() - page.messages[0].arrival).total_seconds()
        if age >= _NEARLY * ttl:
            problems.append(
                f"the oldest message has waited for {age:.0f} s, and is deleted after {ttl} s (messageTtl of "
                f"{queue.domain}), due or not"
            )
    _, (most, most_bytes) = limits_of(domain.configuration)
    usage = domain.usage
    held = next((each for each in domain.queues if each.uri == queue.uri), None)
    for what, there, limit in (
        (f"{queue.uri} has {{}} of {{}} messages", page.total, most),
        (f"{queue.uri} has {{}} of {{}} bytes", held.bytes if held else 0, most_bytes),
        (f"{queue.domain} has {{}} of {{}} messages", usage.messages, usage.message_limit),
        (f"{queue.domain} has {{}} of {{}} bytes", usage.bytes, usage.byte_limit),
    ):
        if limit > 0 and there >= _NEARLY * limit:
            problems.append(
                f"{what.format(f'{there:,}', f'{limit:,}')}: the broker refuses posts beyond the limit"
            )
    return problems


async def watch(admin: Admin, uri: str, *, longest: float | None = None, every: float = 60.0) -> None:
    """Repeat :func:`check`, and log each problem when it begins.

    Args:
        admin: asks the broker.
        uri: the delay queue.
        longest: maximum delay of messages in seconds, if known.
        every: seconds between two checks.

    A broker that refuses is logged once, at INFO. The function runs until cancelled.
    """
    every = _checks.seconds("every", every, positive=True)
    _checks.choice("admin", admin, Admin).queue(uri)
    known: set[str] = set()
    while True:
        try:
            problems = await check(admin, uri, longest=longest)
        except Exception as error:
            if "" not in known:
                level = logging.INFO if isinstance(error, Error) else logging.ERROR
                logger.log(level, "the messages in %s cannot be checked: %s", uri, described(error))
            known.add("")
        else:
            for problem in problems:
                if _kind(problem) not in known:
                    logger.warning("%s: %s", uri, problem)
            known = {_kind(problem) for problem in problems}
        await asyncio.sleep(every)


def _kind(problem: str) -> str:
    """Return a problem without its numbers, which vary."""
    return "".join(c for c in problem if not c.isdigit() and c not in ".,")
