# SPDX-License-Identifier: Apache-2.0
"""The JSON library: orjson, or a stand-in where orjson cannot be installed.

orjson has no wheels for free-threaded interpreters. Everything in bmq imports the library from here.
"""

from __future__ import annotations

try:
    import orjson
except ModuleNotFoundError:  # pragma: no cover
    from bmq import _plain_json as orjson  # type: ignore[no-redef]

__all__ = ["orjson"]
