# SPDX-License-Identifier: Apache-2.0
"""Malformed input for decoders: the only permitted results are a value and a ProtocolError."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from hypothesis import strategies as st

from bmq.errors import ProtocolError
from tests.transcripts import Recorded

__all__ = ["attempt", "damaged"]

P = ParamSpec("P")
T = TypeVar("T")


def attempt(
    decode: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> tuple[T, None] | tuple[Any, ProtocolError]:
    """Return the result of ``decode`` without an error, or its ProtocolError without a result; nothing else
    passes.
    """
    try:
        return decode(*args, **kwargs), None
    except ProtocolError as error:
        return None, error


def _word(position: int, value: int) -> Callable[[bytes], bytes]:
    def edit(data: bytes) -> bytes:
        at = position % max(1, len(data) // 4) * 4
        return data[:at] + value.to_bytes(4, "big") + data[at + 4 :]

    return edit


def _length(value: int) -> Callable[[bytes], bytes]:
    return lambda data: value.to_bytes(4, "big") + data[4:]


def _flip(bits: list[int]) -> Callable[[bytes], bytes]:
    def edit(data: bytes) -> bytes:
        changed = bytearray(data)
        for bit in bits:
            if changed:
                changed[bit // 8 % len(changed)] ^= 1 << bit % 8
        return bytes(changed)

    return edit


def _cut(start: int, count: int) -> Callable[[bytes], bytes]:
    def edit(data: bytes) -> bytes:
        at = start % (len(data) + 1)
        return data[:at] + data[at + count :]

    return edit


def _insert(start: int, piece: bytes) -> Callable[[bytes], bytes]:
    def edit(data: bytes) -> bytes:
        at = start % (len(data) + 1)
        return data[:at] + piece + data[at:]

    return edit


def _right_length(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data[4:]


def damaged(events: Sequence[Recorded]) -> st.SearchStrategy[bytes]:
    """Recorded events with some damage: flipped bits, cuts, splices with another event, changed lengths."""
    # Mostly short events: damage to a header is more interesting.
    originals = sorted({event.data for event in events}, key=len)
    original = st.sampled_from(originals)
    position = st.integers(0, 1 << 16)
    odd_numbers = st.sampled_from([0, 1, 4, 7, 8, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]) | st.integers(
        0, 2**32 - 1
    )
    edits = st.one_of(
        st.builds(_flip, st.lists(position, min_size=1, max_size=4)),
        st.builds(_flip, st.lists(st.integers(0, 64 * 8), min_size=1, max_size=3)),
        st.builds(_word, st.integers(0, 16), odd_numbers),
        st.builds(_cut, position, st.integers(1, 40)),
        st.builds(_cut, position, st.just(1 << 20)),
        st.builds(_insert, position, st.binary(min_size=1, max_size=8)),
        st.builds(_insert, position, original.map(lambda data: data[8:200])),
        st.builds(_length, odd_numbers),
        st.just(_right_length),
    )

    def apply(data: bytes, changes: list[Callable[[bytes], bytes]]) -> bytes:
        for change in changes:
            data = change(data)
        return data

    return st.builds(apply, original, st.lists(edits, min_size=1, max_size=4))
