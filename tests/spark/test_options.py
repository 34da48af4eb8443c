# SPDX-License-Identifier: Apache-2.0
"""Wrong options are refused early, with the probable intention."""

from __future__ import annotations

import pytest
from pyspark.sql import Row
from pyspark.sql.types import StringType, StructField, StructType

import bmq
from bmq.spark import BmqDataSource, write_partition
from bmq.spark.connection import ConnectionOptions, run, shutdown
from bmq.spark.options import ReadOptions, WriteOptions, parse
from tests.spark.brokers import BrokerThread

QUEUE = {"queue": "bmq://bmq.test.mem.priority/q"}
VALUE = StructType([StructField("value", StringType())])


def source(**options: str) -> BmqDataSource:
    """A source as Spark makes it: the names of options in lower case."""
    return BmqDataSource({name.lower(): value for name, value in options.items()})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"brokr": "tcp://localhost"}, r"unknown option brokr; did you mean broker\?; options: broker"),
        ({"maxMesages": "1"}, "did you mean maxMessages"),
        ({"xyz": "1"}, "unknown option xyz; options: broker"),
        ({"kafka.bootstrap.servers": "h"}, "the address of the broker is the option broker"),
        ({"kafka.session.timeout.ms": "1"}, "bmq.NAME is a field of bmq.SessionOptions"),
        ({"endingOffsets": "latest"}, "a queue has no offsets"),
        ({"groupIdPrefix": "a", "topic": "t"}, "groupidprefix: the readers.*; topic: the option queue names"),
        (
            {"writeName": "1", "maxMessages": "1"},
            r"maxMessages \(spark.read and spark.readStream\), writeName \(writing\)",
        ),
        ({"broker": ""}, "address"),
        ({"expression": "x >"}, "x >"),
        ({"maxMessages": "none"}, "option maxMessages='none'"),
        ({"user": "u", "credentials": "a:b"}, "credentials supplies user, password and mechanism"),
    ],
)
def test_a_load_refuses_wrong_options_at_once(options: dict[str, str], text: str) -> None:
    with pytest.raises(bmq.UsageError, match=text):
        source(**QUEUE, **options).schema()


def test_a_load_without_a_queue_is_refused_at_once() -> None:
    for options in ({}, {"broker": "tcp://localhost"}, {"maxMessages": "1"}):
        with pytest.raises(bmq.UsageError, match="option queue is missing"):
            source(**options).schema()
    with pytest.raises(bmq.InvalidURI, match='must start with "bmq://"'):
        source(queue="orders").schema()


def test_a_queue_is_named_once() -> None:
    with pytest.raises(bmq.UsageError, match="option queue names bmq://d/q more than once"):
        source(queue="bmq://d/q, bmq://d/q").schema()


def test_options_of_one_direction_pass_together() -> None:
    assert "value BINARY" in source(**QUEUE).schema()
    assert "value BINARY" in source(**QUEUE, checkpointLocation="/x", logPath="/y").schema()
    assert "value BINARY" in source(**QUEUE, writeName="j", propertyColumns="n").schema()


@pytest.mark.parametrize(
    ("kind", "key", "text"),
    [
        (WriteOptions, "maxmessages", "maxmessages is an option of spark.read and spark.readStream"),
        (ReadOptions, "writename", "writename is an option of writing"),
        (ReadOptions, "logpath", "logpath is an option of spark.readStream"),
    ],
)
def test_an_option_of_the_other_direction_is_named(
    kind: type[ConnectionOptions], key: str, text: str
) -> None:
    with pytest.raises(bmq.UsageError, match=text):
        parse(kind, {key: "1"})


def test_refused_stream_raises_in_each_call_but_the_last() -> None:
    """Spark always stops a reader at the end: an error there would hide the reason."""
    reader = source(**QUEUE).streamReader(VALUE)
    for call in (
        reader.initialOffset,
        lambda: reader.latestOffset({}, None),  # type: ignore[call-arg]
        lambda: reader.partitions({}, {}),
        lambda: reader.commit({}),
        lambda: reader.read(None),  # type: ignore[arg-type]
        reader.getDefaultReadLimit,  # type: ignore[attr-defined]
    ):
        with pytest.raises(bmq.UsageError, match="checkpointLocation is missing"):
            call()
    reader.stop()


def test_options_of_the_session_pass_through(caplog: pytest.LogCaptureFixture) -> None:
    """As ``kafka.`` does with Kafka's source: any field of SessionOptions, in the user's spelling."""
    caplog.set_level("INFO")
    with BrokerThread() as broker:
        given = {"broker": broker.uri, "bmq.process_name": "nightly", "bmq.maxUnackedMessages": "5"}
        session = run(parse(WriteOptions, {**QUEUE, **given}).open())
        run(session.close())
        write = write_partition(broker=broker.uri, **QUEUE, session={"process_name": "foreach"})
        write(iter([Row(value="x")]))
        shutdown()
    assert "process_name='nightly'" in caplog.text
    assert "process_name='foreach'" in caplog.text


@pytest.mark.parametrize(
    ("key", "text", "error"),
    [
        ("bmq.livenes", "5", "unknown option bmq.livenes; bmq.NAME is a field of bmq.SessionOptions"),
        ("bmq.reconnect_delays", "5", "unknown option bmq.reconnect_delays"),
        ("bmq.connectTimeout", "5", "unknown option bmq.connecttimeout"),
        ("bmq.liveness", "soon", "option bmq.liveness='soon'"),
        ("bmq.liveness", "-1", "liveness"),
    ],
)
def test_wrong_options_of_the_session_are_refused(key: str, text: str, error: str) -> None:
    with pytest.raises(bmq.UsageError, match=error):
        source(**QUEUE, **{key: text}).schema()


def test_properties_can_be_left_out() -> None:
    assert "properties" not in source(**QUEUE, includeProperties="false").schema()
    with pytest.raises(bmq.UsageError, match="includeProperties=false"):
        source(**QUEUE, includeProperties="false", propertiesSchema="a INT").schema()
