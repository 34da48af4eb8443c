# SPDX-License-Identifier: Apache-2.0
"""The programs in docs/data/spark-recipes.md run with another address and folder, and no other change."""

from __future__ import annotations

import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import bmq
from tests import pages
from tests.spark.brokers import BrokerThread

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

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


def post(broker: BrokerThread, queue: str, *messages: bmq.PutMessage) -> None:
    async def posted() -> None:
        async with bmq.connect(broker.uri) as session:
            opened = await session.open_queue(queue, write=True)
            await opened.post_many(messages)

    bmq.run(posted())


@pytest.mark.parametrize("heading", ["JSON", "Avro", "Protocol Buffers"])
def test_recipes_write_and_read_each_format(
    heading: str, spark: SparkSession, broker: BrokerThread, tmp_path: Path
) -> None:
    (tmp_path / "orders_pb2.py").write_text(ORDERS_PB2)
    suffix = {"Avro": "avro", "Protocol Buffers": "protobuf"}.get(heading)
    code = with_functions(heading, suffix) if suffix else shown(heading)
    found = run(placed(code, broker, tmp_path), spark)["back"]
    assert sorted(map(tuple, found.collect())) == ORDERS


def test_the_recipe_of_event_time_runs(spark: SparkSession, broker: BrokerThread, tmp_path: Path) -> None:
    minute = 60_000
    expected = [(0, 305), (5, 105), (10, 111)]
    for times, closed in (([0, 1, 4, 5, 11, 26], expected), ([2, 50], [*expected, (25, 126)])):
        post(
            broker,
            "bmq://bmq.test.mem.priority/sales",
            *(bmq.PutMessage(b"-", properties={"OrderedAt": at * minute, "Cents": 100 + at}) for at in times),
        )
        run(program("Event time, windows", broker, tmp_path), spark)
        rows = spark.read.parquet(f"{tmp_path}/takings").selectExpr("unix_millis(window.start) at", "cents")
        assert sorted((row.at // minute, row.cents) for row in rows.collect()) == closed


def test_the_recipe_of_dead_letters_runs(spark: SparkSession, broker: BrokerThread, tmp_path: Path) -> None:
    domain = "bmq://bmq.test.mem.priority"
    good, bad = [b'{"id": %d, "cents": 5}' % at for at in range(3)], [b"{", b"no JSON"]
    post(broker, f"{domain}/raw", *(bmq.PutMessage(each, properties={"n": 1}) for each in good + bad))
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
        connection = jvm.java.sql.DriverManager.getConnection(
            f"jdbc:derby:{tmp_path}/payments-jdbc;create=true"
        )
        connection.createStatement().execute(
            "CREATE TABLE payments (guid VARCHAR(32) PRIMARY KEY, payment VARCHAR(1000))"
        )
        connection.close()

    def stored() -> list[int]:
        if name == "payments":
            rows = names["payments"].dropDuplicates(["guid"]).collect()
            return [int(row.payment) for row in rows]
        if name == "payments-jdbc":
            return [int(row.PAYMENT) for row in spark.read.jdbc(names["URL"], "payments").collect()]
        if name == "payments-delta":
            return list(
                map(int, names["DeltaTable"](names["TABLE"]).to_pyarrow_table()["payment"].to_pylist())
            )
        with sqlite3.connect(tmp_path / "payments.db") as database:
            return [int(payment) for (payment,) in database.execute("SELECT payment FROM payments")]

    post(broker, queue, *(bmq.PutMessage(b"%d" % number) for number in range(count)))
    names = run(code, spark)
    assert sorted(stored()) == list(range(count))
    shutil.rmtree(tmp_path / "checkpoints")
    post(broker, queue, *(bmq.PutMessage(b"%d" % number) for number in range(count, 2 * count)))
    names = run(code, spark)
    assert sorted(stored()) == list(range(2 * count))
    if name != "payments":
        again = spark.createDataFrame([("0" * 32, "50")], "guid STRING, payment STRING")
        for _ in range(2):  # as Spark does when it crashed before it knew that the batch was stored
            names["store"](again, 0)
        assert sorted(stored()) == list(range(2 * count + 1))
