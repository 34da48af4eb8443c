# SPDX-License-Identifier: Apache-2.0
"""Queues as Arrow tables, for Polars, DuckDB, pandas and other readers of Arrow. Needs ``bmq[arrow]``.

:func:`reader` returns a ``pyarrow.RecordBatchReader`` for a queue. :class:`Source` does the same, with
confirmations by the program. :class:`Tables`, created by :meth:`bmq.Queue.tables`, is the asyncio interface.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from bmq._version import install

if TYPE_CHECKING:
    from bmq.arrow.source import Confirm, Source, reader
    from bmq.arrow.tables import Tables
    from bmq.client.keywords import TablesOptions

__all__ = ["Confirm", "Source", "Tables", "TablesOptions", "reader"]

for _name in ("numpy", "pyarrow"):
    if find_spec(_name) is None:
        raise ModuleNotFoundError(
            f"bmq.arrow needs {_name}, which is not installed: {install('arrow')}", name=_name
        )

# Spark's processes that encode or decode columns without a connection must not import the client.
if not TYPE_CHECKING:
    _MODULE_OF = {
        "Confirm": "bmq.arrow.source",
        "Source": "bmq.arrow.source",
        "Tables": "bmq.arrow.tables",
        "TablesOptions": "bmq.client.keywords",
        "reader": "bmq.arrow.source",
    }

    def __getattr__(name):
        """Import public names on first access."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
