# SPDX-License-Identifier: Apache-2.0
"""Some kills with SIGKILL; ``python -m tests.inbox.kills`` does any number, with any database."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inbox import kills


@pytest.mark.timeout(300)
async def test_killed_workers_have_each_effect_once(tmp_path: Path) -> None:
    tally = await kills.run(f"sqlite+aiosqlite:///{tmp_path / 'kills.db'}", 5)
    assert tally.kills.total() == 5
    assert tally.posted >= 60
    assert (tally.missing, tally.twice) == (0, 0), tally
    assert (tally.outputs_missing, tally.outputs_twice) == (0, 0), tally
