"""``format("bmq")``: what Spark asks for readers and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from bmq.errors import UsageError
from bmq.spark.options import WRITE_OPTIONS, Options, sink_settings
from bmq.spark.writer import ArrowPartition, BatchWriter, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["BmqDataSource"]


class BmqDataSource(DataSource):
    """Queues as sinks and sources of DataFrames.

    ::

        spark.dataSource.register(bmq.spark.BmqDataSource)
        df.write.format("bmq").mode("append").option("queue", "bmq://DOMAIN/QUEUE").save()

    Spark finds it without ``register`` too, by the module ``pyspark_bmq``. The options are in the
    documentation, and in :mod:`bmq.spark.options`. What a repeated task does, and what ``guidMode`` has to do
    with it, is in the documentation of :func:`bmq.spark.write_partition`.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "bmq"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Check options and columns, and return what writes a DataFrame.

        Raises:
            UsageError: mode("overwrite"), or an option or column is not legal.
        """
        if overwrite:
            raise UsageError('a queue cannot be overwritten: use mode("append")')
        return BatchWriter(self._partition(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Check options and columns, and return what writes micro-batches.

        Raises:
            UsageError: outputMode("complete"), or an option or column is not legal.
        """
        if overwrite:
            raise UsageError(
                'a queue cannot be overwritten, which outputMode("complete") asks for: use '
                'outputMode("append"), or write the whole result in foreachBatch'
            )
        return StreamWriter(self._partition(schema))

    def _partition(self, schema: StructType) -> ArrowPartition:
        settings = sink_settings(Options(self.options, WRITE_OPTIONS), schema.fieldNames())
        return ArrowPartition(settings, schema)
