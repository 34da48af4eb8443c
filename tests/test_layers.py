# SPDX-License-Identifier: Apache-2.0
"""The page on how to write a test names tests, folders and helpers that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS / "README.md").read_text(encoding="utf-8")


def test_every_model_exists() -> None:
    models = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)
    assert len(models) > 8
    for path, name in models:
        assert f"def {name}(" in (TESTS / path).read_text(encoding="utf-8"), f"{path}::{name}"


def test_every_folder_with_tests_of_a_layer_exists() -> None:
    table = PAGE.partition("| layer")[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        for path in re.findall(r"`([\w/]+(?:\.py)?)`", row.split("|")[2]):
            assert (TESTS / path).exists(), path
