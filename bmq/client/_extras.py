# SPDX-License-Identifier: Apache-2.0
"""Imports of optional libraries, with errors that name the extra to install."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from bmq._version import install

__all__ = ["importing_arrow"]


@contextmanager
def importing_arrow() -> Generator[None]:
    """Import modules of tables in the block.

    Raises:
        ModuleNotFoundError: numpy or pyarrow is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("numpy", "pyarrow"):
            raise
        raise ModuleNotFoundError(
            f"tables need {error.name}, which is not installed: {install('arrow')}", name=error.name
        ) from error
