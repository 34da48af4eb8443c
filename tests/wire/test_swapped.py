# SPDX-License-Identifier: Apache-2.0
"""The declarations drive all codecs: the declared position of a field determines its bytes."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bmq
from bmq.wire.codec import CODECS
from bmq.wire.layout import LAYOUTS, fields_of
from tests.wire import swapped

PACKAGE = Path(bmq.__file__).parent
CODECS_IN = ("wire/", "protocol/framing.py", "protocol/client/slices.py", "testing/_pipe.py")


@pytest.mark.statement("8.2")
@pytest.mark.timeout(600)  # 57 processes; on a busy machine each takes seconds
def test_swapped_fields_change_the_bytes_of_every_codec() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.wire.swapped"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    pairs = [
        f"{name} {one} {other}"
        for name, declaration in LAYOUTS.items()
        for (one, _, _), (other, _, _) in itertools.pairwise(fields_of(declaration))
    ]
    compared = [line.partition(": ") for line in run.stdout.splitlines()]
    assert [pair for pair, _, _ in compared] == pairs
    assert all(codecs for _, _, codecs in compared)


def test_every_structure_is_compared() -> None:
    assert list(swapped.CHECKS) == list(LAYOUTS)


def test_every_codec_is_compared() -> None:
    """Whatever reads or writes a declared structure takes part in the comparisons.

    Outside of the codecs, sizes and whole events are used, which the comparisons of the codecs cover.
    """
    users = {each for each in swapped.users() if each.startswith(CODECS_IN)}
    assert users - swapped.called() == set()


def test_only_the_codecs_use_the_order_of_the_fields() -> None:
    """All other modules name the fields, and therefore follow a change of the order."""
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} .{node.attr}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).as_posix() not in ("wire/codec.py", "wire/columns.py")
        and "projects" not in path.parts  # templates of other programs
        if re.search(r"\b(struct|slots)\b", text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr in ("struct", "slots")
    ]
    assert not found


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("colour",), "PutHeader has no field colour"),
        (("flags+messageGUID",), "PutHeader: bytes are a word of their own, not flags\\+messageGUID"),
    ],
)
def test_impossible_words_are_refused(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        CODECS["PutHeader"].words(*words)


def test_words_of_the_declaration_are_packed_by_struct_itself() -> None:
    words = CODECS["PushHeader"].words("flags+messageWords", "messageGUID")
    assert (words.direct, words.format) == (True, ">I8x16s4x")
    other = CODECS["PushHeader"].words("messageGUID", "messageWords+flags")
    assert not other.direct
    raw = words.pack(0x2000_0009, bytes(range(16)))
    assert other.pack(bytes(range(16)), 0x92) == raw
    assert (words.unpack_from(raw), other.unpack_from(raw)) == (
        (0x2000_0009, bytes(range(16))),
        (bytes(range(16)), 0x92),
    )
