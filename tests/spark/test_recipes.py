# SPDX-License-Identifier: Apache-2.0
"""The programs of the pages on Spark run with another address and folder, and no other change."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import Row, SparkSession

import bmq
from tests import pages
from tests.spark.bench import DOMAIN, BrokerThread, Stage

PAGE = Path(__file__).parents[2] / "docs" / "data" / "spark-recipes.md"
ORDERS = [(1, "EXPRESS", 990), (2, "SLOW", 100)]

#: What protoc makes of the message, made without protoc.
ORDERS_PB2 = """
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
order = file.message_type.add(name="Order")
for number, (name, kind) in enumerate([("customer", 3), ("kind", 9), ("cents", 5)], 1):
    order.field.add(name=name, number=number, type=kind, label=1)
pool = descriptor_pool.DescriptorPool()
pool.Add(file)
Order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
"""


def shown(heading: str) -> str:
    """The program below a heading."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(code)


def placed(code: str, broker: BrokerThread, folder: Path) -> str:
    """The program with the address of the broker, and with a folder that exists."""
    assert pages.SHOWN_BROKER in code
    return pages.at_broker(code, broker.uri).replace("/data/", f"{folder}/")


def program(heading: str, broker: BrokerThread, folder: Path) -> str:
    return placed(shown(heading), broker, folder)


def with_functions(heading: str, suffix: str) -> str:
    """The program for JSON with the functions of another format."""
    code = shown("JSON").replace("orders-json", f"orders-{suffix}")
    for before, after in (
        ('F.to_json(F.struct("*"))', f'to_{suffix}(F.struct("*"))'),
        ('F.from_json(F.col("value").cast("string"), SCHEMA)', f'from_{suffix}("value")'),
    ):
        assert code.count(before) == 1
        code = code.replace(before, after)
    return f"{shown(heading)}\n{code}"


def with_store(heading: str, name: str) -> str:
    """The program for files with the function ``store`` of another section."""
    before, query = re.split(r"^def store.*?\n\n\n", shown(FILES), flags=re.MULTILINE | re.DOTALL)
    query = query.replace("priority/payments", f"priority/{name}")
    return before + shown(heading) + query.partition("payments = ")[0]


def run(code: str, spark: SparkSession) -> dict[str, Any]:
    names: dict[str, Any] = {"spark": spark, "__name__": "__main__"}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


@pytest.mark.parametrize("heading", ["JSON", "Avro", "Protocol Buffers"])
def test_recipes_write_and_read_each_format(heading: str, spark: SparkSession, stage: Stage) -> None:
    (stage.folder / "orders_pb2.py").write_text(ORDERS_PB2)
    suffix = {"Avro": "avro", "Protocol Buffers": "protobuf"}.get(heading)
    code = with_functions(heading, suffix) if suffix else shown(heading)
    found = run(placed(code, stage.broker, stage.folder), spark)["back"]
    assert sorted(map(tuple, found.collect())) == ORDERS


