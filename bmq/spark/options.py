# SPDX-License-Identifier: Apache-2.0
"""The options of ``format("bmq")``: declared once, parsed, and refused if unknown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, cast

from bmq._checks import INT32_MAX
from bmq.client.address import parse_addresses
from bmq.conventions import BUCKET, DESTINATION, DUE
from bmq.errors import UsageError
from bmq.spark.connection import ConnectionSettings, Security
from bmq.spark.guids import GuidMode
from bmq.spark.schema import SOURCE_COLUMNS, ColumnRoles, OnInvalidMessage, OnInvalidRow, check_queue, resolve
from bmq.wire.constants import Compression
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.spark.log import LogLocation
    from bmq.spark.receiver import ReadLimits, SourceSettings

__all__ = [
    "OF_A_TABLE",
    "READ_OPTIONS",
    "STREAM_OPTIONS",
    "WRITE_OPTIONS",
    "_FOREIGN",
    "Option",
    "Options",
    "SinkSettings",
    "check_reading",
    "connection",
    "log_place",
    "name_row",
    "parse_compression",
    "parse_guid_mode",
    "parse_on_invalid_row",
    "read_settings",
    "sink_settings",
    "source_settings",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """Settings of the sink.

    Attributes:
        connection: connection to the broker.
        queue: target of all rows; "" if a column has the target.
        columns: roles of the columns.
        guid_mode: source of the GUIDs.
        write_name: name of the write in GUIDs: a repeated write of this name adds no messages.
        rate: maximum number of rows a second of each partition; None for no limit.
        on_invalid_row: handling of rows that cannot be posted.
        dead_letter_queue: queue for dead letters.
        max_retries: number of retries after a negative acknowledgement; a full queue does not count.
        retry_interval: seconds before the first retry, doubled each time.
        ack_timeout: seconds without an outcome, or with a full queue that accepts no row, until the task
            fails.
    """

    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    queue: str = ""
    columns: ColumnRoles = field(default_factory=ColumnRoles)
    guid_mode: GuidMode = GuidMode.CONTENT
    write_name: str = ""
    rate: float | None = None
    on_invalid_row: OnInvalidRow = OnInvalidRow.FAIL
    dead_letter_queue: str = ""
    max_retries: int = 5
    retry_interval: float = 0.2
    ack_timeout: float = 300.0

    def __post_init__(self) -> None:
        if self.queue:
            check_queue(self.queue)
        if not self.queue and not self.columns.queue:
            raise UsageError("no target: name a queue (bmq://DOMAIN/QUEUE), or the column with the queue")
        taken = {BUCKET} if self.columns.key else set[str]()
        taken |= {DUE, DESTINATION} if self.columns.not_before else set[str]()
        if twice := taken.intersection(self.columns.properties):
            raise UsageError(
                f"{', '.join(sorted(twice))}: both a property column and made from another column"
            )
        if self.rate is not None and not self.rate > 0:
            raise UsageError(f"rate must be a number of rows a second, above 0, not {self.rate}")
        if (self.on_invalid_row is OnInvalidRow.DEAD_LETTERS) != bool(self.dead_letter_queue):
            raise UsageError("dead letters need both onInvalidRow=deadLetters and deadLetterQueue")
        if self.dead_letter_queue:
            check_queue(self.dead_letter_queue)
        if self.guid_mode is GuidMode.ID and not self.columns.id:
            raise UsageError("guidMode=id needs idColumn, the column with the id of each row")
        if self.guid_mode is GuidMode.SOURCE and not self.columns.guid:
            raise UsageError(
                "guidMode=source needs guidColumn, the column with the GUIDs of a queue that was read"
            )


def name_row(position: int) -> str:
    """Return the name of a row for errors."""
    return f"row {position} of the partition"


@dataclass(frozen=True, slots=True)
class Option:
    """An option.

    Attributes:
        name: name in Spark's camelCase; upper and lower case are equal.
        parse: function from text to value.
        default: value if the option is not given.
        text: description for the documentation.
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
        raise ValueError("must not be negative")
    return number


