# SPDX-License-Identifier: Apache-2.0
"""CRC32C, the checksum of PUT messages, computed by a processor instruction if available."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import google_crc32c

#: The checksum of a byte string.
crc32c = cast("Callable[[bytes], int]", google_crc32c.value)  # pyright: ignore[reportUnknownMemberType]
