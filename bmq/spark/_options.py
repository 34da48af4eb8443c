# SPDX-License-Identifier: Apache-2.0
"""The options of ``format("bmq")``: declared once, parsed, and refused when unknown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, cast

from bmq._checks import INT32_MAX
from bmq.engine.address import parse_addresses
from bmq.errors import UsageError
from bmq.spark._columns import Columns, check_queue
from bmq.spark._guids import GuidMode
from bmq.spark._invalid import OnInvalidRow
from bmq.spark._portal import ConnectionSettings
from bmq.spark._posting import SinkSettings
from bmq.spark._reads import ReadLimits
from bmq.spark._receiving import SourceSettings
from bmq.spark._rows import SOURCE_COLUMNS, OnInvalidMessage
from bmq.spark._security import Security
from bmq.spark._state import LogPlace
from bmq.subscriptions import Expression
from bmq.wire.constants import Compression
from bmq.wire.uri import QueueUri

__all__ = [
    "OF_A_TABLE",
    "READ_OPTIONS",
    "STREAM_OPTIONS",
    "WRITE_OPTIONS",
    "Option",
    "Options",
    "check_reading",
    "connection",
    "log_place",
    "parse_compression",
    "parse_guid_mode",
    "parse_on_invalid_row",
    "queues",
    "read_settings",
    "sink_settings",
    "source_settings",
    "subscriptions",
]


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: its name, in Spark's camelCase; letter case does not matter.
        parse: from text to value.
        default: the value without it.
        text: what it does, for the documentation.
    """

    name: str
    parse: Callable[[str], Any]
    default: Any
    text: str


def _seconds(text: str) -> float:
    return _whole(text) / 1000


