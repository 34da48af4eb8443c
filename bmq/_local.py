# SPDX-License-Identifier: Apache-2.0
"""Addresses that always mean this machine."""

from __future__ import annotations

__all__ = ["is_loopback"]


def is_loopback(host: str) -> bool:
    """Whether an address, or its usual name, always means this machine."""
    return host in ("localhost", "::1", "0.0.0.0", "::") or host.startswith("127.")
