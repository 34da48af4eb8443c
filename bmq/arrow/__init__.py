# SPDX-License-Identifier: Apache-2.0
"""Queues as Arrow tables, for Polars, DuckDB, pandas and whatever else reads Arrow. Needs ``bmq[arrow]``.

:func:`reader` makes a ``pyarrow.RecordBatchReader`` of a queue; :class:`Source` is the same where the program
says what is confirmed. :class:`Tables`, which :meth:`bmq.Queue.tables` makes, is the way of asyncio.
"""

try:
    from bmq.arrow._source import Confirm, Source, reader
    from bmq.client.tables import Tables, TablesOptions
except ModuleNotFoundError as error:
    missing = str(error.name).partition(".")[0]
    if missing not in ("numpy", "pyarrow"):
        raise
    raise ModuleNotFoundError(
        f"bmq.arrow needs {missing}, which is not installed: pip install 'bmq[arrow]'", name=missing
    ) from error

__all__ = ["Confirm", "Source", "Tables", "TablesOptions", "reader"]
