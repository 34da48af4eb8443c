# SPDX-License-Identifier: Apache-2.0
"""Checks that each file names its license in its first lines, for tools that read single files.

python tests/spdx.py          # lists the files without the license
python tests/spdx.py --add    # writes the license into these files
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINE = "SPDX-License-Identifier: Apache-2.0"
#: The start of a comment, by suffix; and by name, for files without a suffix.
COMMENTS = {
    **dict.fromkeys((".py", ".toml", ".yml", ".yaml", "Makefile", "Dockerfile", "run", "integration"), "# "),
    **dict.fromkeys((".js", ".mjs"), "// "),
    ".css": "/* ",
}
#: Not ours: the data of the demo is in the public domain, and recorded or drawn files have no comments.
LEFT_OUT = ("examples/data/", "tests/data/")


def files() -> list[Path]:
    """Return the files of the repository that can name a license."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = (ROOT / name for name in sorted(listed.stdout.splitlines()) if not name.startswith(LEFT_OUT))
    return [path for path in found if _begins(path) is not None and path.is_file() and path.stat().st_size]


def _begins(path: Path) -> str | None:
    return COMMENTS.get(path.suffix) if path.suffix else COMMENTS.get(path.name)


def says(path: Path) -> bool:
    """Whether a file names its license."""
    return any(LINE in line for line in path.read_text(encoding="utf-8").splitlines()[:3])


def add(path: Path) -> None:
    """Add the license to a file, below the line of the interpreter."""
    text = path.read_text(encoding="utf-8")
    first, rest = "", text
    if text.startswith("#!"):
        first, _, rest = text.partition("\n")
        first += "\n"
    begins = _begins(path)
    end = " */" if begins == "/* " else ""
    path.write_text(f"{first}{begins}{LINE}{end}\n{rest}", encoding="utf-8")


def main() -> int:
    missing = [path for path in files() if not says(path)]
    for path in missing:
        if "--add" in sys.argv:
            add(path)
        else:
            sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    return bool(missing) and "--add" not in sys.argv


if __name__ == "__main__":
    sys.exit(main())
