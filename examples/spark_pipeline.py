# SPDX-License-Identifier: Apache-2.0
# pyright: basic
"""A streaming job of Spark: departures from one queue, totals by hour and airline into a second queue.

    python examples/spark_pipeline.py --broker tcp://localhost:30114 --folder /data/departures

An hour is the hour of the scheduled departure, not of the message's arrival. The totals of an hour are posted
once a flight scheduled ``LATENESS`` after the end of the hour has arrived; later messages of the hour are
left out. The names of airlines are joined in from a table. A line of JSON for each batch goes to stdout.

After a kill, run the program again with the same folder: it continues from its checkpoint. SIGTERM ends the
program cleanly. ``make demo-spark`` (``spark_demo.py``) posts flights, kills the job, and checks the totals.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import warnings
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

import bmq.spark

FLIGHTS = "bmq://departures/flights"
TOTALS = "bmq://departures/totals"
AIRLINES = Path(__file__).parent / "data" / "departures.csv"
LATENESS = "30 minutes"
LATE = "dep_delay > 60"


def start_spark() -> SparkSession:
    bmq.spark.check_java()
    # By default, Spark's workers start python3 from PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("departures")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def departures(spark: SparkSession, broker: str, checkpoint: str) -> DataFrame:
    """The flights in the queue, on arrival."""
    source = spark.readStream.format("bmq").options(
        broker=broker,
        queue=FLIGHTS,
        propertiesSchema="scheduled BIGINT, carrier STRING, status STRING, dep_delay INT",
        maxMessagesPerTrigger="500",
        checkpointLocation=checkpoint,
    )
    at = F.timestamp_millis("properties.scheduled").alias("scheduled")
    return source.load().select(at, "properties.carrier", "properties.status", "properties.dep_delay")


def totals(flights: DataFrame, airlines: DataFrame) -> DataFrame:
    """The flights of each airline in each hour, as messages."""
    hours = (
        flights.withWatermark("scheduled", LATENESS)
        .groupBy(F.window("scheduled", "1 hour"), "carrier")
        .agg(
            F.count("*").alias("flights"),
            F.count_if(F.expr(LATE)).alias("late"),
            F.count_if(F.expr("status = 'cancelled'")).alias("cancelled"),
        )
    )
    # A left join keeps a flight even if its airline is missing from the table.
    named = hours.join(airlines, "carrier", "left").withColumn("hour", F.expr("window.start"))
    text = F.to_json(F.struct("hour", "carrier", "airline", "flights", "late", "cancelled"))
    return named.select(text.alias("value"), "carrier", "flights", "late")


class Progress(StreamingQueryListener):
    """Reports every batch."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        print('{"started": true}', flush=True)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        dropped = sum(state.numRowsDroppedByWatermark for state in progress.stateOperators)
        said = {"batch": progress.batchId, "rows": progress.numInputRows, "too late": dropped}
        print(json.dumps(said), flush=True)

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description="Totals of departures, by hour and airline.")
    parser.add_argument("--broker", default=os.environ.get("BMQ_BROKER_URI", "tcp://localhost:30114"))
    parser.add_argument("--folder", required=True, help="folder of the checkpoint")
    options = parser.parse_args()

    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    spark = start_spark()
    spark.streams.addListener(Progress())
    checkpoint = f"{options.folder}/checkpoint"
    airlines = spark.read.csv(str(AIRLINES), header=True).select("carrier", "airline").distinct()
    query = (
        totals(departures(spark, options.broker, checkpoint), airlines)
        .writeStream.format("bmq")
        .options(broker=options.broker, queue=TOTALS, propertyColumns="carrier,flights,late")
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="1 second")
        .start()
    )
    while not told and not query.awaitTermination(1):
        pass
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
