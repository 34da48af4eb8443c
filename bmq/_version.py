# SPDX-License-Identifier: Apache-2.0
"""The version of this package, its extras, and the address of its documentation."""

from functools import cache

__version__ = "0.1.0"


def install(extras: str) -> str:
    """Return the command that installs what extras need, for errors about a missing package.

    pip finds the installed bmq, and asks a package index only for the packages of the extras. The name of bmq
    at a package index stands here alone: no index has it before the first release.
    """
    return f"pip install 'bmq[{extras}]'"


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
