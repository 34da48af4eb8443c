# SPDX-License-Identifier: Apache-2.0
"""Wrong options and columns are refused before the job, by name, with the probable intention."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Row, types

import bmq
from bmq.spark import write_partition
from bmq.spark.connection import run, shutdown
from bmq.spark.options import WriteOptions, parse
from tests.spark.bench import NOWHERE, WHOLE, BrokerThread, source, struct
from tests.sweeps import sweep

LONG, STRING, DOUBLE = types.LongType(), types.StringType(), types.DoubleType()
DEAD = {"deadLetterQueue": NOWHERE}


@sweep(
    "options, text",
    [
        ({"queue": ""}, "option queue is missing"),
        ({"queue": "orders"}, 'must start with "bmq://"'),
        ({"queue": "bmq://d/q, bmq://d/q"}, "option queue names bmq://d/q more than once"),
        ({"brokr": "tcp://localhost"}, "unknown option brokr; did you mean broker?; options: broker"),
        ({"maxMesages": "1"}, "did you mean maxMessages"),
        ({"kafka.bootstrap.servers": "h"}, "the address of the broker is the option broker"),
        ({"kafka.session.timeout.ms": "1"}, "bmq.NAME is a field of bmq.SessionOptions"),
        ({"startingOffsets": "earliest"}, "a queue has no offsets: a read has the messages"),
        ({"groupIdPrefix": "a", "topic": "t"}, "topic: the option queue names"),
        ({"writeName": "1", "maxMessages": "1"}, "maxMessages (spark.read and spark.readStream), writeName"),
        ({"broker": ""}, "address"),
        ({"expression": "x >"}, "x >"),
        ({"expression": "{'a': 1}"}, "must be a JSON object"),
        ({"maxMessages": "0"}, "`int` >= 1"),
        ({"confirm": "maybe"}, "must be one of explicit, onStore, never"),
        ({"confirm": "onStore"}, "needs option checkpointLocation"),
        ({"confirm": "never", "checkpointLocation": "x"}, "needs no checkpointLocation"),
        ({"includeProperties": "false", "propertiesSchema": "a INT"}, "includeProperties=false"),
        ({"onInvalidMessage": "ignore"}, "must be one of fail, drop, deadLetters, row, not 'ignore'"),
        ({"onInvalidMessage": "deadLetters"}, "needs option deadLetterQueue"),
        (DEAD, "needs onInvalidMessage=deadLetters"),
        ({"onInvalidMessage": "deadLetters", **DEAD}, "and therefore needs checkpointLocation"),
        ({"maxTriggerDelay": "soon"}, "a number with ms, s, m, h or d, such as 30s"),
        ({"maxBytesPerTrigger": "0"}, "at least 1"),
        ({"maxBytesPerTrigger": "many"}, "must be bytes, or a number with k, m or g, such as 64m"),
        ({"minMessagesPerTrigger": "7", "maxMessagesPerTrigger": "6"}, "no batch can reach this number"),
        ({"bmq.livenes": "5"}, "unknown option bmq.livenes; bmq.NAME is a field of bmq.SessionOptions"),
        ({"bmq.connectTimeout": "5"}, "unknown option bmq.connecttimeout"),
        ({"bmq.liveness": "soon"}, "option bmq.liveness='soon'"),
    ],
)
def test_a_load_refuses_wrong_options_at_once(options: dict[str, str], text: str) -> None:
    with pytest.raises(bmq.UsageError) as info:
        # As Spark passes them: the names of options in lower case.
        source(**{"queue": NOWHERE, **{name.lower(): value for name, value in options.items()}}).schema()
    assert text in str(info.value)


def test_a_load_accepts_options_of_either_direction() -> None:
    """A view of SQL may be for reading, or for INSERT alone."""
    for options in (
        {"checkpointLocation": "/x", "logPath": "/y"},
        {"writeName": "j", "propertyColumns": "n"},
    ):
        assert "properties MAP<STRING, STRING>" in source(queue=NOWHERE, **options).schema()
    assert "properties STRUCT<n BIGINT>" in source(queue=NOWHERE, propertiesSchema="n BIGINT").schema()
    assert "properties" not in source(queue=NOWHERE, includeProperties="false").schema()


@sweep(
    "columns, options, text",
    [
        ({}, {"queue": ""}, "name a queue"),
        ({}, {"queue": "http://x/y"}, "bmq://"),
        ({}, {"queue": "bmq://bmq.test.mem.fanout/q?id=foo"}, "names an application"),
        ({}, {"topic": "x"}, "unknown option topic; the option queue names the queue; options: broker"),
        ({}, {"maxMessages": "1"}, "maxmessages is an option of spark.read and spark.readStream"),
        ({}, {"maxRetries": "many"}, "option maxRetries='many'"),
        ({}, {"ackTimeoutMs": "-1"}, "ackTimeoutMs='-1': must not be negative"),
        ({}, {"compression": "brotli"}, "compression must be one of none, zlib, not 'brotli'"),
        ({}, {"rate": "0"}, "rate"),
        # identities
        ({}, {"guidMode": "position"}, "guidMode must be one of content, id, random, source, not 'position'"),
        ({}, {"guidMode": "id"}, "guidMode=id needs idColumn"),
        ({}, {"guidMode": "source"}, "guidMode=source needs guidColumn"),
        ({}, {"guidColumn": "origin"}, "no column 'origin'"),
        ({"guid": LONG}, {"guidColumn": "guid"}, "column 'guid' is of type bigint; the GUID of"),
        ({"key": DOUBLE}, {"idColumn": "key"}, "column 'key' is of type double; an id must be"),
        # columns without a role
        ({"n": LONG}, {}, "column 'n' cannot be written to a queue; possible columns: 'value'"),
        ({"id": STRING}, {}, "column 'id' cannot be written to a queue"),
        ({"guid": STRING}, {}, "column 'guid' cannot be written to a queue"),
        ({"subscription": STRING}, {}, "column 'subscription' cannot be written"),
        # columns that are missing, or have another type
        ({"other": LONG}, {"propertyColumns": "p"}, "no column 'p'; the DataFrame has: value, other"),
        ({"id": STRING, "ID": STRING}, {"propertyColumns": "id,Id"}, "no column 'Id'"),
        ({}, {"valueColumn": "body"}, "no column 'body'"),
        ({"n": LONG}, {"valueColumn": "n", "propertyColumns": "value"}, "column 'n' is of type bigint"),
        ({}, {"keyColumn": "k"}, "no column 'k'"),
        ({"k": DOUBLE}, {"keyColumn": "k"}, "column 'k' is of type double; a key must be string, binary"),
        ({"at": STRING}, {"notBeforeColumn": "at"}, "'at' is of type string; a due time must be a timestamp"),
        ({"bmq_bucket": LONG}, {"keyColumn": "value", "propertyColumns": "bmq_bucket"}, "bmq_bucket: both a"),
        # dead letters
        ({}, {"onInvalidRow": "skip"}, "onInvalidRow must be one of fail, drop, deadLetters, not 'skip'"),
        ({}, {"onInvalidRow": "deadLetters"}, "dead letters need both"),
        ({}, DEAD, "dead letters need both"),
        ({}, {"onInvalidRow": "deadLetters", "deadLetterQueue": "dead"}, "bmq://"),
        # credentials
        ({}, {"password": "a", "passwordEnv": "B"}, "password and passwordEnv exclude each other: give one"),
        ({}, {"credentials": "a:b", "user": "c"}, "credentials supplies user, password and mechanism"),
        ({}, {"credentials": "a.b"}, "credentials must be MODULE:NAME, not 'a.b'"),
        ({}, {"tlsKeyFile": "k"}, "tlsKeyFile is the key of tlsCertFile, which is missing"),
    ],
)
def test_a_write_refuses_wrong_options_and_columns(
    columns: dict[str, types.DataType], options: dict[str, str], text: str
) -> None:
    with pytest.raises(bmq.UsageError) as info:
        source(**{"queue": NOWHERE, **options}).writer(struct(value=STRING, **columns), False)
    assert text in str(info.value)


@sweep(
    "kind, text",
    [
        (DOUBLE, "column 'p' is of type double"),
        (types.DecimalType(10, 2), "column 'p' is of type decimal(10,2)"),
        (types.TimestampType(), "column 'p' is of type timestamp"),
        (types.ArrayType(LONG), "column 'p' is of type array<bigint>"),
        (struct(a=LONG, b=types.DateType()), "column 'p.b' is of type date"),
        (struct(a=struct(b=LONG)), "column 'p.a' is of type struct<b:bigint>"),
        (struct(a=types.ArrayType(STRING)), "column 'p.a' is of type array<string>"),
        (types.MapType(STRING, DOUBLE), "column 'p[]' is of type double"),
        (types.MapType(STRING, struct(a=LONG)), "column 'p[]' is of type struct<a:bigint>"),
        (types.MapType(STRING, types.MapType(STRING, LONG)), "column 'p[]' is of type map<"),
        (types.MapType(LONG, LONG), "column 'p': the keys of a map of properties must be strings"),
    ],
)
def test_a_type_that_no_property_has_is_refused_by_name(kind: types.DataType, text: str) -> None:
    schema = struct(value=STRING, p=kind)
    for refused in (
        lambda: write_partition(queue=NOWHERE, properties=["p"], schema=schema),
        lambda: source(queue=NOWHERE, propertyColumns="p", onInvalidRow="drop").writer(schema, False),
    ):
        with pytest.raises(bmq.UsageError) as info:
            refused()
        assert text in str(info.value)


@sweep(
    "kind, name", [(types.CharType(3), "char(3)"), (types.VarcharType(3), "varchar(3)"), (DOUBLE, "double")]
)
def test_a_property_cannot_be_read_as_another_type(kind: types.DataType, name: str) -> None:
    planned = source(queue=NOWHERE, checkpointLocation="/x")
    schema = struct(value=types.BinaryType(), properties=struct(code=kind))
    for refused in (planned.reader, lambda schema: planned.streamReader(schema).initialOffset()):
        with pytest.raises(bmq.UsageError) as info:
            refused(schema)
        assert f"property 'code' cannot be read as {name}; possible types are boolean" in str(info.value)
    with pytest.raises(bmq.UsageError, match="writename is an option of writing"):
        source(queue=NOWHERE, writeName="x").reader(schema)
    with pytest.raises(bmq.UsageError, match="a queue has no column 'key'; its columns are: value, prop"):
        planned.reader(struct(key=types.BinaryType()))


def test_a_queue_cannot_be_overwritten() -> None:
    with pytest.raises(bmq.UsageError, match=r'use mode\("append"\)'):
        source(queue=NOWHERE).writer(struct(value=STRING), True)
    with pytest.raises(bmq.UsageError, match=r'outputMode\("append"\)'):
        source(queue=NOWHERE).streamWriter(struct(value=STRING), True)


@sweep(
    "options, text",
    [
        ({"queue": "", "queue_column": ""}, "name a queue"),
        ({"guid_mode": "position"}, "guidMode must be one of content, id, random, source, not 'position'"),
        ({"rate": 0.0}, "rate must be a number of messages a second"),
        ({"password": "a", "password_env": "B"}, "password and passwordEnv exclude each other"),
    ],
)
def test_arguments_are_refused_as_options_are(options: dict[str, Any], text: str) -> None:
    with pytest.raises(bmq.UsageError, match=text):
        write_partition(**{"queue": NOWHERE, **options})


def test_refused_stream_raises_in_each_call_but_the_last() -> None:
    """Spark always stops a reader at the end: an error there would hide the reason."""
    reader: Any = source(queue=NOWHERE).streamReader(WHOLE)
    for call, arguments in {
        "initialOffset": (),
        "latestOffset": ({}, None),
        "partitions": ({}, {}),
        "commit": ({},),
        "read": (None,),
        "getDefaultReadLimit": (),
    }.items():
        with pytest.raises(bmq.UsageError, match="checkpointLocation is missing"):
            getattr(reader, call)(*arguments)
    reader.stop()


def test_options_of_the_session_pass_through(caplog: pytest.LogCaptureFixture) -> None:
    """As ``kafka.`` does with Kafka's source: any field of SessionOptions, in the user's spelling."""
    caplog.set_level("INFO")
    with BrokerThread() as broker:
        given = {"broker": broker.uri, "bmq.process_name": "nightly", "bmq.maxUnackedMessages": "5"}
        session = run(parse(WriteOptions, {"queue": NOWHERE, **given}).open())
        run(session.close())
        write = write_partition(broker=broker.uri, queue=NOWHERE, session={"process_name": "foreach"})
        write(iter([Row(value="x")]))
        shutdown()
    assert "process_name='nightly'" in caplog.text
    assert "process_name='foreach'" in caplog.text
