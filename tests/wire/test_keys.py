# SPDX-License-Identifier: Apache-2.0
"""The bucket of a key, as services in other languages compute it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bmq.errors import UsageError
from bmq.wire.keys import Key, key_bucket
from tests.sweeps import sweep


def crc32c(data: bytes) -> int:
    """Compute the checksum bit by bit, by its definition."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def documented() -> list[tuple[bytes, int, int]]:
    """Return the vectors of the page, for implementations in other languages."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "conventions.md").read_text(encoding="utf-8")
    section = page.split("## The bucket of a key")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| (.*) \| (\d+) \| (\d+) \|$", section, re.MULTILINE)
    named = {"32 zero bytes": bytes(32), "32 bytes 0xFF": b"\xff" * 32, '`""`': b""}
    return [
        (named[key] if key in named else bytes.fromhex(digits.strip("`")), int(bucket), int(of_16))
        for key, digits, bucket, of_16 in rows
    ]


@sweep("key, bucket, of_16", documented())
def test_buckets_match_the_page(key: bytes, bucket: int, of_16: int) -> None:
    assert crc32c(key) & 0x7FFFFFFF == bucket
    assert bucket % 16 == of_16
    assert key_bucket(key) == bucket


def test_an_integer_is_its_digits() -> None:
    assert key_bucket(-5) == key_bucket("-5")
    assert key_bucket(2**70) == key_bucket(str(2**70))


@sweep("key", [2**5000, 1.0, True, None, "\ud800", ["a"]])
def test_other_values_are_refused(key: Key) -> None:
    with pytest.raises(UsageError, match="key"):
        key_bucket(key)
