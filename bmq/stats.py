# SPDX-License-Identifier: Apache-2.0
"""Statistics of sessions, queues and consumers: the results of their method ``stats``::

before = queue.stats()
await asyncio.sleep(1)
print((queue.stats() - before).posted_messages)
"""

from bmq.client.stats import ConsumerStats, Histogram, QueueStats, SessionStats

__all__ = [
    "ConsumerStats",
    "Histogram",
    "QueueStats",
    "SessionStats",
]
