"""What a broker does to application data: decompressing what old clients sent, rewriting for old clients.

Data here carries its padding, as it travels and as a broker stores it.
"""

from __future__ import annotations

from bmq.errors import Error
from bmq.wire.compression import decompress
from bmq.wire.constants import MAX_APPLICATION_DATA, Compression
from bmq.wire.message import split_application_data
from bmq.wire.padding import padding
from bmq.wire.properties import encode_properties, properties_length

__all__ = ["for_old_client", "from_old_client"]


def from_old_client(data: bytes) -> bytes:
    """Return compressed application data with properties in the old encoding, decompressed.

    Raises:
        ProtocolError: it does not decompress to properties and something behind them, within 64 MiB.
    """
    plain = decompress(data[: -data[-1]], MAX_APPLICATION_DATA)
    properties_length(plain)
    return plain + padding(len(plain))


def for_old_client(data: bytes, schema_id: int, compression: int) -> tuple[bytes, int, int]:
    """Return data with properties in the new encoding as a client gets it that only reads the old one.

    Data that cannot be read is left as it is.

    Returns:
        The data, its schema id and its compression.
    """
    try:
        properties, payload = split_application_data(
            data[: -data[-1]], has_properties=True, schema_id=schema_id, compression=compression
        )
        plain = encode_properties(properties.typed(), new=False) + payload
    except Error:
        return data, schema_id, compression
    return plain + padding(len(plain)), 0, Compression.NONE
