# SPDX-License-Identifier: Apache-2.0
"""The job on a local Spark, with an embedded broker. Spark needs Java 17 or newer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import bmq.blocking
import pytest
from bmq.testing import BackgroundBroker
from pyspark.sql import SparkSession

from bmq_new_module.job import ORDERS, TOTALS, start, start_spark, totals


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_spark()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    yield session
    session.stop()


def order(number: int) -> bytes:
    return json.dumps({"number": number, "customer": number % 3, "cents": 250, "quantity": number}).encode()


def test_a_total_is_the_price_of_all_pieces(spark: SparkSession) -> None:
    rows = [("4000000000003CA4F6B5B4C9F3B06D3F", order(4)), ("4000000000003CA4F6B5B4C9F3B06D40", b"no order")]
    (row,) = totals(spark.createDataFrame(rows, "guid STRING, value BINARY")).collect()
    assert row["guid"] == rows[0][0]
    assert row["CustomerId"] == 1
    assert json.loads(row["value"]) == {"number": 4, "customer": 1, "total": 1000}


def test_every_order_has_a_total_in_the_second_queue(
    spark: SparkSession, bmq_background_broker: BackgroundBroker, tmp_path: Path
) -> None:
    broker, numbers = bmq_background_broker.uri, range(1, 51)
    with bmq.blocking.connect(broker) as session:
        orders = session.open_queue(ORDERS, write=True)
        orders.post_many([order(number) for number in numbers]).raise_for_failures()
        start(spark, broker, str(tmp_path / "checkpoint"), once=True).awaitTermination()

        found = session.open_queue(TOTALS, read=True)
        seen: dict[int, int] = {}
        for _ in numbers:
            message = found.receive(timeout=60)
            value = json.loads(message.data)
            assert message.properties["CustomerId"] == value["customer"]
            assert value["number"] not in seen, "each order has one total"
            seen[value["number"]] = value["total"]
            message.confirm()
    assert seen == {number: 250 * number for number in numbers}
