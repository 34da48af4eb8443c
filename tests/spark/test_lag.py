# SPDX-License-Identifier: Apache-2.0
"""The backlog in the broker, in the progress of streams, if pyspark supports it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceStreamReader
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

import bmq
from bmq.spark import BmqDataSource, QueryMetrics
from tests.spark.brokers import DOMAIN, BrokerThread
from tests.waiting import eventually

SCHEMA = StructType([StructField("value", BinaryType()), StructField("guid", StringType())])


def stream(**options: str) -> Any:
    return BmqDataSource(CaseInsensitiveDict(options)).streamReader(SCHEMA)


def test_pyspark_without_support_for_lag_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the first call of the reader, because Spark hides errors of methods that make readers."""
    monkeypatch.delattr(DataSourceStreamReader, "reportLatestOffset", raising=False)
    monkeypatch.setattr("pyspark.__version__", "4.1.1")
    with pytest.raises(bmq.UsageError, match=r"option lag needs pyspark 4\.2 or newer, and this is 4\.1\.1"):
        stream(queue=f"bmq://{DOMAIN}/q", logPath="x", lag="true").initialOffset()


if hasattr(DataSourceStreamReader, "reportLatestOffset"):  # pyspark 4.2 and later

    def test_progress_shows_the_brokers_backlog(broker: BrokerThread, queue: str, tmp_path: Path) -> None:
        fanout = f"bmq://bmq.test.mem.fanout/{queue.rpartition('/')[2]}"
        broker.post(queue, [b"x"] * 5)
        broker.post(fanout, [b"x"] * 3)
        queues = f"{queue},{fanout}?id=foo"
        reader = stream(broker=broker.uri, queue=queues, logPath=str(tmp_path), lag="true")
        assert reader.reportLatestOffset() is None  # nothing is asked for yet
        reader.latestOffset({"messages": 0})
        latest = reader.reportLatestOffset()
        assert latest["lag"] == {queue: 5, f"{fanout}?id=foo": 3}
        assert latest["messages"] <= 8
        reader.stop()

    def test_broker_without_lag_figures_does_not_stop_the_stream(
        broker: BrokerThread, queue: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        broker.post(queue, [b"x"])
        reader = stream(broker=broker.uri, queue=queue, logPath=str(tmp_path), lag="true")
        reader.latestOffset({"messages": 0})
        reader._settings = stream(broker="tcp://127.0.0.1:1", queue=queue, logPath="x")._settings
        for _ in range(2):
            assert reader.reportLatestOffset() == {"messages": 1}
        assert [message.partition(":")[0] for message in caplog.messages] == ["the progress has no lag"]
        reader.stop()

    @pytest.mark.timeout(400)
    @pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
    async def test_a_query_is_measured(
        spark: SparkSession, broker: BrokerThread, queue: str, tmp_path: Path
    ) -> None:
        broker.post(queue, [b"%d" % n for n in range(100)])
        metrics = QueryMetrics()
        spark.streams.addListener(metrics)
        options = {"broker": broker.uri, "queue": queue, "checkpointLocation": str(tmp_path / "checkpoint")}
        reader = spark.readStream.format("bmq").options(maxMessagesPerTrigger="60", lag="true", **options)
        sink = {
            "broker": broker.uri,
            "queue": f"{queue}-out",
            "checkpointLocation": str(tmp_path / "checkpoint"),
        }
        query = (
            reader.load()
            .select("value")
            .writeStream.format("bmq")
            .options(**sink)
            .queryName("copies")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        lags = [json.loads(each.sources[0].latestOffset)["lag"][queue] for each in query.recentProgress]
        assert max(lags) == 100
        await eventually(
            lambda: metrics.queries().get("copies") and not metrics.queries()["copies"].running, 30
        )
        spark.streams.removeListener(metrics)
        stats = metrics.queries()["copies"]
        assert (stats.input_rows, stats.output_rows, stats.failures) == (100, 100, 0)
        assert stats.batches == sum(stats.buckets) >= 2
        assert len(broker.drain(f"{queue}-out", expect=100)) == 100
