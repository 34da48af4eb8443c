# SPDX-License-Identifier: Apache-2.0
"""Consumer groups with order by key, without a service for coordination.

Created by :meth:`bmq.Queue.group`::

    async with queue.group(key="CustomerId") as group:
        async for message in group:
            async with message:
                ...

The members of an exclusive group agree about the owner of each bucket over a control queue, and only the
owner subscribes. Without coordination, every member subscribes to every bucket, with a priority computed from
its name and the bucket; the broker gives each bucket to the highest priority. The package uses only public
names of the client.
"""

from bmq.groups._events import Full, Gained, GroupEvent, GroupStats, Lost, Reason
from bmq.groups._group import Group, GroupOptions
from bmq.groups._ranking import owners, priority_of
from bmq.groups._strays import Strays
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
    "owners",
    "priority_of",
]