def _whole(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError("it cannot be negative")
    return number


def _above_zero(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise ValueError("it is above 0")
    return number


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("at least 1")
    return number


_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)")
_IN_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_SIZE = re.compile(r"(\d+)\s*([kmg]?)b?")


def _duration(text: str) -> float:
    """As other options of Spark: ``15m``."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError("a number and ms, s, m, h or d, such as 30s")
    return int(match[1]) * _IN_SECONDS[match[2]]


def _size(text: str) -> int:
    """As other options of Spark: bytes, or ``64m``."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError("bytes, or a number and k, m or g, such as 64m")
    return _positive(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]


def _addresses(text: str) -> str:
    parse_addresses(text)
    return text


def _source_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", text):
        raise ValueError("letters, digits, _ and -, 100 at most")
    return text


def _names(text: str) -> tuple[str, ...]:
    if text.lstrip().startswith("["):
        names: Any = json.loads(text)
        if not all(isinstance(each, str) for each in names):
            raise ValueError("a list of names")
        return tuple(names)
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_guid_mode(text: str | None, *, has_id: bool, has_guid: bool) -> GuidMode:
    """Return the mode that is named, or the default when none is.

    Raises:
        UsageError: there is no such mode.
    """
    if text is None:
        return GuidMode.ID if has_id else GuidMode.SOURCE if has_guid else GuidMode.CONTENT
    try:
        return GuidMode(text.lower())
    except ValueError:
        raise UsageError(f"guidMode is {', '.join(GuidMode)}, not {text!r}") from None


def parse_on_invalid_row(text: str) -> OnInvalidRow:
    """Return what becomes of invalid rows.

    Raises:
        UsageError: there is no such way.
    """
    for each in OnInvalidRow:
        if text.lower() == each.lower():
            return each
    raise UsageError(f"onInvalidRow is {', '.join(OnInvalidRow)}, not {text!r}")


def _on_invalid_message(text: str) -> OnInvalidMessage:
    for each in OnInvalidMessage:
        if text.lower() == each.lower():
            return each
    raise UsageError(f"onInvalidMessage is {', '.join(OnInvalidMessage)}, not {text!r}")


def parse_compression(text: str) -> Compression:
    """Return the compression that is named.

    Raises:
        UsageError: there is no such compression.
    """
    try:
        return Compression[text.upper()]
    except KeyError:
        known = ", ".join(each.name.lower() for each in Compression)
        raise UsageError(f"compression is {known}, not {text!r}") from None


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        for word in words:
            if text.lower() == word.lower():
                return word
        raise ValueError(f"it is one of {', '.join(words)}")

    return parse


_CONNECTION = (
    Option(
        "broker", _addresses, None, "the broker's address, several separated by commas; else BMQ_BROKER_URI"
    ),
    Option("connectTimeoutMs", _seconds, 10.0, "after which a broker that cannot be reached is an error"),
    Option("reconnectTimeoutMs", _seconds, 120.0, "after which a connection that is lost is an error"),
    Option("user", str, "", "user name, where the broker wants one"),
    Option("password", str, "", "its password, or what another mechanism wants; it travels with the job"),
    Option(
        "passwordEnv", str, "", "the environment variable that has it instead, where the connection is made"
    ),
    Option("mechanism", str, "", "the mechanism of authentication, if it is not BASIC"),
    Option(
        "credentials",
        str,
        "",
        "`MODULE:NAME` of a function or class that makes `bmq.Credentials`, instead of all these; it is "
        "called for each connection, and when they have to be renewed",
    ),
    Option(
        "tlsCaFile",
        str,
        "",
        "authorities to trust instead of the system's, a PEM file where the connection is made",
    ),
    Option("tlsCertFile", str, "", "a certificate to show, a PEM file"),
    Option("tlsKeyFile", str, "", "its key, where it is not in the same file"),
    Option("tlsServerName", str, "", "the name in the broker's certificate, where it is not the address's"),
)

#: Options of ``df.write`` and ``df.writeStream``.
WRITE_OPTIONS = (
    *_CONNECTION,
    Option("queue", str, "", "the target queue; wins over a column"),
    Option("valueColumn", str, "value", "the column with the payload, string or binary"),
    Option(
        "propertyColumns",
        _names,
        None,
        "columns that become properties, separated by commas or as a JSON list; a map or struct becomes one "
        "property an entry; the column `properties`, if there is one, is always among them",
    ),
    Option("queueColumn", str, "queue", "the column with each row's target queue"),
    Option("idColumn", str, "id", "the column with each row's id"),
    Option(
        "guidColumn",
        str,
        "guid",
        "the column with the GUID of the message that each row was read from, for `guidMode=source`",
    ),
    Option(
        "keyColumn",
        str,
        "",
        "the column with each row's key for [groups](groups.md): string, binary or an integer; it becomes "
        "the property `bmq_bucket`",
    ),
    Option(
        "notBeforeColumn",
        str,
        "",
        "the column that says when each message is due: a timestamp, or seconds since 1970; such a message "
        "is posted to the [delay queue](delays.md), one with null at once",
    ),
    Option(
        "guidMode",
        str,
        None,
        "`content`, `source`, `id` or `random`; default `id` with an id column, else `source` with a column "
        "of GUIDs, else `content`",
    ),
    Option("jobId", str, "", "names the job in GUIDs, so that a job that is run again adds nothing"),
    Option("writeName", str, "", "tells writes in the same `foreachBatch` apart"),
    Option("compression", parse_compression, Compression.NONE, "`none` or `zlib`"),
    Option("rate", _above_zero, None, "how many rows a second a partition posts at most"),
    Option(
        "onInvalidRow",
        parse_on_invalid_row,
        OnInvalidRow.FAIL,
        "what becomes of a row that [cannot be posted](#rows-that-cannot-be-posted): `fail` fails the task, "
        "`drop` leaves it out, `deadLetters` posts it to `deadLetterQueue`",
    ),
    Option("deadLetterQueue", str, "", "the queue for these, a URI"),
    Option(
        "maxRetries",
        _whole,
        5,
        "how often a negatively acknowledged message is posted again; a full queue does not count",
    ),
    Option("retryIntervalMs", _seconds, 0.2, "before the first of these, doubled each time"),
    Option(
        "ackTimeoutMs",
        _seconds,
        300.0,
        "without an outcome, or in front of a [full queue](#failures) that accepts no row, after which the "
        "task fails",
    ),
    Option("sessionIdleMs", _seconds, 30.0, "after which a worker's session that no task uses is closed"),
)

_SOURCE = (
    *_CONNECTION,
    Option("queue", str, "", "the queue, or several separated by commas; of a fanout queue with `?id=APPID`"),
    Option(
        "subscription",
        str,
        "",
        "an expression: only messages that match are read; or a JSON object of names and expressions",
    ),
    Option("consumerPriority", int, 0, "the highest priority is served first"),
    Option(
        "propertiesSchema",
        str,
        "",
        "DDL such as `CustomerId BIGINT, OrderType STRING`: the column `properties` is a struct of these "
        "instead of a map of strings; a property of another type is null",
    ),
    Option(
        "onInvalidMessage",
        _on_invalid_message,
        OnInvalidMessage.ROW,
        "what becomes of a message that [cannot be decoded](#messages-that-cannot-be-decoded): `row` is a "
        "row with all that was delivered and the reason in `error`, `drop` leaves the message out, "
        "`deadLetters` puts it aside, `fail` fails the task",
    ),
    Option("deadLetterQueue", str, "", "the queue for messages that are put aside, a URI"),
    Option(
        "exclusive",
        _one_of("true", "false"),
        "false",
        "`true` refuses to start while others read the same queue; of a fanout queue, for the same "
        "application",
    ),
)

#: Options of ``spark.read``.
READ_OPTIONS = (
    *_SOURCE,
    Option(
        "checkpointLocation",
        str,
        "",
        "where the rows are stored until the read [is confirmed](#confirm-a-read): a folder that all "
        "machines reach, in any file system that pyarrow knows; without it a temporary folder, and nothing "
        "is confirmed",
    ),
    Option("maxMessages", _positive, 1_000_000, "how many messages a read has at most"),
    Option("idleTimeoutMs", _seconds, 2.0, "without a message, after which a queue counts as drained"),
    Option(
        "confirm",
        _one_of("explicit", "onStore", "never"),
        None,
        "`explicit` confirms when `bmq.spark.confirm` is called, the default with `checkpointLocation`; "
        "`onStore` takes messages out of the queue as soon as they are stored there; `never` is the default "
        "without",
    ),
    Option("numPartitions", _positive, 1, "in how many partitions the stored rows are read"),
    Option(
        "pushFilters",
        _one_of("true", "false"),
        "false",
        "`true` makes [Spark's filters](#filters-as-subscriptions) part of the subscriptions: what they "
        "leave out stays in the queue",
    ),
)

#: Options of ``spark.readStream``.
STREAM_OPTIONS = (
    *_SOURCE,
    Option(
        "checkpointLocation",
        str,
        "",
        "the same as given to `writeStream`: messages that were handed out are kept in a folder `bmq` in it "
        "until their batch is committed",
    ),
    Option("logPath", str, "", "that folder, where it is another; no two queries may share it"),
    Option(
        "sourceName",
        _source_name,
        "",
        "tells several sources of one query apart: letters, digits, `_` and `-`; it stays the same for ever",
    ),
    Option(
        "failOnDataLoss",
        _one_of("true", "false"),
        "true",
        "`false` makes a warning of what [would be an error](#when-a-log-does-not-fit): a log that is gone "
        "or is another query's, messages that the broker dropped",
    ),
    Option("maxMessagesPerTrigger", _positive, 10_000, "how many messages a batch has at most"),
    Option(
        "maxBytesPerTrigger",
        _size,
        None,
        "how many bytes a batch has at most, as messages travelled, unless it is one message; with k, m or "
        "g: `64m`",
    ),
    Option(
        "minMessagesPerTrigger",
        _positive,
        1,
        "a batch of fewer messages is held back for `maxTriggerDelay`; pyspark 4.2 or newer",
    ),
    Option(
        "maxTriggerDelay",
        _duration,
        900.0,
        "after which it goes all the same, counted from its first message: `30s`, `500ms`",
    ),
    Option("pollTimeoutMs", _seconds, 0.5, "how long to wait for a first message"),
    Option("lingerMs", _seconds, 0.05, "how long to wait for more after it"),
    Option(
        "idleTimeoutMs",
        _seconds,
        2.0,
        "with `availableNow`: without a message, until a queue is drained",
    ),
    Option(
        "maxMessages",
        _positive,
        None,
        "with `availableNow`: how many messages the run reads at most, for queues that never fall silent",
    ),
    Option("numPartitions", _positive, 1, "in how many partitions a batch is read"),
    Option("numReceivers", _positive, 1, "how many sessions of the driver receive from each queue"),
    Option(
        "lag",
        _one_of("true", "false"),
        "false",
        "`true` asks the broker how much the queues hold, for the [progress](#progress-and-metrics)",
    ),
)

_HOMES = {"spark.read": READ_OPTIONS, "spark.readStream": STREAM_OPTIONS, "writing": WRITE_OPTIONS}

_NO_POSITION = (
    "a queue has no offsets: every message that is not confirmed is delivered, and none that is confirmed. "
    "An application of a fanout queue (?id=APPID) keeps messages for a later reader"
)
_ONE_QUEUE = "option queue, the URI bmq://DOMAIN/QUEUE"
_APP = "a consumer's identity is the application of a fanout queue: bmq://DOMAIN/QUEUE?id=APPID"
#: What users of Spark's sources for Kafka and Pulsar look for, and what there is instead.
_FOREIGN = {
    "bootstrap.servers": "option broker, tcp://HOST:PORT",
    "service.url": "option broker, tcp://HOST:PORT",
    "admin.url": "option broker: admin commands go to the same address",
    "subscribe": _ONE_QUEUE,
    "topic": _ONE_QUEUE,
    "topics": "option queue, several URIs separated by commas",
    "assign": _ONE_QUEUE,
    "subscribepattern": "option queue, several URIs separated by commas; there are no patterns",
    "topicspattern": "option queue, several URIs separated by commas; there are no patterns",
    "topicpattern": "option queue, several URIs separated by commas; there are no patterns",
    "path": "option queue instead of a path",
    **dict.fromkeys(
        (
            "startingoffsets",
            "endingoffsets",
            "startingtimestamp",
            "endingtimestamp",
            "startingtime",
            "startingoffsetsbytimestamp",
            "endingoffsetsbytimestamp",
            "startingoffsetsbytimestampstrategy",
            "auto.offset.reset",
            "enable.auto.commit",
        ),
        _NO_POSITION,
    ),
    "group.id": _APP,
    "groupid": _APP,
    "groupidprefix": _APP,
    "subscriptionname": _APP,
    "predefinedsubscription": _APP,
    "maxoffsetspertrigger": "option maxMessagesPerTrigger",
    "minoffsetspertrigger": "option minMessagesPerTrigger",
    "maxrecordsperpartition": "options maxMessagesPerTrigger and numPartitions",
    "minpartitions": "option numPartitions",
    "includeheaders": "the column properties is always there",
    "kafkaconsumer.polltimeoutms": "option pollTimeoutMs",
    "delivery.timeout.ms": "option ackTimeoutMs",
    "retries": "option maxRetries",
    "compression.type": "option compression",
    "enable.idempotence": "option guidMode: posts are idempotent within the deduplication window",
    "security.protocol": "an address tcps://HOST:PORT, and the options that begin with tls",
}

#: For users of SQL, whose statement brings no options.
OF_A_TABLE = (
    "Spark hands the options of CREATE TABLE to no source in Python: use CREATE TEMPORARY VIEW ... USING bmq "
    "OPTIONS (...), or give the options in each statement: SELECT * FROM t WITH ('queue' = '...'), INSERT "
    "INTO t WITH ('queue' = '...')"
)

#: Spark hands its own options of a streaming query on to the sink.
_SPARKS = frozenset({"checkpointlocation", "queryname"})


class Options:
    """The options of one DataFrame.

    Args:
        given: as Spark hands them over: keys in lower case.
        known: the options there are.

    Raises:
        UsageError: an option is unknown or its value is not legal.
    """

    def __init__(self, given: Mapping[str, str], known: Sequence[Option]) -> None:
        by_key = {option.name.lower(): option for option in known}
        unknown = sorted(key for key in given if key.lower() not in by_key and key.lower() not in _SPARKS)
        if unknown:
            listing = ", ".join(option.name for option in known)
            hints = "; ".join(filter(None, (_hint(key, known) for key in unknown)))
            raise UsageError(
                f"unknown option {', '.join(unknown)}; {f'{hints}; ' if hints else ''}there are: {listing}"
            )
        self._values = {option.name: option.default for option in known}
        self.given: set[str] = set()
        for key, text in given.items():
            option = by_key.get(key.lower())
            if option is None:
                continue
            try:
                self._values[option.name] = option.parse(text)
            except UsageError:
                raise
            except ValueError as error:
                raise UsageError(f"option {option.name}={text!r}: {error}") from None
            self.given.add(option.name)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]