def _above_zero(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise ValueError("must be above 0")
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
    """Parse a duration in Spark's notation: ``15m``."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError("must be a number with ms, s, m, h or d, such as 30s")
    return int(match[1]) * _IN_SECONDS[match[2]]


def _size(text: str) -> int:
    """Parse a size in Spark's notation: bytes, or ``64m``."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError("must be bytes, or a number with k, m or g, such as 64m")
    return _positive(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]


def _addresses(text: str) -> str:
    parse_addresses(text)
    return text


def _source_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", text):
        raise ValueError("must consist of letters, digits, _ and -, at most 100")
    return text


def _names(text: str) -> tuple[str, ...]:
    if text.lstrip().startswith("["):
        names: Any = json.loads(text)
        if not all(isinstance(each, str) for each in names):
            raise ValueError("must be a list of names")
        return tuple(names)
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_guid_mode(text: str | None, *, has_id: bool, has_guid: bool) -> GuidMode:
    """Return the named mode; None for the default.

    Raises:
        UsageError: the mode does not exist.
    """
    if text is None:
        return GuidMode.ID if has_id else GuidMode.SOURCE if has_guid else GuidMode.CONTENT
    try:
        return GuidMode(text.lower())
    except ValueError:
        raise UsageError(f"guidMode must be one of {', '.join(GuidMode)}, not {text!r}") from None


def parse_on_invalid_row(text: str) -> OnInvalidRow:
    """Return the handling of invalid rows.

    Raises:
        UsageError: the value does not exist.
    """
    for each in OnInvalidRow:
        if text.lower() == each.lower():
            return each
    raise UsageError(f"onInvalidRow must be one of {', '.join(OnInvalidRow)}, not {text!r}")


def _on_invalid_message(text: str) -> OnInvalidMessage:
    for each in OnInvalidMessage:
        if text.lower() == each.lower():
            return each
    raise UsageError(f"onInvalidMessage must be one of {', '.join(OnInvalidMessage)}, not {text!r}")


def parse_compression(text: str) -> Compression:
    """Return the named compression.

    Raises:
        UsageError: the compression does not exist.
    """
    try:
        return Compression[text.upper()]
    except KeyError:
        known = ", ".join(each.name.lower() for each in Compression)
        raise UsageError(f"compression must be one of {known}, not {text!r}") from None


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        for word in words:
            if text.lower() == word.lower():
                return word
        raise ValueError(f"must be one of {', '.join(words)}")

    return parse


_CONNECTION = (
    Option(
        "broker",
        _addresses,
        None,
        "broker's address, or several separated by commas; by default BMQ_BROKER_URI",
    ),
    Option("connectTimeoutMs", _seconds, 10.0, "time until an unreachable broker is an error"),
    Option("reconnectTimeoutMs", _seconds, 120.0, "time until a lost connection is an error"),
    Option("user", str, "", "user name, if the broker requires authentication"),
    Option("password", str, "", "password, or the data of another mechanism; travels with the job"),
    Option("passwordEnv", str, "", "environment variable with the password, on the connecting machine"),
    Option("mechanism", str, "", "authentication mechanism, by default BASIC"),
    Option(
        "credentials",
        str,
        "",
        "`MODULE:NAME` of a function or class that returns `bmq.Credentials`, in place of the options"
        " above; called for each connection, and for each renewal",
    ),
    Option(
        "tlsCaFile",
        str,
        "",
        "trusted authorities in place of the system's: a PEM file on the connecting machine",
    ),
    Option("tlsCertFile", str, "", "client certificate: a PEM file"),
    Option("tlsKeyFile", str, "", "key of the client certificate, if in a separate file"),
    Option("tlsServerName", str, "", "name in the broker's certificate, if different from the address"),
)

#: Options of ``df.write`` and ``df.writeStream``.
WRITE_OPTIONS = (
    *_CONNECTION,
    Option("queue", str, "", "target queue; overrides a column"),
    Option("valueColumn", str, "value", "column with the payload, string or binary"),
    Option(
        "propertyColumns",
        _names,
        None,
        "columns that become properties, separated by commas or as a JSON list; each entry of a map "
        "or struct becomes a property; a column `properties` is always included",
    ),
    Option("queueColumn", str, "queue", "column with the target queue of each row"),
    Option(
        "idColumn",
        str,
        "",
        "column with the id of each row: rows with equal ids are one message; see "
        "[repeated tasks](#repeated-tasks)",
    ),
    Option(
        "guidColumn",
        str,
        "",
        "column with the GUID of each row's source message, such as the column `guid` of a queue; see "
        "[repeated tasks](#repeated-tasks)",
    ),
    Option(
        "keyColumn",
        str,
        "",
        "column with the key of each row for [groups](groups.md): string, binary or integer; becomes "
        "the property `bmq_bucket`",
    ),
    Option(
        "notBeforeColumn",
        str,
        "",
        "column with the due time of each message: a timestamp, or seconds since 1970; messages with "
        "a due time are posted to the [delay queue](delays.md), others at once",
    ),
    Option(
        "guidMode",
        str,
        None,
        "`content`, `source`, `id` or `random`; default `id` with `idColumn`, else `source` with "
        "`guidColumn`, else `content`",
    ),
    Option(
        "writeName",
        str,
        "",
        "name of the write: a repeated write of this name, in `foreachBatch` in a repeated batch, adds no "
        "messages",
    ),
    Option("compression", parse_compression, Compression.NONE, "`none` or `zlib`"),
    Option("rate", _above_zero, None, "maximum number of rows a second of each partition"),
    Option(
        "onInvalidRow",
        parse_on_invalid_row,
        OnInvalidRow.FAIL,
        "handling of rows that [cannot be posted](#rows-that-cannot-be-posted): `fail` fails the "
        "task, `drop` omits the row, `deadLetters` posts the row to `deadLetterQueue`",
    ),
    Option("deadLetterQueue", str, "", "URI of the queue for invalid rows"),
    Option(
        "maxRetries",
        _whole,
        5,
        "number of retries after a negative acknowledgement; a full queue does not count",
    ),
    Option("retryIntervalMs", _seconds, 0.2, "pause before the first retry, doubled each time"),
    Option(
        "ackTimeoutMs",
        _seconds,
        300.0,
        "time without an outcome, or with a [full queue](#failures) that accepts no row, until the "
        "task fails",
    ),
    Option("sessionIdleMs", _seconds, 30.0, "time until the idle session of a worker is closed"),
)

_SOURCE = (
    *_CONNECTION,
    Option("queue", str, "", "queue, or several separated by commas; for a fanout queue with `?id=APPID`"),
    Option(
        "expression",
        str,
        "",
        "expression that selects messages, or a JSON object of names and expressions",
    ),
    Option(
        "consumerPriority", int, 0, "priority of the consumer; the broker serves the highest priority first"
    ),
    Option(
        "propertiesSchema",
        str,
        "",
        "DDL such as `CustomerId BIGINT, OrderType STRING`: the column `properties` becomes a struct "
        "with these fields, in place of a map of strings; a property of another type is null",
    ),
    Option(
        "onInvalidMessage",
        _on_invalid_message,
        OnInvalidMessage.ROW,
        "handling of messages that [cannot be decoded](#messages-that-cannot-be-decoded): `row` "
        "creates a row with all delivered bytes and the reason in `error`, `drop` omits the message, "
        "`deadLetters` puts the message aside, `fail` fails the task",
    ),
    Option("deadLetterQueue", str, "", "URI of the queue for undecodable messages"),
    Option(
        "exclusive",
        _one_of("true", "false"),
        "false",
        "`true` refuses to start while other consumers read the same queue (of a fanout queue, the "
        "same application)",
    ),
)

#: Options of ``spark.read``.
READ_OPTIONS = (
    *_SOURCE,
    Option(
        "checkpointLocation",
        str,
        "",
        "folder for the rows until the read [is confirmed](#confirm-a-read), reachable from all "
        "machines, in any file system supported by pyarrow; by default a temporary folder, without "
        "confirmation",
    ),
    Option("maxMessages", _positive, 1_000_000, "maximum number of messages of a read"),
    Option("idleTimeoutMs", _seconds, 2.0, "time without a message after which a read ends in any case"),
    Option(
        "confirm",
        _one_of("explicit", "onStore", "never"),
        None,
        "`explicit` (default with `checkpointLocation`) confirms on `bmq.spark.confirm`; `onStore` "
        "confirms as soon as the messages are stored in the folder; `never` is the default without "
        "`checkpointLocation`",
    ),
    Option("numPartitions", _positive, 1, "number of partitions of the stored rows"),
    Option(
        "pushFilters",
        _one_of("true", "false"),
        "false",
        "`true` adds [Spark's filters](#filters-as-subscriptions) to the subscriptions: messages "
        "without a match stay in the queue",
    ),
)

#: Options of ``spark.readStream``.
STREAM_OPTIONS = (
    *_SOURCE,
    Option(
        "checkpointLocation",
        str,
        "",
        "checkpoint location of `writeStream`: its subfolder `bmq` keeps messages until their batch "
        "is committed",
    ),
    Option("logPath", str, "", "another folder in place of this subfolder, for one query only"),
    Option(
        "sourceName",
        _source_name,
        "",
        "name that distinguishes several sources of a query: letters, digits, `_` and `-`; must never change",
    ),
    Option(
        "failOnDataLoss",
        _one_of("true", "false"),
        "true",
        "`false` turns these [errors](#when-a-log-does-not-fit) into warnings: a log that is missing "
        "or belongs to another query, messages dropped by the broker",
    ),
    Option("maxMessagesPerTrigger", _positive, 10_000, "maximum number of messages in a batch"),
    Option(
        "maxBytesPerTrigger",
        _size,
        None,
        "maximum number of transmitted bytes in a batch, unless the batch is a single message; with "
        "k, m or g: `64m`",
    ),
    Option(
        "minMessagesPerTrigger",
        _positive,
        1,
        "minimum number of messages in a batch, for up to `maxTriggerDelay`; pyspark 4.2 or newer",
    ),
    Option(
        "maxTriggerDelay",
        _duration,
        900.0,
        "maximum delay of a batch below the minimum, from its first message: `30s`, `500ms`",
    ),
    Option("pollTimeoutMs", _seconds, 0.5, "time to wait for a first message"),
    Option(
        "lingerMs",
        _seconds,
        0.05,
        "time to wait for further messages after the first; with `availableNow`, after the last",
    ),
    Option(
        "idleTimeoutMs",
        _seconds,
        2.0,
        "with `availableNow`: time without a message after which a run ends in any case",
    ),
    Option(
        "maxMessages",
        _positive,
        None,
        "with `availableNow`: maximum number of messages of the run",
    ),
    Option("numPartitions", _positive, 1, "number of partitions of a batch"),
    Option("numReceivers", _positive, 1, "number of the driver's sessions for each queue"),
)

_HOMES = {"spark.read": READ_OPTIONS, "spark.readStream": STREAM_OPTIONS, "writing": WRITE_OPTIONS}

_NO_POSITION = (
    "a queue has no offsets: the broker delivers every unconfirmed message, and no confirmed one. An "
    "application of a fanout queue (?id=APPID) keeps messages for a later reader"
)

_ONE_QUEUE = "option queue, the URI bmq://DOMAIN/QUEUE"

_APP = "a consumer's identity is the application of a fanout queue: bmq://DOMAIN/QUEUE?id=APPID"

#: Options of Spark's sources for Kafka and Pulsar, with their equivalents here.
_FOREIGN = {
    "bootstrap.servers": "option broker, tcp://HOST:PORT",
    "service.url": "option broker, tcp://HOST:PORT",
    "admin.url": "option broker: admin commands go to the same address",
    "subscribe": _ONE_QUEUE,
    "topic": _ONE_QUEUE,
    "topics": "option queue, several URIs separated by commas",
    "assign": _ONE_QUEUE,
    "subscribepattern": "option queue, several URIs separated by commas; patterns are not supported",
    "topicspattern": "option queue, several URIs separated by commas; patterns are not supported",
    "topicpattern": "option queue, several URIs separated by commas; patterns are not supported",
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
    "includeheaders": "the column properties always exists",
    "kafkaconsumer.polltimeoutms": "option pollTimeoutMs",
    "delivery.timeout.ms": "option ackTimeoutMs",
    "retries": "option maxRetries",
    "compression.type": "option compression",
    "enable.idempotence": "option guidMode: posts are idempotent within the deduplication window",
    "security.protocol": "an address tcps://HOST:PORT, and the options that begin with tls",
}

#: For users of SQL, whose statements pass no options.
OF_A_TABLE = (
    "Spark does not pass the options of CREATE TABLE to sources in Python: use CREATE TEMPORARY VIEW ... "
    "USING bmq OPTIONS (...), or give the options in each statement: SELECT * FROM t WITH ('queue' = "
    "'...'), INSERT INTO t WITH ('queue' = '...')"
)

#: Old names of options, in lower case, and the new ones.
_RENAMED: Final = {"subscription": "expression"}

#: Spark also passes its own options of a streaming query to the sink.
_SPARKS = frozenset({"checkpointlocation", "queryname"})


class Options:
    """The options of one DataFrame.

    Args:
        given: options as Spark passes them, with keys in lower case.
        known: all options.

    Raises:
        UsageError: an option is unknown, or its value is not legal.
    """

    def __init__(self, given: Mapping[str, str], known: Sequence[Option]) -> None:
        by_key = {option.name.lower(): option for option in known}
        unknown = sorted(key for key in given if key.lower() not in by_key and key.lower() not in _SPARKS)
        if unknown:
            listing = ", ".join(option.name for option in known)
            hints = "; ".join(filter(None, (_hint(key, known) for key in unknown)))
            raise UsageError(
                f"unknown option {', '.join(unknown)}; {f'{hints}; ' if hints else ''}options: {listing}"
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
    """Check the options of a read, which may be a batch read or a stream.

    Options for writing are allowed: a view in SQL may be only for INSERT.

    Args:
        given: options as Spark passes them.

    Raises:
        UsageError: an option is unknown, two options never belong to one read, or a value is not legal.
    """
    keys = {key.lower() for key in given} - _SPARKS
    for known in (READ_OPTIONS, STREAM_OPTIONS, WRITE_OPTIONS):
        if keys <= {option.name.lower() for option in known}:
            options = Options(given, known)
            break
    else:
        every = {option.name: option for option in (*READ_OPTIONS, *STREAM_OPTIONS, *WRITE_OPTIONS)}
        options = Options(given, list(every.values()))  # rejects options that are unknown to all
        homes = ", ".join(sorted(f"{name} ({_homes(name)})" for name in options.given if _homes(name)))
        raise UsageError(f"options of different ways to use a queue: {homes}")
    if known is not WRITE_OPTIONS:
        queues(options)
        subscriptions(options)
    connection(options)


def _homes(name: str) -> str:
    """Return the methods that accept an option; "" if all methods do, or none."""
    found = [
        home for home, known in _HOMES.items() if name.lower() in {option.name.lower() for option in known}
    ]
    return "" if len(found) == len(_HOMES) else " and ".join(found)


def _hint(key: str, known: Sequence[Option]) -> str:
    """Return a hint for an unknown option; "" for none."""
    if key.lower() in _RENAMED:
        return f"{key} is now called {_RENAMED[key.lower()]}"
    foreign = _FOREIGN.get(key.lower().removeprefix("kafka.").removeprefix("pulsar.client."))
    if foreign is not None:
        return f"for {key}: {foreign}"
    if homes := _homes(key):
        return f"{key} is an option of {homes}"
    names = {option.name.lower(): option.name for option in known}
    near = get_close_matches(key.lower(), names, n=1, cutoff=0.7)
    return f"did you mean {names[near[0]]}?" if near else ""


def connection(options: Options, **more: Any) -> ConnectionSettings:
    """Return the connection settings of the options."""
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
    """Return the sink settings for a DataFrame with these columns.

    Raises:
        UsageError: a column has no role.
    """
    queue_column = resolve(options["queueColumn"], names)
    if not options["queue"] and not queue_column and "queueColumn" not in options.given:
        hint = "" if options.given else f". {OF_A_TABLE}"
        raise UsageError(
            f"no target: name a queue (bmq://DOMAIN/QUEUE) in the option queue, or in a column "
            f"{options['queueColumn']!r}{hint}"
        )
    properties: tuple[str, ...] = options["propertyColumns"] or ()
    if (every := resolve("properties", names)) and every not in [resolve(name, names) for name in properties]:
        properties = (every, *properties)
    id_column, guid_column = options["idColumn"], options["guidColumn"]
    guid_mode = parse_guid_mode(options["guidMode"], has_id=bool(id_column), has_guid=bool(guid_column))
    columns = ColumnRoles(
        value=options["valueColumn"],
        properties=properties,
        queue="" if options["queue"] else options["queueColumn"],
        id=id_column,
        guid=guid_column if guid_mode is GuidMode.SOURCE else "",
        key=options["keyColumn"],
        not_before=options["notBeforeColumn"],
    ).resolved(names)
    useful = {*columns.named(), queue_column, resolve(guid_column, names)}
    if set(SOURCE_COLUMNS) - {"error"} <= set(names):  # a copied queue has all columns of a source
        useful.update(SOURCE_COLUMNS)
    unknown = [name for name in names if name not in useful]
    if unknown:
        raise UsageError(
            f"column {', '.join(map(repr, unknown))} cannot be written to a queue; possible columns: "
            f"{options['valueColumn']!r} (the payload), 'properties' (a map or struct), and "
            f"{options['queueColumn']!r} (the target). List the columns that become properties in the option "
            "propertyColumns, name a column with another role (guidColumn, idColumn, keyColumn, "
            "notBeforeColumn), and drop the other columns"
        )
    return SinkSettings(
        connection=connection(
            options, compression=options["compression"], idle_timeout=options["sessionIdleMs"]
        ),
        queue=options["queue"],
        columns=columns,
        guid_mode=guid_mode,
        write_name=options["writeName"],
        rate=options["rate"],
        on_invalid_row=options["onInvalidRow"],
        dead_letter_queue=options["deadLetterQueue"],
        max_retries=options["maxRetries"],
        retry_interval=options["retryIntervalMs"],
        ack_timeout=options["ackTimeoutMs"],
    )


def queues(options: Options) -> list[str]:
    """Return the URIs of the queues to read.

    Raises:
        UsageError, InvalidURI: no queue is given, or a value is not the URI of a queue.
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
    """Return the expressions of the subscriptions by name; "" for all messages.

    Raises:
        InvalidExpression, UsageError: an expression is not legal.
    """
    from bmq.subscriptions import subscriptions_for

    text: str = options["expression"]
    if not text.lstrip().startswith("{"):
        named: dict[str, Any] = {text: text}
    else:
        try:
            named = cast("dict[str, Any]", json.loads(text))
        except ValueError as error:
            raise UsageError(
                f"option expression must be a JSON object of names and expressions: {error}"
            ) from None
    for name, expression in named.items():
        if not isinstance(expression, str):
            raise UsageError(f"option expression: the expression of {name!r} must be a string")
        if expression:
            subscriptions_for(expression)
    return named


def source_settings(options: Options, max_unconfirmed: int) -> SourceSettings:
    """Return the settings of the source.

    Raises:
        InvalidExpression, InvalidURI, UsageError: an option is not legal, or excludes another option.
    """
    from bmq.spark.receiver import SourceSettings

    aside = options["onInvalidMessage"] is OnInvalidMessage.DEAD_LETTERS
    letters: str = options["deadLetterQueue"]
    if aside and not letters:
        raise UsageError("onInvalidMessage=deadLetters needs option deadLetterQueue, the URI of a queue")
    if letters and not aside:
        raise UsageError("option deadLetterQueue needs onInvalidMessage=deadLetters")
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
    """Return the settings and limits of ``spark.read``.

    Raises:
        InvalidExpression, InvalidURI, UsageError: an option is not legal, or excludes another option.
    """
    from bmq.spark.receiver import ReadLimits

    stored, confirm = bool(options["checkpointLocation"]), options["confirm"]
    if not stored and confirm not in (None, "never"):
        raise UsageError(
            f"confirm={confirm} needs option checkpointLocation, where the rows are stored before their "
            "messages are removed from the queue: Spark may read a partition several times"
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
    # A broker with a full window delivers more only below 80 % of the window, so the stored messages must fit
    # into 80 %: messages put aside are confirmed during the read.
    settings = source_settings(options, min(limits.max_messages * 5 // 4 + 1, INT32_MAX))
    if settings.dead_letters and not stored:
        raise UsageError(
            "onInvalidMessage=deadLetters removes messages from the queue, and therefore needs "
            "checkpointLocation"
        )
    return settings, limits


def log_place(options: Options) -> LogLocation:
    """Return the location of a stream's log.

    Raises:
        UsageError: the options do not contain a location.
    """
    from bmq.spark.log import LogLocation

    checkpoint: str = options["checkpointLocation"]
    name: str = options["sourceName"]
    path: str = options["logPath"]
    if not path:
        if not checkpoint:
            raise UsageError(
                "option checkpointLocation is missing: give readStream the checkpointLocation of "
                "writeStream, which keeps delivered messages until their batch is committed. Spark does not "
                "tell a source the setting spark.sql.streaming.checkpointLocation: with this setting the "
                "checkpoint is its folder and the queryName"
            )
        path = f"{checkpoint.rstrip('/')}/bmq" + (f"/{name}" if name else "")
    return LogLocation(
        path=path, checkpoint=checkpoint, source=name, strict=options["failOnDataLoss"] == "true"
    )
