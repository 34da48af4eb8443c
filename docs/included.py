# SPDX-License-Identifier: Apache-2.0
"""Files of the examples within pages.

``<!-- example: orders_service/orders.py -->`` stands for a block with the title ``orders.py`` and the text of
the file, without the line of the license. MkDocs and the tests of the pages fill in the same text.
"""

from __future__ import annotations

import re
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"
LICENSE = "# SPDX-License-Identifier: Apache-2.0\n"
MARKER = re.compile(r"^<!-- example: (\w+)/(\S+) -->$", re.MULTILINE)
LANGUAGES = {".py": "python", ".yml": "yaml", ".yaml": "yaml", "": "docker"}


def include(markdown: str) -> str:
    """Replace each marker by a block with the file's text."""

    def block(match: re.Match[str]) -> str:
        file = EXAMPLES / match[1] / match[2]
        text = file.read_text(encoding="utf-8").removeprefix(LICENSE)
        return f'```{LANGUAGES[file.suffix]} title="{match[2]}"\n{text}```'

    return MARKER.sub(block, markdown)
