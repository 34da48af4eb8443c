# SPDX-License-Identifier: Apache-2.0
"""The content types with a built-in codec."""

from __future__ import annotations

from typing import Final

__all__ = ["JSON", "MSGPACK"]

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
