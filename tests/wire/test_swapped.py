# SPDX-License-Identifier: Apache-2.0
"""The declarations drive all codecs: the declared position of a field determines its bytes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from construct import BitStruct

import bmq
from bmq.wire.codec import CODECS, StructureCodec
from bmq.wire.layout import LAYOUTS, fields_of

PACKAGE = Path(bmq.__file__).parent


@pytest.mark.statement("8.2")
@pytest.mark.parametrize(
    ("name", "first"),
    [
        (name, first)
        for name, declaration in LAYOUTS.items()
        for first in range(len(declaration.subcon.subcons) - 1)
    ],
)
def test_swapped_fields_change_the_bytes(name: str, first: int) -> None:
    members = list(LAYOUTS[name].subcon.subcons)
    members[first : first + 2] = members[first + 1], members[first]
    swapped = BitStruct(*members)
    codec = StructureCodec(name, fields_of(swapped))
    values = {
        field: bytes(range(bits // 8)) if kind == "bytes" else at % 2
        for at, (field, bits, kind) in enumerate(fields_of(LAYOUTS[name]))
    }
    data = codec.build(**values)
    assert data == swapped.build(values)
    assert data != CODECS[name].build(**values)
    assert codec.read(data) == values


def test_only_the_codecs_use_the_order_of_the_fields() -> None:
    """All other modules name the fields, and therefore follow a change of the order."""
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} .{node.attr}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).as_posix() not in ("wire/codec.py", "arrow/columns.py")
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
        (("flags+messageGUID",), "PutHeader does not have flags\\+messageGUID as a word in this place"),
        (("messageWords+flags",), "PutHeader does not have messageWords\\+flags as a word in this place"),
        (("messageWords",), "PutHeader does not have messageWords as a word in this place"),
        (
            ("queueId", "flags+messageWords"),
            "PutHeader does not have flags\\+messageWords as a word in this place",
        ),
    ],
)
def test_words_that_are_not_declared_are_refused(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        CODECS["PutHeader"].words(*words)


def test_words_of_the_declaration_are_packed() -> None:
    words = CODECS["PushHeader"].words("flags+messageWords", "messageGUID")
    assert (words.format, words.shift("flags"), words.mask("flags")) == (">I8x16s4x", 28, 15)
    raw = words.pack(0x2000_0009, bytes(range(16)))
    assert raw == CODECS["PushHeader"].build(flags=2, messageWords=9, messageGUID=bytes(range(16)))
    assert words.unpack_from(raw) == (0x2000_0009, bytes(range(16)))