def check_reading(given: Mapping[str, str]) -> None:
    """Check the options of a read before Spark says whether it is of ``spark.read`` or of a stream.

    Options of writing pass: a view in SQL may be for INSERT alone.

    Args:
        given: as Spark hands them over.

    Raises:
        UsageError: an option is unknown, two are never of one read, or a value is not legal.
    """
    keys = {key.lower() for key in given} - _SPARKS
    for known in (READ_OPTIONS, STREAM_OPTIONS, WRITE_OPTIONS):
        if keys <= {option.name.lower() for option in known}:
            options = Options(given, known)
            break
    else:
        every = {option.name: option for option in (*READ_OPTIONS, *STREAM_OPTIONS, *WRITE_OPTIONS)}
        options = Options(given, list(every.values()))  # says which are unknown to all
        homes = ", ".join(sorted(f"{name} ({_homes(name)})" for name in options.given if _homes(name)))
        raise UsageError(f"options of different ways to use a queue: {homes}")
    if known is not WRITE_OPTIONS:
        queues(options)
        subscriptions(options)
    connection(options)


def _homes(name: str) -> str:
    """Where an option belongs, unless it is one of all; "" also for one that does not exist."""
    found = [
        home for home, known in _HOMES.items() if name.lower() in {option.name.lower() for option in known}
    ]
    return "" if len(found) == len(_HOMES) else " and ".join(found)


