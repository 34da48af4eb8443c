# SPDX-License-Identifier: Apache-2.0
"""A streaming query that stops in the middle of its second batch, where it is killed."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame

from tests.spark.conftest import start_spark


def main(broker: str, queue: str, folder: Path) -> None:
    spark = start_spark("local[1]")
    checkpoint = str(folder / "checkpoint")

    def process(frame: DataFrame, batch: int) -> None:
        frame.count()
        if batch == 1:
            print("in the middle of batch 1", flush=True)
            signal.pause()

    options = {"broker": broker, "queue": queue, "checkpointLocation": checkpoint}
    reader = spark.readStream.format("bmq").options(maxMessagesPerTrigger="40", **options)
    writer = reader.load().writeStream.foreachBatch(process).option("checkpointLocation", checkpoint)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
