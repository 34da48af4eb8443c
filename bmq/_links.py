# SPDX-License-Identifier: Apache-2.0
"""The address of the documentation, as the installed package has it."""

from __future__ import annotations

from functools import cache

__all__ = ["page"]


def page(name: str) -> str:
    """Return the address of a page of the documentation; "" if the package names no documentation."""
    site = _site()
    return f"{site}/{name}.html" if site else ""


@cache
def _site() -> str:
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        urls = metadata("bmq").get_all("Project-URL") or []
    except PackageNotFoundError:  # not installed: imported from a checkout
        return ""
    for url in urls:
        label, _, address = str(url).partition(", ")
        if label == "Documentation":
            return address.rstrip("/")
    return ""