def _hint(key: str, known: Sequence[Option]) -> str:
    """Return what a user who gives an unknown option may want; "" for no idea."""
    foreign = _FOREIGN.get(key.lower().removeprefix("kafka.").removeprefix("pulsar.client."))
    if foreign is not None:
        return f"for {key}: {foreign}"
    if homes := _homes(key):
        return f"{key} is an option of {homes}"
    names = {option.name.lower(): option.name for option in known}
    near = get_close_matches(key.lower(), names, n=1, cutoff=0.7)
    return f"did you mean {names[near[0]]}?" if near else ""


def connection(options: Options, **more: Any) -> ConnectionSettings:
    """Return the broker that the options name, and how to connect."""
    return ConnectionSettings(
        broker=options["broker"],
        connect_timeout=options["connectTimeoutMs"],
        reconnect_timeout=options["reconnectTimeoutMs"],
        security=Security(
            user=options["user"],
            password=options["password"],
            password_env=options["passwordEnv"],
            mechanism=options["mechanism"],
            credentials=options["credentials"],
            tls_ca_file=options["tlsCaFile"],
            tls_cert_file=options["tlsCertFile"],
            tls_key_file=options["tlsKeyFile"],
            tls_server_name=options["tlsServerName"],
        ),
        **more,
    )


