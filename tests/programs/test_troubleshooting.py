# SPDX-License-Identifier: Apache-2.0
"""The page on troubleshooting has a cause and a remedy for each error and for each line of the log."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

import bmq.errors
from tests.programs.test_docs import DOCS, ROOT
from tests.programs.test_docs import generate as generate

PAGE = DOCS / "operate" / "troubleshooting.md"


@pytest.fixture(scope="module")
def logged(generate: ModuleType) -> dict[str, str]:
    found: dict[str, str] = sys.modules["messages"].logged(ROOT / "bmq")
    return found


@pytest.fixture(scope="module")
def troubles(generate: ModuleType) -> dict[str, Any]:
    found: dict[str, Any] = generate.troubles()
    return found


def test_every_error_class_has_a_cause_and_a_remedy(troubles: dict[str, Any], generate: ModuleType) -> None:
    classes = {
        name
        for name in bmq.errors.__all__
        if isinstance(value := getattr(bmq.errors, name), type) and issubclass(value, Exception)
    }
    assert set(troubles["error"]) == classes
    page = generate.fill(PAGE.read_text(encoding="utf-8"))
    for name, found in troubles["error"].items():
        assert f"[`{name}`](../api/{name}.md)" in page
        assert found["cause"] in page
        assert found["remedy"] in page


def test_every_line_of_the_log_has_a_cause_and_a_remedy(
    troubles: dict[str, Any], logged: dict[str, str]
) -> None:
    """A new or reworded line needs its entry in docs/troubles.toml; an entry without a line is removed."""
    explained = [found["text"] for found in troubles["message"]]
    assert sorted(set(logged) - set(explained)) == []
    assert sorted(set(explained) - set(logged)) == []
    assert len(explained) == len(set(explained))
    assert all(found["cause"] and found["remedy"] for found in troubles["message"])
