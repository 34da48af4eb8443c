# SPDX-License-Identifier: Apache-2.0
"""Spark's source and poison messages: later messages arrive, and every message is a row or a dead letter.

With ``BMQ_POISONS=10000``, each read receives ten thousand messages of each poison.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

import bmq
from tests.poison.poisons import POISONS, flood
from tests.spark.brokers import BrokerThread

COUNT = int(os.environ.get("BMQ_POISONS", 5))
GOOD = b'{"amount": 1}'
#: Undecodable poisons; the other poisons are ordinary rows.
UNREADABLE = {"no zlib", "zlib cut off", "properties that cannot be decoded", "a property twice"}
BAD, FINE = len(UNREADABLE) * COUNT, (len(POISONS) - len(UNREADABLE)) * COUNT
#: Number of rows with a reason, and number of dead letters, for each policy.
POLICIES = {None: (BAD, 0), "row": (BAD, 0), "drop": (0, 0), "deadLetters": (0, BAD)}

pytestmark = pytest.mark.timeout(120 + COUNT / 10)


@pytest.fixture
def flooded(broker: BrokerThread, queue: str) -> str:
    """Return a queue with poison of all kinds in front of a valid message."""

    async def post() -> str:
        async with bmq.connect(broker.uri) as session:
            opened = await session.open_queue(queue, write=True)
            for poison in POISONS.values():
                await flood(opened, [poison] * COUNT)
            await opened.post(GOOD)
        return queue

    return broker.call(lambda _: post())


def options_of(broker: BrokerThread, queue: str, folder: Path, policy: str | None) -> dict[str, str]:
    options = {"broker": broker.uri, "queue": queue, "checkpointLocation": str(folder / "checkpoint")}
    if policy is not None:
        options["onInvalidMessage"] = policy
    if policy == "deadLetters":
        options["deadLetterQueue"] = f"{queue}-dead"
    return options


def batch(spark: SparkSession, options: dict[str, str]) -> Counter[tuple[bool, bool]]:
    # The read ends with the last message, not after a silence: a busy machine is silent at times.
    reader = spark.read.format("bmq").options(
        maxMessages=str(BAD + FINE + 1), idleTimeoutMs="60000", **options
    )
    counts = counted(reader.load())
    bmq.spark.confirm(options)
    return counts


def stream(spark: SparkSession, options: dict[str, str]) -> Counter[tuple[bool, bool]]:
    seen: Counter[tuple[bool, bool]] = Counter()

    def note(frame: DataFrame, number: int) -> None:
        seen.update(counted(frame))

    idle = {"pollTimeoutMs": "300", "lingerMs": "50"}
    writer = spark.readStream.format("bmq").options(**idle, **options).load().writeStream.foreachBatch(note)
    query = (
        writer.option("checkpointLocation", options["checkpointLocation"])
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        while not seen[True, False] and query.isActive:
            query.awaitTermination(1)
        query.processAllAvailable()
    finally:
        query.stop()
    return seen


def counted(frame: DataFrame) -> Counter[tuple[bool, bool]]:
    """Count the rows by two conditions: the row is the valid message, and the row has a reason."""
    rows: list[Row] = frame.selectExpr("value", "error IS NOT NULL AS bad").collect()
    return Counter((bytes(row.value) == GOOD, row.bad) for row in rows)


Read = Callable[[SparkSession, dict[str, str]], "Counter[tuple[bool, bool]]"]
both = pytest.mark.parametrize("read", [batch, stream])
#: One read for each policy; the default is "row".
READS = [
    (batch, None),
    (stream, "row"),
    *((read, p) for p in ("drop", "deadLetters") for read in (batch, stream)),
]


@pytest.mark.parametrize(("read", "policy"), READS)
def test_good_message_is_delivered_after_each_poison(
    spark: SparkSession, broker: BrokerThread, flooded: str, tmp_path: Path, read: Read, policy: str | None
) -> None:
    rows, letters = POLICIES[policy]
    options = options_of(broker, flooded, tmp_path, policy)
    assert +read(spark, options) == +Counter({(True, False): 1, (False, False): FINE, (False, True): rows})
    if letters:
        found = broker.drain(f"{flooded}-dead", expect=letters)
        assert len(found) == letters
        assert all(letter.properties["bmq_dead_error"] for letter in found)
    assert broker.drain(flooded) == []


@both
def test_failed_read_continues_with_another_policy(
    spark: SparkSession, broker: BrokerThread, flooded: str, tmp_path: Path, read: Read
) -> None:
    with pytest.raises(PySparkException, match=r"message [0-9A-F]{32} of .* cannot be decoded"):
        read(spark, options_of(broker, flooded, tmp_path, "fail"))
    seen = read(spark, options_of(broker, flooded, tmp_path, "drop"))
    assert seen == Counter({(True, False): 1, (False, False): FINE})
    assert broker.drain(flooded) == []
