# SPDX-License-Identifier: Apache-2.0
"""Writes the domain files of the brokers in Docker: the built-in domains of the embedded one.

Run it after a change of the built-in domains: ``.venv/bin/python docker/domains.py``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from bmq.broker.domain_config import DomainConfig, Mode, Redirect, builtin_domains

HERE = Path(__file__).parent
#: The name of the cluster in both clusters.json.
CLUSTER = "bmq"
#: Which configuration has which domains.
CONFIGURATIONS = ("single-node", "cluster")


def domains(configuration: str) -> dict[str, DomainConfig | Redirect]:
    """The domains of a configuration, by name.

    Nodes of a cluster refuse queues kept in memory, except for broadcast, and may even crash of them. Names
    are the same everywhere, so that what runs against one node runs against a cluster.
    """
    found = builtin_domains()
    if configuration == "cluster":
        for name, domain in found.items():
            if isinstance(domain, DomainConfig) and domain.mode is not Mode.BROADCAST:
                found[name] = replace(domain, file_backed=True)
    return found


def contents(configuration: str) -> dict[str, str]:
    """The files of a configuration, by name."""
    files = {}
    for name, domain in domains(configuration).items():
        definition = {"location": CLUSTER, "parameters": domain.parameters()}
        files[f"{name}.json"] = json.dumps({"definition": definition}, indent=2) + "\n"
    return files


def main() -> None:
    """Write them all, and nothing else."""
    for configuration in CONFIGURATIONS:
        directory = HERE / configuration / "etc" / "domains"
        directory.mkdir(exist_ok=True)
        for old in directory.glob("*.json"):
            old.unlink()
        for name, text in contents(configuration).items():
            (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