def sink_settings(options: Options, names: Sequence[str]) -> SinkSettings:
    """Return how to write a DataFrame with these columns.

    Raises:
        UsageError: a column is neither payload nor property, queue or id.
    """
    if not options["queue"] and options["queueColumn"] not in names and "queueColumn" not in options.given:
        hint = "" if options.given else f". {OF_A_TABLE}"
        raise UsageError(
            f"no target: name a queue (bmq://DOMAIN/QUEUE) in the option queue, or in a column "
            f"{options['queueColumn']!r}{hint}"
        )
    properties: tuple[str, ...] = options["propertyColumns"] or ()
    if "properties" in names and "properties" not in properties:
        properties = ("properties", *properties)

    def optional(option: str) -> str:
        name: str = options[option]
        return name if name in names or option in options.given else ""

    queue_column, guid_column, id_column = map(optional, ("queueColumn", "guidColumn", "idColumn"))
    guid_mode = parse_guid_mode(options["guidMode"], has_id=bool(id_column), has_guid=bool(guid_column))
    columns = Columns(
        value=options["valueColumn"],
        properties=properties,
        queue="" if options["queue"] else queue_column,
        id=id_column,
        guid=guid_column if guid_mode is GuidMode.SOURCE else "",
        key=options["keyColumn"],
        not_before=options["notBeforeColumn"],
    )
    useful = {*columns.named(), queue_column, guid_column}
    if set(SOURCE_COLUMNS) - {"error"} <= set(names):  # a queue is copied with all columns of a source
        useful.update(SOURCE_COLUMNS)
    unknown = [name for name in names if name not in useful]
    if unknown:
        raise UsageError(
            f"column {', '.join(map(repr, unknown))} is of no use to a queue; there are: "
            f"{options['valueColumn']!r} (the payload), 'properties' (a map or struct), "
            f"{options['queueColumn']!r} (the target), {options['idColumn']!r} and {options['guidColumn']!r} "
            "(see guidMode). Name "
            "columns that are to be properties in the option propertyColumns (or in keyColumn, or "
            "notBeforeColumn), and drop the others"
        )
    return SinkSettings(
        connection=connection(
            options, compression=options["compression"], idle_timeout=options["sessionIdleMs"]
        ),
        queue=options["queue"],
        columns=columns,
        guid_mode=guid_mode,
        job_id=options["jobId"],
        write_name=options["writeName"],
        rate=options["rate"],
        on_invalid_row=options["onInvalidRow"],
        dead_letter_queue=options["deadLetterQueue"],
        max_retries=options["maxRetries"],
        retry_interval=options["retryIntervalMs"],
        ack_timeout=options["ackTimeoutMs"],
    )


