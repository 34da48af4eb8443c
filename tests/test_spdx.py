# SPDX-License-Identifier: Apache-2.0
"""Each file names its license."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import spdx


def test_every_file_names_its_license() -> None:
    found = spdx.files()
    assert {path.suffix for path in found} >= {".py", ".toml", ".yml", ".css", ".js"}
    missing = [str(path.relative_to(spdx.ROOT)) for path in found if not spdx.says(path)]
    assert missing == [], "python tests/spdx.py --add"


@pytest.mark.parametrize(
    ("name", "text", "then"),
    [
        ("a.py", '"""Doc."""\n', '# SPDX-License-Identifier: Apache-2.0\n"""Doc."""\n'),
        ("run", "#!/bin/sh\ntrue\n", "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\ntrue\n"),
        ("a.css", "a {}\n", "/* SPDX-License-Identifier: Apache-2.0 */\na {}\n"),
    ],
)
def test_missing_license_line_is_written(name: str, text: str, then: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert not spdx.says(path)
    spdx.add(path)
    assert path.read_text(encoding="utf-8") == then
    assert spdx.says(path)
