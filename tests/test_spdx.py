# SPDX-License-Identifier: Apache-2.0
"""Each file names its license."""

from __future__ import annotations

from tests import spdx


def test_every_file_names_its_license() -> None:
    found = spdx.files()
    assert {path.suffix for path in found} >= {".py", ".toml", ".yml", ".css", ".js"}
    missing = [str(path.relative_to(spdx.ROOT)) for path in found if not spdx.says(path)]
    assert missing == [], "python tests/spdx.py --add"
