# SPDX-License-Identifier: Apache-2.0
"""Queues as Arrow tables, for Polars, DuckDB, pandas and other readers of Arrow. Needs ``bmq[arrow]``.

:func:`reader` returns a ``pyarrow.RecordBatchReader`` for a queue. :class:`Source` does the same, with
confirmations by the program. :class:`Tables`, created by :meth:`bmq.Queue.tables`, is the asyncio interface.
"""

from bmq._version import install

try:
    from bmq.arrow.source import Confirm, Source, reader
    from bmq.arrow.tables import Tables
    from bmq.client.options import TablesOptions
except ModuleNotFoundError as error:
    missing = str(error.name).partition(".")[0]
    if missing not in ("numpy", "pyarrow"):
        raise
    raise ModuleNotFoundError(
        f"bmq.arrow needs {missing}, which is not installed: {install('arrow')}", name=missing
    ) from error

__all__ = ["Confirm", "Source", "Tables", "TablesOptions", "reader"]
