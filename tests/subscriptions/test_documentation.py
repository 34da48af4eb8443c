# SPDX-License-Identifier: Apache-2.0
"""The sessions shown in the documentation of subscriptions, and in docstrings, are real."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from types import ModuleType

import pytest

from bmq.subscriptions import _filters
from tests.sweeps import sweep

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    DOCS / "guides" / "select.md",
    DOCS / "reference" / "expressions.md",
    DOCS / "explain" / "routing.md",
]
SESSION = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def failures(examples: doctest.DocTest) -> str:
    told: list[str] = []
    doctest.DocTestRunner(verbose=False).run(examples, out=told.append)
    return "".join(told)


@sweep("page", PAGES, ids=lambda page: page.stem)
def test_sessions_on_a_page_run(page: Path) -> None:
    text = "\n".join(SESSION.findall(page.read_text(encoding="utf-8")))
    assert ">>>" in text
    assert failures(doctest.DocTestParser().get_doctest(text, {}, page.stem, str(page), 0)) == ""


@pytest.mark.parametrize("module", [_filters], ids=lambda module: module.__name__)
def test_sessions_in_docstrings_run(module: ModuleType) -> None:
    shown = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    assert shown
    assert "".join(map(failures, shown)) == ""
