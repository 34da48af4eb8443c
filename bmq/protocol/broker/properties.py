# SPDX-License-Identifier: Apache-2.0
"""A broker's changes of application data: decompression for old senders, conversion for old receivers.

Data in this module includes padding, as transmitted and as stored by a broker.
"""

from __future__ import annotations

from collections.abc import Callable

from bmq.errors import Error
from bmq.protocol.broker.inflation import Exhausted, InflationBudget
from bmq.wire.constants import Compression
from bmq.wire.padding import padding
from bmq.wire.properties import encode_properties, properties_length, split_properties

__all__ = ["for_old_client", "from_old_client"]


def from_old_client(
    inflate: Callable[[int, bytes], bytes | None], queue_id: int, data: bytes
) -> bytes | None:
    """Decompress application data with properties in the old encoding.

    Args:
        inflate: decompresses data for a qId. If the result is None, this function returns None, too.
        queue_id: the qId.
        data: the data.

    Raises:
        ProtocolError: the data cannot be decompressed, exceeds 64 MiB, or does not begin with properties.
    """
    plain = inflate(queue_id, data[: -data[-1]])
    if plain is None:
        return None
    properties_length(plain)
    return plain + padding(len(plain))


def for_old_client(
    data: bytes, schema_id: int, compression: int, budget: InflationBudget
) -> tuple[bytes, int, int]:
    """Convert data with properties in the new encoding for a client limited to the old encoding.

    Unreadable data, and data beyond ``budget`` when decompressed, is returned unchanged.

    Returns:
        The data, the schema id and the compression.
    """
    try:
        plain = data[: -data[-1]]
        properties, length = split_properties(plain, True)
        payload = plain[length:]
        area = encode_properties(properties.typed(), new=False)
        plain = area + (budget.inflate(payload, free=True) if compression else payload)
    except (Error, Exhausted):
        return data, schema_id, compression
    return plain + padding(len(plain)), 0, Compression.NONE
