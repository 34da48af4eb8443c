# SPDX-License-Identifier: Apache-2.0
"""Readers of ``format("bmq")``, called as Spark calls them, without a JVM."""

from __future__ import annotations

from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceStreamReader
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bmq.spark import BmqDataSource

__all__ = ["WHOLE", "ask", "read", "rows_of", "source", "struct", "travelled", "values_of"]


def struct(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


WHOLE = struct(
    value=BinaryType(),
    properties=MapType(StringType(), StringType()),
    guid=StringType(),
    queue=StringType(),
    subscription=StringType(),
    redelivered=BooleanType(),
    receivedAt=TimestampType(),
    error=StringType(),
)


def source(**options: Any) -> BmqDataSource:
    return BmqDataSource(CaseInsensitiveDict({key: str(value) for key, value in options.items()}))


def travelled(value: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(value))


def read(reader: Any, partition: Any) -> list[dict[str, Any]]:
    return [row for batch in reader.read(partition) for row in batch.to_pylist()]


def ask(reader: Any, start: dict[str, Any]) -> dict[str, Any]:
    """Ask a stream for its latest offset, as engines do since pyspark 4.2: earlier ones have no limits."""
    limited = hasattr(DataSourceStreamReader, "getDefaultReadLimit")
    latest: dict[str, Any] = reader.latestOffset(start, reader.getDefaultReadLimit() if limited else None)
    return latest


def rows_of(planned: BmqDataSource, schema: StructType = WHOLE) -> list[dict[str, Any]]:
    """Plan a read as Spark does, and run its tasks."""
    reader = planned.reader(schema)
    partitions = travelled(reader.partitions())
    worker = travelled(reader)
    return [row for each in partitions for row in read(worker, each)]


def values_of(**options: Any) -> list[str]:
    """The payloads of a read."""
    return [row["value"].decode() for row in rows_of(source(**options))]
