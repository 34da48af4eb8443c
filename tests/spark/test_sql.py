# SPDX-License-Identifier: Apache-2.0
"""The statements in docs/data/spark.md run in their order on the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def statements(heading: str, broker: BrokerThread) -> list[str]:
    """The statements below a heading."""
    text = pages.section(PAGE, "spark-sql").split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"^```sql\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    code = "\n".join(blocks).replace("tcp://localhost:30114", broker.uri)
    return [each.strip() for each in code.split(";\n") if each.strip()]


def run(spark: SparkSession, broker: BrokerThread, heading: str) -> list[list[Row]]:
    return [spark.sql(each).collect() for each in statements(heading, broker)]


@pytest.fixture(scope="module")
def catalog(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, and a catalog without persistent storage."""
    yield spark
    for table in ("shop_orders", "shop_queue"):
        spark.sql(f"DROP TABLE IF EXISTS {table}")


def test_the_statements_of_the_page_run(catalog: SparkSession, broker: BrokerThread) -> None:
    empty = run(catalog, broker, "Read")
    assert empty[-1] == []
    run(catalog, broker, "Write")
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
    found = run(catalog, broker, "Tables in the catalog")[-1]
    (message,) = broker.drain(f"bmq://{DOMAIN}/sql-shop", expect=1)
    assert (message.data, dict(message.properties)) == (b"fifth", {"CustomerId": 5})
    assert [row.guid for row in found] == [message.guid]
    from_python(catalog, broker)
    assert len(broker.drain(ORDERS, expect=6)) == 6, "no SELECT has removed a message"
    refused(catalog, broker)


def from_python(spark: SparkSession, broker: BrokerThread) -> None:
    """What the table of the page says of calls."""
    frame = spark.sql("SELECT 'sixth' AS value, 6L AS CustomerId, 'SLOW' AS OrderType")
    frame.writeTo("new_orders").append()
    frame.withColumn("value", frame.OrderType).write.insertInto("new_orders")
    shop = frame.drop("OrderType").writeTo("shop_orders").option("propertyColumns", "CustomerId")
    shop.option("broker", broker.uri).option("queue", f"bmq://{DOMAIN}/sql-shop").append()
    options = {"broker": broker.uri, "queue": f"bmq://{DOMAIN}/sql-shop", "confirm": "never"}
    assert spark.read.options(**options).table("shop_queue").count() == 1
    assert spark.table("orders").count() == 4, "what the view has read"


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
            "unknown option subscribe; options: broker, ",
        ),
        ("INSERT INTO orders (value) VALUES (CAST('x' AS BINARY))", "option of spark.read"),
    ):
        with pytest.raises(Exception, match=f"(?s){text}"):
            spark.sql(statement).collect()


def test_a_load_fails_before_any_action_and_a_stream_shows_the_reason_last(
    spark: SparkSession, broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    for start in (lambda: spark.read, lambda: spark.readStream):
        with pytest.raises(Exception, match="unknown option startingoffsets; options: broker, "):
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
