# SPDX-License-Identifier: Apache-2.0
"""The asyncio layer: sessions, queues, consumers and messages.

All decisions without I/O are made in :mod:`bmq.protocol`.
"""
