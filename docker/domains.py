"""Writes the domain files of the broker in Docker: the built-in domains of the embedded one.

Run it after a change of the built-in domains: ``.venv/bin/python docker/domains.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

from bmq.broker.builtin import builtin_domains

DIRECTORY = Path(__file__).parent / "single-node" / "etc" / "domains"
#: The name of the cluster in both clusters.json, so that one set of domain files serves both.
CLUSTER = "bmq"


def contents() -> dict[str, str]:
    """The files by name."""
    files = {}
    for name, domain in builtin_domains().items():
        definition = {"location": CLUSTER, "parameters": domain.parameters()}
        files[f"{name}.json"] = json.dumps({"definition": definition}, indent=2) + "\n"
    return files


def main() -> None:
    """Write them all, and nothing else."""
    for old in DIRECTORY.glob("*.json"):
        old.unlink()
    for name, text in contents().items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
