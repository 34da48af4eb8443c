"""DataFrames to queues and queues to DataFrames. Needs the extra ``bmq[spark]``.

:func:`write_partition` makes the function for ``foreachPartition``; :func:`write` posts a whole DataFrame and
says what became of it; :class:`BmqDataSource` is ``format("bmq")``.
"""

from bmq.spark.datasource import BmqDataSource
from bmq.spark.guids import GuidMode
from bmq.spark.helper import summary_accumulator, write
from bmq.spark.java import check_java
from bmq.spark.partition import write_partition
from bmq.spark.summary import PartitionReport, Summary

__all__ = [
    "BmqDataSource",
    "GuidMode",
    "PartitionReport",
    "Summary",
    "check_java",
    "summary_accumulator",
    "write",
    "write_partition",
]
