# SPDX-License-Identifier: Apache-2.0
"""What the package says about itself that depends on where its repository is: links, and the README's.

Where that is stands in one place, ``[tool.bmq.links]`` of pyproject.toml; the documentation reads it from
there too. As long as nothing stands there the package has no URLs, and its README no links into the
repository.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def links() -> dict[str, str]:
    """Return the addresses of what people look for, by name; nothing while there is no repository."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        table: dict[str, str] = tomllib.load(file)["tool"]["bmq"]["links"]
    repository, site = (table.pop(name).rstrip("/") for name in ("repository", "site"))
    known = {"site": site} if site else {}
    if repository:
        known |= {"repository": repository} | {name: f"{repository}/{path}" for name, path in table.items()}
    return known


def version() -> str:
    """Return the version, as bmq/_version.py has it."""
    found = re.search(r'__version__ = "(.+)"', (ROOT / "bmq" / "_version.py").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def readme(text: str, known: dict[str, str], number: str) -> str:
    """Return the README for a reader who has no repository at hand.

    Args:
        text: the README.
        known: the addresses, as :func:`links` has them.
        number: the version whose files are linked.

    Returns:
        The text with absolute links where the repository is known; elsewhere without links and pictures.
    """

    def link(match: re.Match[str]) -> str:
        picture, words, path = match.groups()
        if "repository" in known:
            pattern = known["picture" if picture else "file"]
            return f"{picture}[{words}]({pattern.format(version=number, path=path)})"
        return "" if picture else words

    return LINK.sub(link, text)


class LinksHook(MetadataHookInterface):
    """Fills in what pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README, and the URLs if there are any."""
        known = links()
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": readme(text, known, version())}
        names = {
            "Source": "repository",
            "Issues": "issues",
            "Changelog": "changelog",
            "Documentation": "site",
            "Security": "security",
        }
        metadata["urls"] = {
            label: known[name].format(version=version()) for label, name in names.items() if name in known
        }
