# SPDX-License-Identifier: Apache-2.0
"""``format("bmq")``: creates the readers and writers for Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from bmq.errors import UsageError
from bmq.spark.options import (
    OF_A_TABLE,
    ReadOptions,
    SourceOptions,
    StreamOptions,
    check_reading,
    parse,
    write_options,
)
from bmq.spark.schema import check_columns, source_ddl
from bmq.spark.writer import BatchWriter, StreamWriter, WritePartition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["BmqDataSource"]


#: Options of a stream that need an engine with read limits.
_NEEDS_READ_LIMITS = ("idleTimeoutMs", "maxMessages", "minMessagesPerTrigger")


class RefusedReader(DataSourceStreamReader):
    """Replaces a reader with illegal options.

    When a query fails, Spark stops the reader. Without a reader, a second error hides the first error.

    Args:
        error: reason.
    """

    def __init__(self, error: UsageError) -> None:
        self._error = error

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error

    initialOffset = latestOffset = getDefaultReadLimit = partitions = read = commit = _refuse

    def stop(self) -> None:
        """Do not stop: the reader holds no resources."""


class BmqDataSource(DataSource):
    """Queues as sinks and sources of DataFrames.

    ::

        spark.dataSource.register(bmq.spark.BmqDataSource)
        df.write.format("bmq").mode("append").option("queue", "bmq://DOMAIN/QUEUE").save()

    Spark also finds the format without ``register``, through the module ``pyspark_bmq``. The documentation
    lists the options. The effect of a repeated task, and of ``guidMode``, is described at
    :func:`bmq.spark.write_partition`.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "bmq"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Check options and columns, and return the writer for a DataFrame.

        Raises:
            UsageError: mode("overwrite"), or an option or a column is not legal.
        """
        if overwrite:
            raise UsageError('a queue cannot be overwritten: use mode("append")')
        return BatchWriter(self._partition(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Check options and columns, and return the writer for micro-batches.

        Raises:
            UsageError: outputMode("complete"), or an option or a column is not legal.
        """
        if overwrite:
            raise UsageError(
                'a queue cannot be overwritten, as outputMode("complete") requires: use '
                'outputMode("append"), or write the whole result in foreachBatch'
            )
        return StreamWriter(self._partition(schema))

    def schema(self) -> str:
        """Check the options that determine the rows, and return the columns of a source.

        Spark calls this method at ``load()``, and in SQL at CREATE, unless the user names columns.

        Raises:
            UsageError: an option is not legal; or CREATE TABLE has options, which Spark does not pass to
                statements.
        """
        if "provider" in self.options:  # the properties of a table in the catalog
            if "queue" in self.options or "broker" in self.options:
                raise UsageError(OF_A_TABLE)
            return source_ddl()
        options = check_reading(self.options)
        if isinstance(options, SourceOptions):
            return source_ddl(options.properties_schema, include_properties=options.include_properties)
        return source_ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Check options and columns, and return the reader of a queue.

        Raises:
            UsageError: an option or a column is not legal.
        """
        from bmq.spark.batch_reader import BatchReader, FilteredReader

        options = parse(ReadOptions, self.options)
        return (FilteredReader if options.push_filters else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Check options and columns, and return the reader of a stream.

        Illegal options and columns, and options that this pyspark does not support, raise an error in the
        first call of the reader. If this method raised the error, Spark would show an error of its own
        instead.
        """
        try:
            return self._stream_reader(schema)
        except UsageError as error:
            return RefusedReader(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        from bmq.spark.stream_reader import READ_LIMITS, StreamReader

        given = {name.lower() for name in self.options}
        if "pushfilters" in given:
            raise UsageError(
                "option pushFilters is for spark.read: Spark pushes no filters into streams. Put the "
                "condition into the option expression"
            )
        for name in _NEEDS_READ_LIMITS if not READ_LIMITS else ():
            if name.lower() in given:
                raise UsageError(
                    f"option {name} needs pyspark 4.2 or newer, and this is {pyspark.__version__}, which "
                    "does not report availableNow to a source, and reads a single batch"
                )
        options = parse(StreamOptions, self.options)
        if not options.checkpoint_location and not options.log_path:
            raise UsageError(
                "option checkpointLocation is missing: give readStream the checkpointLocation of "
                "writeStream, which keeps delivered messages until their batch is committed. Spark does not "
                "tell a source the setting spark.sql.streaming.checkpointLocation: with this setting the "
                "checkpoint is its folder and the queryName"
            )
        return StreamReader(options, schema)

    def _partition(self, schema: StructType) -> WritePartition:
        options = write_options(self.options, schema.fieldNames())
        return WritePartition(options, check_columns(schema, options))
