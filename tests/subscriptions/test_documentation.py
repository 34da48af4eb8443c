# SPDX-License-Identifier: Apache-2.0
"""The sessions shown in the documentation of subscriptions, and in docstrings, are real."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from pathlib import Path

from bmq.subscriptions import _filters
from tests.sweeps import sweep

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["guides/select", "reference/expressions", "explain/routing"]
SESSION = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sessions() -> Iterator[doctest.DocTest]:
    for page in PAGES:
        text = "\n".join(SESSION.findall((DOCS / f"{page}.md").read_text(encoding="utf-8")))
        assert ">>>" in text
        yield doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
    yield from (test for test in doctest.DocTestFinder().find(_filters) if test.examples)


@sweep("shown", sessions(), ids=lambda shown: shown.name)
def test_the_sessions_on_pages_and_in_docstrings_are_real(shown: doctest.DocTest) -> None:
    told: list[str] = []
    doctest.DocTestRunner(verbose=False).run(shown, out=told.append)
    assert "".join(told) == ""
