# SPDX-License-Identifier: Apache-2.0
"""The protocol as state machines without I/O: bytes and the time go in, bytes and events come out.

Client and broker are two roles over the same framing, tables and timers. Nothing here opens a socket, reads
a clock or knows asyncio: every call that depends on time takes ``now``, in seconds of any monotonic clock.
"""
