# SPDX-License-Identifier: Apache-2.0
"""The how-to page: the simulation finds each planted bug of the example, and none in the right version."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "simulated_service"
#: The bugs, and what the run of each reports.
FOUND = [
    ("confirms_early", "was confirmed before it was handled"),
    ("books_twice", "has happened twice"),
    ("loses_updates", "owed {"),
]


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(FOLDER))
    logging.disable(logging.CRITICAL)
    import simulate  # type: ignore[import-not-found]

    yield simulate
    logging.disable(logging.NOTSET)


def first_failure(run: Callable[[int], None], seeds: int) -> tuple[int, str]:
    for seed in range(seeds):
        try:
            run(seed)
        except AssertionError as error:
            return seed, str(error)
    return -1, ""


@pytest.mark.parametrize(("version", "found"), FOUND)
def test_bug_is_found_and_reproduced_by_its_seed(simulate: Any, version: str, found: str) -> None:
    seed, text = first_failure(lambda seed: simulate.simulate(simulate.VERSIONS[version], seed), 20)
    assert found in text
    with pytest.raises(AssertionError) as again:
        simulate.simulate(simulate.VERSIONS[version], seed)
    assert str(again.value) == text


def test_the_correct_version_keeps_every_promise(simulate: Any) -> None:
    assert first_failure(lambda seed: simulate.simulate(simulate.VERSIONS["is_right"], seed), 10) == (-1, "")
