# SPDX-License-Identifier: Apache-2.0
"""The asyncio layer: sessions, queues, consumers, messages. Thin: what can be decided without I/O is decided
in :mod:`bmq.protocol`.
"""
