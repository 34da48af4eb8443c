# SPDX-License-Identifier: Apache-2.0
"""A streaming job of Spark: orders from one queue, each with its total, into a second queue.

After a failure, start the job again with the same checkpoint: the job repeats the unfinished batch. The
rows then have the GUIDs of the first attempt, and the broker stores a GUID once in its deduplication window.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings

import bmq.spark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

ORDERS = "bmq://bmq.test.mem.priority/bmq-new-project.orders"
TOTALS = "bmq://bmq.test.mem.priority/bmq-new-project.totals"
ORDER = "number BIGINT, customer BIGINT, cents BIGINT, quantity BIGINT"


def start_spark() -> SparkSession:
    """Return the session of spark-submit, or a local session without one."""
    bmq.spark.check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers start python3 from PATH
    logging.getLogger("py4j").setLevel(logging.ERROR)
    builder = SparkSession.builder.appName("bmq-new-project").config("spark.sql.session.timeZone", "UTC")
    if "SPARK_ENV_LOADED" not in os.environ:
        builder = builder.master("local[2]").config("spark.ui.enabled", "false")
        for setting in ("spark.driver.host", "spark.driver.bindAddress"):
            builder = builder.config(setting, "127.0.0.1")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


def totals(orders: DataFrame) -> DataFrame:
    """Return a message for each order: JSON with the total, and the customer as a property.

    Keeps the column guid, from which the sink derives the GUID of the new message. Payloads that are no
    orders are left out; select them before, if they matter.
    """
    order = F.from_json(F.col("value").cast("string"), ORDER).alias("order")
    found = orders.select("guid", order).where("order.number IS NOT NULL")
    total = (F.col("order.cents") * F.col("order.quantity")).alias("total")
    text = F.to_json(F.struct("order.number", "order.customer", total)).alias("value")
    return found.select("guid", text, F.col("order.customer").alias("CustomerId"))


def start(spark: SparkSession, broker: str, checkpoint: str, *, once: bool = False) -> StreamingQuery:
    """Start the query.

    Args:
        spark: the session.
        broker: the address of the broker.
        checkpoint: a folder for the progress of the query, reachable from all machines.
        once: whether the query ends after the messages that wait now.
    """
    orders = (
        spark.readStream.format("bmq")
        .options(broker=broker, queue=ORDERS, checkpointLocation=checkpoint, maxMessagesPerTrigger="10000")
        .load()
    )
    writer = (
        totals(orders)
        .writeStream.format("bmq")
        .options(broker=broker, queue=TOTALS, propertyColumns="CustomerId", guidColumn="guid")
        .option("checkpointLocation", checkpoint)
    )
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="1 second")
    return writer.start()


def main() -> None:
    """Run the job."""
    parser = argparse.ArgumentParser(description="Orders from one queue, with totals, into a second queue.")
    parser.add_argument(
        "--broker",
        default=os.environ.get("BMQ_BROKER_URI", "tcp://localhost:30114"),
        help="address of the broker; default: BMQ_BROKER_URI, or tcp://localhost:30114",
    )
    parser.add_argument("--checkpoint", required=True, help="folder for the progress of the job")
    parser.add_argument("--once", action="store_true", help="end after the messages that wait now")
    options = parser.parse_args()
    spark = start_spark()
    try:
        start(spark, options.broker, options.checkpoint, once=options.once).awaitTermination()
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
