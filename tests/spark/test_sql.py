# SPDX-License-Identifier: Apache-2.0
"""The statements in docs/data/spark.md run in their order on the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import Row, SparkSession

from tests import pages
from tests.spark.brokers import DOMAIN, BrokerThread

pytestmark = [
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.timeout(400),
]

PAGE = Path(__file__).parents[2] / "docs" / "data" / "spark.md"
ORDERS = f"bmq://{DOMAIN}/sql-orders"
ALL = [b"first", b"fourth", b"second", b"third"]


#: Further ways to use the views and tables of the page.
COPIES = """
INSERT INTO new_orders (CustomerId, OrderType, value) VALUES (3, NULL, 'third');
INSERT INTO new_orders BY NAME SELECT NULL AS OrderType, 4 AS CustomerId, 'fourth' AS value;
CREATE OR REPLACE TEMPORARY VIEW orders USING bmq OPTIONS (
  broker 'tcp://localhost:30114',
  queue 'bmq://bmq.test.mem.priority/sql-orders',
  propertiesSchema 'CustomerId BIGINT, OrderType STRING',
  confirm 'never'
);
CREATE TEMPORARY VIEW archive (
  guid STRING, value BINARY, properties STRUCT<CustomerId: BIGINT, OrderType: STRING>
) USING bmq OPTIONS (
  broker 'tcp://localhost:30114',
  queue 'bmq://bmq.test.mem.priority/sql-archive',
  guidColumn 'guid'
);
INSERT INTO archive SELECT guid, value, properties FROM orders;
INSERT INTO archive SELECT guid, value, properties FROM orders;
"""
TABLES = """
CREATE TABLE shop_queue USING bmq;
SELECT guid FROM shop_queue WITH (
  'broker' = 'tcp://localhost:30114',
  'queue' = 'bmq://bmq.test.mem.priority/sql-shop',
  'confirm' = 'never'
);
"""


def shown() -> list[str]:
    """The blocks of statements on the page: views, and tables."""
    return re.findall(r"^```sql\n(.*?)^```$", pages.section(PAGE, "spark-sql"), re.MULTILINE | re.DOTALL)


def run(spark: SparkSession, broker: BrokerThread, code: str) -> list[list[Row]]:
    each = [each.strip() for each in pages.at_broker(code, broker.uri).split(";\n")]
    return [spark.sql(statement).collect() for statement in each if statement]


@pytest.fixture(scope="module")
def catalog(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, and a catalog without persistent storage."""
    yield spark
    for table in ("shop_orders", "shop_queue"):
        spark.sql(f"DROP TABLE IF EXISTS {table}")


def test_the_statements_of_the_page_run(catalog: SparkSession, broker: BrokerThread) -> None:
    views, tables = shown()
    assert run(catalog, broker, views)[1] == []
    run(catalog, broker, COPIES)
    view = catalog.sql("SELECT value, properties.CustomerId AS who FROM orders")
    assert sorted(tuple(row) for row in view.collect()) == [
        (b"first", 1),
        (b"fourth", 4),
        (b"second", 2),
        (b"third", 3),
    ]
    copies = broker.drain(f"bmq://{DOMAIN}/sql-archive", expect=4)
    assert sorted(m.data for m in copies) == ALL, "the second copy adds nothing"
    assert sorted(m.properties["CustomerId"] for m in copies) == [1, 2, 3, 4]
    found = run(catalog, broker, tables + TABLES)[-1]
    (message,) = broker.drain(f"bmq://{DOMAIN}/sql-shop", expect=1)
    assert (message.data, dict(message.properties)) == (b"fifth", {"CustomerId": 5})
    assert [row.guid for row in found] == [message.guid]
    from_python(catalog, broker)
    assert len(broker.drain(ORDERS, expect=6)) == 6, "no SELECT has removed a message"
    refused(catalog, broker)


def from_python(spark: SparkSession, broker: BrokerThread) -> None:
    """Views and tables are usable from Python, with the options of each call."""
    frame = spark.sql("SELECT 'sixth' AS value, 6L AS CustomerId, 'SLOW' AS OrderType")
    frame.writeTo("new_orders").append()
    frame.withColumn("value", frame.OrderType).write.insertInto("new_orders")
    shop = frame.drop("OrderType").writeTo("shop_orders").option("propertyColumns", "CustomerId")
    shop.option("broker", broker.uri).option("queue", f"bmq://{DOMAIN}/sql-shop").append()
    options = {"broker": broker.uri, "queue": f"bmq://{DOMAIN}/sql-shop", "confirm": "never"}
    assert spark.read.options(**options).table("shop_queue").count() == 1
    read_again = pyspark.__version__.startswith("4.0.")  # each use of a view plans its read again
    assert spark.table("orders").count() == (6 if read_again else 4), "what the view has read"


def refused(spark: SparkSession, broker: BrokerThread) -> None:
    options = f"OPTIONS (broker '{broker.uri}', queue '{ORDERS}')"
    for statement, text in (
        (
            f"CREATE TABLE lost USING bmq {options}",
            "does not pass the options of CREATE TABLE to sources in Python",
        ),
        ("SELECT * FROM shop_queue", "option queue is missing.*CREATE TEMPORARY VIEW"),
        ("INSERT INTO shop_orders VALUES ('x', 1)", "no target.*CREATE TEMPORARY VIEW"),
        ("INSERT OVERWRITE new_orders VALUES ('x', 1, 'y')", "a queue cannot be overwritten"),
        ("CREATE TEMPORARY VIEW bad USING bmq OPTIONS (qqueue 'x')", r"did you mean queue\?"),
        (
            "CREATE TEMPORARY VIEW bad USING bmq OPTIONS (subscribe 'x')",
            "unknown option subscribe; the option queue names queues, and the option expression selects",
        ),
        ("INSERT INTO orders SELECT * FROM orders", "option of spark.read"),
    ):
        with pytest.raises(Exception, match=f"(?s){text}"):
            spark.sql(statement).collect()


def test_a_load_fails_before_any_action_and_a_stream_shows_the_reason_last(
    spark: SparkSession, broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    for start in (lambda: spark.read, lambda: spark.readStream):
        with pytest.raises(Exception, match="unknown option startingoffsets; a queue has no offsets"):
            start().format("bmq").options(queue=queue, startingOffsets="earliest").load()
        with pytest.raises(Exception, match="it must start with"):
            start().format("bmq").options(queue="orders").load()
    stream = spark.readStream.format("bmq").options(broker=broker.uri, queue=queue).load()
    writer: Any = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match="checkpointLocation is missing") as info:
        writer.trigger(availableNow=True).start().awaitTermination(60)
    errors = re.findall(r"^\w[\w.]*(?:Error|Exception)\b", str(info.value), re.MULTILINE)
    assert errors[-1].endswith("UsageError"), errors
    with pytest.raises(Exception, match="bmq does not support continuous processing"):
        writer.trigger(continuous="1 second").start().awaitTermination(60)
