"""DataFrames to queues and queues to DataFrames. Needs the extra ``bmq[spark]``.

:func:`write_partition` makes the function for ``foreachPartition``.
"""

from bmq.spark.guids import GuidMode
from bmq.spark.partition import write_partition
from bmq.spark.summary import PartitionReport, Summary

__all__ = ["GuidMode", "PartitionReport", "Summary", "write_partition"]