def test_the_recipe_of_event_time_runs(spark: SparkSession, broker: BrokerThread, tmp_path: Path) -> None:
    minute = 60_000
    expected = [(0, 305), (5, 105), (10, 111)]
    for times, closed in (([0, 1, 4, 5, 11, 26], expected), ([2, 50], [*expected, (25, 126)])):
        sales = [bmq.PutMessage(b"-", {"OrderedAt": at * minute, "Cents": 100 + at}) for at in times]
        broker.post("bmq://bmq.test.mem.priority/sales", sales)
        run(program("Event time, windows", broker, tmp_path), spark)
        rows = spark.read.parquet(f"{tmp_path}/takings").selectExpr("unix_millis(window.start) at", "cents")
        assert sorted((row.at // minute, row.cents) for row in rows.collect()) == closed


def test_the_recipe_of_dead_letters_runs(spark: SparkSession, broker: BrokerThread, tmp_path: Path) -> None:
    domain = "bmq://bmq.test.mem.priority"
    good, bad = [b'{"id": %d, "cents": 5}' % at for at in range(3)], [b"{", b"no JSON"]
    broker.post(f"{domain}/raw", [bmq.PutMessage(each, {"n": 1}) for each in good + bad])
    run(program("From queue to queue, with dead letters", broker, tmp_path), spark)
    for name, expected in (("parsed", good), ("unparsable", bad)):
        got = broker.drain(f"{domain}/{name}", expect=len(expected))
        assert sorted(message.data for message in got) == sorted(expected)
        assert all(message.properties == {"n": 1} for message in got)


FILES = "Into files, each message once"
LOST = {
    FILES: "payments",
    "Into a database, keyed on the GUID": "payments-database",
    "Into a database with JDBC, keyed on the GUID": "payments-jdbc",
    "Into Delta Lake, keyed on the GUID": "payments-delta",
}


@pytest.mark.parametrize("heading", LOST)
def test_a_repeated_batch_and_a_lost_checkpoint_cost_no_message(
    heading: str, spark: SparkSession, broker: BrokerThread, tmp_path: Path
) -> None:
    """The new query begins with batch 0 again; the messages of the old batch 0 are gone from the queue."""
    name = LOST[heading]
    queue, count = f"bmq://bmq.test.mem.priority/{name}", 25
    jvm: Any = spark.sparkContext._jvm
    jvm.java.lang.System.setProperty("derby.stream.error.file", f"{tmp_path}/derby.log")
    shown_code = shown(heading) if heading == FILES else with_store(heading, name)
    code = placed(shown_code, broker, tmp_path)
    if name == "payments-jdbc":
        url = f"jdbc:derby:{tmp_path}/payments-jdbc;create=true"
        connection = jvm.java.sql.DriverManager.getConnection(url)
        columns = "guid VARCHAR(32) PRIMARY KEY, payment VARCHAR(1000)"
        connection.createStatement().execute(f"CREATE TABLE payments ({columns})")
        connection.close()

    def stored() -> list[int]:
        if name == "payments":
            rows = names["payments"].dropDuplicates(["guid"]).collect()
            return [int(row.payment) for row in rows]
        if name == "payments-jdbc":
            return [int(row.PAYMENT) for row in spark.read.jdbc(names["URL"], "payments").collect()]
        if name == "payments-delta":
            table = names["DeltaTable"](names["TABLE"]).to_pyarrow_table()
            return [int(payment) for payment in table["payment"].to_pylist()]
        with sqlite3.connect(tmp_path / "payments.db") as database:
            return [int(payment) for (payment,) in database.execute("SELECT payment FROM payments")]

    broker.post(queue, [b"%d" % number for number in range(count)])
    names = run(code, spark)
    assert sorted(stored()) == list(range(count))
    shutil.rmtree(tmp_path / "checkpoints")
    broker.post(queue, [b"%d" % number for number in range(count, 2 * count)])
    names = run(code, spark)
    assert sorted(stored()) == list(range(2 * count))
    if name != "payments":
        again = spark.createDataFrame([("0" * 32, "50")], "guid STRING, payment STRING")
        for _ in range(2):  # as Spark does when it crashed before it knew that the batch was stored
            names["store"](again, 0)
        assert sorted(stored()) == list(range(2 * count + 1))


# Spark Connect, in a separate process with a separate server


LOCAL = "127.0.0.1"
#: A server that starts as the client does, and listens to nobody else.
SERVER = f"""SparkSession.builder.remote("local[2]").config(
    map={{"spark.ui.enabled": "false", "spark.driver.host": "{LOCAL}", "spark.driver.bindAddress": "{LOCAL}"}}
)"""
#: What is not there says so.
MORE = """
import bmq
from bmq.spark import summary_accumulator
try:
    summary_accumulator(spark)
except bmq.UsageError as error:
    print("refused:", error)
spark.stop()
"""


@pytest.mark.timeout(900)
def test_the_recipe_of_spark_connect_runs(broker: BrokerThread, tmp_path: Path) -> None:
    code = program("Spark Connect", broker, tmp_path)
    assert code.count('SparkSession.builder.remote("sc://localhost")') == 1
    code = code.replace('SparkSession.builder.remote("sc://localhost")', SERVER) + MORE
    if pyspark.__version__.startswith("4.0."):  # it refuses to register a format that it has found by itself
        code = code.replace("spark.dataSource.register(BmqDataSource)\n", "")
    # conftest.py has set PYTHONPATH and PYSPARK_PYTHON.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    (tmp_path / "recipe.py").write_text(code)
    command = [sys.executable, str(tmp_path / "recipe.py")]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    assert "100 rows, 100 acknowledged in " in run.stdout
    # Three times 100 orders, of which each customer had three.
    assert re.search(rf"\| +300\| +{3 * sum(range(100))}\|", run.stdout)
    assert "refused: Spark Connect has no accumulators: bmq.spark.write(df, ...) returns" in run.stdout


# Spark SQL


SQL_PAGE = Path(__file__).parents[2] / "docs" / "data" / "spark.md"
SQL_ORDERS = f"bmq://{DOMAIN}/sql-orders"
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


def blocks() -> list[str]:
    """The blocks of statements on the page: views, and tables."""
    return re.findall(r"^```sql\n(.*?)^```$", pages.section(SQL_PAGE, "spark-sql"), re.MULTILINE | re.DOTALL)


def execute(spark: SparkSession, broker: BrokerThread, code: str) -> list[list[Row]]:
    each = [each.strip() for each in pages.at_broker(code, broker.uri).split(";\n")]
    return [spark.sql(statement).collect() for statement in each if statement]


@pytest.fixture(scope="module")
def catalog(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, and a catalog without persistent storage."""
    yield spark
    for table in ("shop_orders", "shop_queue"):
        spark.sql(f"DROP TABLE IF EXISTS {table}")


def test_the_statements_of_the_page_run(catalog: SparkSession, broker: BrokerThread) -> None:
    views, tables = blocks()
    assert execute(catalog, broker, views)[1] == []
    execute(catalog, broker, COPIES)
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
    found = execute(catalog, broker, tables + TABLES)[-1]
    (message,) = broker.drain(f"bmq://{DOMAIN}/sql-shop", expect=1)
    assert (message.data, dict(message.properties)) == (b"fifth", {"CustomerId": 5})
    assert [row.guid for row in found] == [message.guid]
    from_python(catalog, broker)
    assert len(broker.drain(SQL_ORDERS, expect=6)) == 6, "no SELECT has removed a message"
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
    options = f"OPTIONS (broker '{broker.uri}', queue '{SQL_ORDERS}')"
    for statement, text in (
        (f"CREATE TABLE lost USING bmq {options}", "does not pass the options of CREATE TABLE to sources in"),
        ("SELECT * FROM shop_queue", "option queue is missing.*CREATE TEMPORARY VIEW"),
        ("INSERT INTO shop_orders VALUES ('x', 1)", "no target.*CREATE TEMPORARY VIEW"),
        ("INSERT OVERWRITE new_orders VALUES ('x', 1, 'y')", "a queue cannot be overwritten"),
        ("CREATE TEMPORARY VIEW bad USING bmq OPTIONS (qqueue 'x')", r"did you mean queue\?"),
        ("CREATE TEMPORARY VIEW bad USING bmq OPTIONS (subscribe 'x')", "expression selects"),
        ("INSERT INTO orders SELECT * FROM orders", "option of spark.read"),
    ):
        with pytest.raises(Exception, match=f"(?s){text}"):
            spark.sql(statement).collect()


def test_a_stream_shows_the_reason_of_its_failure_last(spark: SparkSession, stage: Stage) -> None:
    stream = spark.readStream.format("bmq").options(**stage.target).load()
    writer: Any = stream.writeStream.format("noop").option("checkpointLocation", str(stage.folder))
    with pytest.raises(Exception, match="checkpointLocation is missing") as info:
        writer.trigger(availableNow=True).start().awaitTermination(60)
    errors = re.findall(r"^\w[\w.]*(?:Error|Exception)\b", str(info.value), re.MULTILINE)
    assert errors[-1].endswith("UsageError"), errors
    with pytest.raises(Exception, match="bmq does not support continuous processing"):
        writer.trigger(continuous="1 second").start().awaitTermination(60)
