# SPDX-License-Identifier: Apache-2.0
"""Consumer groups with order by key, without a service for coordination.

Created by :meth:`bmq.Queue.group`::

    async with queue.group(key="CustomerId") as group:
        async for message in group:
            async with message:
                ...

The members of a group agree about the owner of each bucket over a control queue, and only the owner
subscribes.
"""

from bmq.groups._events import Full, Gained, GroupEvent, GroupStats, Lost, Reason
from bmq.groups._group import Group, GroupOptions
from bmq.groups._lanes import Strays
from bmq.wire.keys import Key, key_bucket

__all__ = [
    "Full",
    "Gained",
    "Group",
    "GroupEvent",
    "GroupOptions",
    "GroupStats",
    "Key",
    "Lost",
    "Reason",
    "Strays",
    "key_bucket",
]
