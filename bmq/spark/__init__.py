# SPDX-License-Identifier: Apache-2.0
"""DataFrames to queues, and queues to DataFrames. Needs the extra ``bmq[spark]``.

:func:`write_partition` returns a function for ``foreachPartition``. :func:`write` posts a whole DataFrame and
returns a summary. :class:`BmqDataSource` is ``format("bmq")``. :class:`QueryMetrics` counts the work of
streaming queries.
"""

try:
    from bmq.spark._confirm import confirm
    from bmq.spark._datasource import BmqDataSource
    from bmq.spark._guids import GuidMode
    from bmq.spark._helper import summary_accumulator, write
    from bmq.spark._java import check_java
    from bmq.spark._metrics import QueryMetrics, QueryStats
    from bmq.spark._partition import write_partition
    from bmq.spark._repair import repair
    from bmq.spark._summary import PartitionReport, Summary
except ModuleNotFoundError as error:
    missing = str(error.name).partition(".")[0]
    if missing not in ("numpy", "pandas", "pyarrow", "pyspark"):
        raise
    raise ModuleNotFoundError(
        f"bmq.spark needs {missing}, which is not installed: pip install 'bmq[spark]'", name=missing
    ) from error

__all__ = [
    "BmqDataSource",
    "GuidMode",
    "PartitionReport",
    "QueryMetrics",
    "QueryStats",
    "Summary",
    "check_java",
    "confirm",
    "repair",
    "summary_accumulator",
    "write",
    "write_partition",
]
