# SPDX-License-Identifier: Apache-2.0
"""Put measured tables into docs/explain/performance.md and benchmarks/RESULTS.md.

    python benchmarks/page.py build/benchmark.json build/limits.json ...

Each file is the output of a program of this folder. Its tables replace the text between
``<!-- measured: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGES = (HERE.parent / "docs" / "explain" / "performance.md", HERE / "RESULTS.md")
MARKED = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def markdown(table: dict[str, Any], document: dict[str, Any]) -> str:
    machine = document["machine"]
    heads = ["---", *["---:"] * (len(table["columns"]) - 1)]
    lines = [f"| {' | '.join(cells)} |" for cells in (table["columns"], heads, *table["rows"])]
    place = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, {machine['date']}"
    return "\n".join([*lines, "", f"*{place}; {document['about']}.*"])


def main() -> None:
    measured: dict[str, str] = {}
    for name in sys.argv[1:]:
        document = json.loads(Path(name).read_text(encoding="utf-8"))
        measured |= {name: markdown(table, document) for name, table in document["tables"].items()}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        text = MARKED.sub(lambda m: f"{m[1]}{measured[m[2]]}\n{m[3]}" if m[2] in measured else m[0], text)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
