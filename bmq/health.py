# SPDX-License-Identifier: Apache-2.0
"""The health of a session, and of its host::

health = session.health()
if not health.ready:
    print(health.troubles)
"""

from bmq.client.health import Health, HostHealth, HostHealthMonitor, Trouble

__all__ = [
    "Health",
    "HostHealth",
    "HostHealthMonitor",
    "Trouble",
]
