# SPDX-License-Identifier: Apache-2.0
"""The version of this package, and the command that adds an extra to it."""

__version__ = "0.1.0"


def install(extras: str) -> str:
    """Return the command that installs what extras need, for errors about a missing package.

    pip finds the installed bmq, and asks a package index only for the packages of the extras. The name of bmq
    at a package index stands here alone: no index has it before the first release.
    """
    return f"pip install 'bmq[{extras}]'"
