# SPDX-License-Identifier: Apache-2.0
"""The protocol as state machines without I/O: bytes and the time go in, bytes and events come out.

``client`` is the client's role. The embedded broker (``bmq.broker``) shares the framing, the tables and the
timers. The package opens no socket, reads no clock, and does not depend on asyncio: every call that depends
on time takes ``now``, in seconds of any monotonic clock.
"""
