# SPDX-License-Identifier: Apache-2.0
"""Application data: properties and payload together, compressed or not, within their limits."""

from __future__ import annotations

import random
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.errors import InvalidPayload, ProtocolError
from bmq.wire.compression import decompress
from bmq.wire.constants import Compression
from bmq.wire.message import join_application_data, split_application_data
from bmq.wire.properties import Properties, encode_properties
from tests.sweeps import sweep

ZLIB = Compression.ZLIB
MIB = 1024 * 1024
AREA = {new: encode_properties({"alpha": 7, "beta": "hi"}, new=new) for new in (True, False)}
NOISE = random.Random(1).randbytes(5000)
ENCODINGS = pytest.mark.parametrize("new", [True, False], ids=["new", "old"])


def split(
    data: bytes, *, new: bool = True, limit: int = MIB, properties: bool = True, compression: int = 1
) -> tuple[Properties, bytes]:
    return split_application_data(
        data, has_properties=properties, schema_id=int(new), compression=compression, limit=limit
    )


@ENCODINGS
@given(
    properties=st.dictionaries(
        st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.binary(max_size=600), max_size=4
    ),
    payload=st.one_of(
        st.binary(min_size=1, max_size=100),
        st.integers(1000, 3000).map(lambda n: b"ab" * n),
        st.integers(1, len(NOISE)).map(lambda n: NOISE[:n]),
    ),
    wanted=st.sampled_from(Compression),
)
def test_joined_data_splits_into_its_parts(
    properties: dict[str, bytes], payload: bytes, wanted: Compression, new: bool
) -> None:
    area = encode_properties(properties, new=new)
    data, compression = join_application_data(payload, area, new=new, compression=wanted)
    assert len(data) <= len(area) + len(payload), "compression never makes it larger"
    if wanted is Compression.NONE:
        assert (data, compression) == (area + payload, Compression.NONE)
    schema = int(new and bool(area))
    assert split_application_data(
        data, has_properties=bool(area), schema_id=schema, compression=compression
    ) == (properties, payload)


@ENCODINGS
@pytest.mark.parametrize(("counted", "expected"), [(1023, Compression.NONE), (1024, ZLIB)])
@pytest.mark.statement("3.9")
def test_the_new_encoding_counts_the_payload_alone_and_the_old_one_all(
    new: bool, counted: int, expected: Compression
) -> None:
    plain = AREA[new] if new else b""  # what stays plain before the compressed bytes
    payload = b"a" * (counted if new else counted - len(AREA[new]))
    data, compression = join_application_data(payload, AREA[new], new=new, compression=ZLIB)
    assert compression == expected
    assert data.startswith(plain)
    rest = data[len(plain) :]
    assert plain + (zlib.decompress(rest) if compression else rest) == AREA[new] + payload


# Limits


def test_properties_and_payload_take_at_most_64_mib() -> None:
    area = AREA[True]
    most = bytes(64 * MIB - len(area))
    assert len(join_application_data(most, area)[0]) == 64 * MIB
    with pytest.raises(InvalidPayload, match=r"take 67,108,865 bytes; a message has at most 67,108,864"):
        join_application_data(most + b"1", area)


@ENCODINGS
def test_a_decompression_bomb_is_refused_within_the_limit(new: bool) -> None:
    head = AREA[True] if new else b""
    bomb = zlib.compress(bytes(50 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(
            ProtocolError, match="decompresses to more than the limit of 1048576 bytes"
        ) as caught:
            split(head + bomb, new=new)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()
    assert caught.value.field == "application data"


@sweep("size", [1, 1000, 16_384, 65_536, 100_000])
def test_the_limit_is_inclusive(size: int) -> None:
    for data in (bytes(size), random.Random(size).randbytes(size)):
        packed = zlib.compress(data)
        assert decompress(packed, size) == data
        if size > 1:
            with pytest.raises(ProtocolError, match=f"the limit of {size - 1} bytes"):
                decompress(packed, size - 1)


# What a peer may get wrong

STREAM = zlib.compress(b"payload" * 300)


@sweep(
    "data, message",
    [
        (b"", "truncated"),
        (STREAM[:1], "truncated"),
        (STREAM[:-1], "truncated"),
        (STREAM[:-4], "truncated"),
        (STREAM + b"x", "1 bytes follow the zlib stream"),
        (STREAM + STREAM, f"{len(STREAM)} bytes follow the zlib stream"),
        (b"not zlib at all", "not a zlib stream"),
        (STREAM[:-1] + bytes([STREAM[-1] ^ 1]), "not a zlib stream"),
        (b"\x1f\x8b" + STREAM, "not a zlib stream"),
        (zlib.compress(b"raw deflate")[2:-4], "not a zlib stream"),
        (b"\x78\xbb\x00\x00\x00\x01" + STREAM[2:], "not a zlib stream"),
    ],
)
def test_streams_other_than_zlib_are_refused(data: bytes, message: str) -> None:
    for call in (
        lambda: decompress(data, MIB),
        lambda: split(data, properties=False),
        lambda: split(data, new=False),
        lambda: split(AREA[True] + data),
    ):
        with pytest.raises(ProtocolError, match=message) as caught:
            call()
        assert caught.value.field == "application data"


@sweep("compression", [2, 3, 7])
def test_an_unknown_compression_is_refused(compression: int) -> None:
    with pytest.raises(ProtocolError, match=f"{compression} is not a compression") as caught:
        split(b"data", properties=False, compression=compression)
    assert caught.value.field == "compressionAlgorithmType"