def queues(options: Options) -> list[str]:
    """Return the queues to read.

    Raises:
        UsageError, InvalidURI: there is none, or one is not a queue's URI.
    """
    uris = _names(options["queue"])
    if not uris:
        hint = "" if options.given else f". {OF_A_TABLE}"
        raise UsageError(f"option queue is missing: the URI of the queue to read, bmq://DOMAIN/QUEUE{hint}")
    for uri in uris:
        QueueUri.parse(uri)
        if uris.count(uri) > 1:
            raise UsageError(f"option queue names {uri} more than once")
    return list(uris)


def subscriptions(options: Options) -> dict[str, str]:
    """Return the expressions to subscribe with, by name; "" for everything.

    Raises:
        InvalidExpression, UsageError: one is not legal.
    """
    text: str = options["subscription"]
    if not text.lstrip().startswith("{"):
        named: dict[str, Any] = {text: text}
    else:
        try:
            named = cast("dict[str, Any]", json.loads(text))
        except ValueError as error:
            raise UsageError(
                f"option subscription: not a JSON object of names and expressions: {error}"
            ) from None
    for name, expression in named.items():
        if not isinstance(expression, str):
            raise UsageError(f"option subscription: the expression of {name!r} is a string")
        if expression:
            Expression(expression)
    return named


def source_settings(options: Options, max_unconfirmed: int) -> SourceSettings:
    """Return what to read.

    Raises:
        InvalidExpression, InvalidURI, UsageError: an option is not legal, or does not go with another one.
    """
    aside = options["onInvalidMessage"] is OnInvalidMessage.DEAD_LETTERS
    letters: str = options["deadLetterQueue"]
    if aside and not letters:
        raise UsageError("onInvalidMessage=deadLetters needs option deadLetterQueue, the URI of a queue")
    if letters and not aside:
        raise UsageError("option deadLetterQueue is for onInvalidMessage=deadLetters")
    if letters:
        check_queue(letters)
    return SourceSettings(
        connection=connection(options),
        queues=tuple(queues(options)),
        subscriptions=tuple(subscriptions(options).items()),
        priority=options["consumerPriority"],
        max_unconfirmed=max_unconfirmed,
        exclusive=options["exclusive"] == "true",
        dead_letters=letters,
    )


def read_settings(options: Options) -> tuple[SourceSettings, ReadLimits]:
    """Return what ``spark.read`` is to read, and how much.

    Raises:
        InvalidExpression, InvalidURI, UsageError: an option is not legal, or does not go with another one.
    """
    stored, confirm = bool(options["checkpointLocation"]), options["confirm"]
    if not stored and confirm not in (None, "never"):
        raise UsageError(
            f"confirm={confirm} needs option checkpointLocation, where the rows are stored before messages "
            "are taken out of the queue: Spark may read a partition any number of times"
        )
    if stored and confirm == "never":
        raise UsageError(
            "confirm=never needs no checkpointLocation: rows stored there wait for bmq.spark.confirm"
        )
    limits = ReadLimits(
        max_messages=options["maxMessages"],
        idle=options["idleTimeoutMs"],
        partitions=options["numPartitions"],
        on_store=confirm == "onStore",
    )
    settings = source_settings(options, limits.max_messages)
    if settings.dead_letters:
        # What is put aside is confirmed while the read goes on, and a broker with a full window delivers more
        # only when 80 % of it are unconfirmed: what is kept has to fit into that.
        settings = replace(settings, max_unconfirmed=min(limits.max_messages * 5 // 4 + 1, INT32_MAX))
    if settings.dead_letters and not stored:
        raise UsageError(
            "onInvalidMessage=deadLetters takes messages out of the queue, and so needs checkpointLocation"
        )
    return settings, limits


def log_place(options: Options) -> LogPlace:
    """Return where the log of a streaming read is.

    Raises:
        UsageError: the options do not say.
    """
    checkpoint: str = options["checkpointLocation"]
    name: str = options["sourceName"]
    path: str = options["logPath"]
    if not path:
        if not checkpoint:
            raise UsageError(
                "option checkpointLocation is missing: give readStream the same as writeStream. Messages "
                "that were handed out are kept there until their batch is committed"
            )
        path = f"{checkpoint.rstrip('/')}/bmq" + (f"/{name}" if name else "")
    return LogPlace(path=path, checkpoint=checkpoint, source=name, strict=options["failOnDataLoss"] == "true")
