# SPDX-License-Identifier: Apache-2.0
"""The options of ``format("bmq")``: declared once, parsed, and refused if unknown.

The names are those of docs/data/spark-options.md in Python's spelling; the page describes each option.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from bmq import _checks
from bmq._checks import INT32_MAX
from bmq._pace import checked_rate
from bmq.conventions import BUCKET, DESTINATION, DUE
from bmq.errors import UsageError
from bmq.spark.connection import ConnectionOptions, Seconds, Secret, SessionValues
from bmq.spark.guids import GuidMode
from bmq.spark.schema import SOURCE_COLUMNS, OnInvalidMessage, OnInvalidRow, check_queue, resolve
from bmq.wire.constants import Compression
from bmq.wire.uri import QueueUri

__all__ = [
    "OF_A_TABLE",
    "Expressions",
    "Names",
    "ReadConfirmation",
    "ReadOptions",
    "SourceOptions",
    "StreamOptions",
    "WriteOptions",
    "arguments",
    "check_reading",
    "parse",
    "write_options",
]

T = TypeVar("T", bound=ConnectionOptions)
E = TypeVar("E", bound=StrEnum)

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


#: For users of SQL, whose statements pass no options.
OF_A_TABLE = (
    "Spark does not pass the options of CREATE TABLE to sources in Python: use CREATE TEMPORARY VIEW ... "
    "USING bmq OPTIONS (...), or give the options in each statement: SELECT * FROM t WITH ('queue' = "
    "'...'), INSERT INTO t WITH ('queue' = '...')"
)
_NO_OFFSETS = "a queue has no offsets: a read has the messages that are in the queue"
_QUEUES = "the option queue names queues, and the option expression selects messages"
_SHARED = "the readers of a queue share its messages: for a copy for each, read a fanout queue with ?id=APPID"
_HEADERS = (
    "the option propertyColumns names columns that become properties; the column properties may be a map"
)
#: What users of Kafka's source and sink look for, in lower case: a name, or the beginning of names.
_OF_KAFKA = {
    "kafka.bootstrap.servers": "the address of the broker is the option broker",
    "kafka.group.id": _SHARED,
    "kafka.": "credentials and TLS have options, and bmq.NAME is a field of bmq.SessionOptions",
    "groupidprefix": _SHARED,
    "subscribe": _QUEUES,
    "assign": _QUEUES,
    "topic": "the option queue names the queue",
    "starting": _NO_OFFSETS,
    "ending": _NO_OFFSETS,
    "maxoffsetspertrigger": "did you mean maxMessagesPerTrigger?",
    "minoffsetspertrigger": "did you mean minMessagesPerTrigger?",
    "minpartitions": "did you mean numPartitions?",
    "includeheaders": f"a read has includeProperties; for a write, {_HEADERS}",
}
#: Spark also passes its own options of a streaming query to the sink.
_SPARKS = frozenset({"checkpointlocation", "queryname"})
#: Beginning of the options that are fields of :class:`bmq.SessionOptions`.
_SESSION = "bmq."
# These fields have options of their own, or belong to the retries of the first connect.
_OWN_SESSION_FIELDS = ("connect_timeout", "reconnect_timeout", "compression", "retry_first_connect")


#: Options of a write with another name as an argument.
_OPTION_OF = {"value": "value_column", "properties": "property_columns", "idle_timeout": "session_idle"}
#: Arguments that must be above 0.
_POSITIVE = ("connect_timeout", "reconnect_timeout", "ack_timeout")


class ReadConfirmation(StrEnum):
    """When a batch read confirms its messages."""

    EXPLICIT = "explicit"
    ON_STORE = "onStore"
    NEVER = "never"


class Duration(float):
    """A time in seconds, given in Spark's notation: ``15m``."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Parse an option."""
        match = re.fullmatch(r"(\d+)\s*(ms|s|m|min|h|d)", text.strip().lower())
        if match is None:
            raise ValueError("must be a number with ms, s, m, h or d, such as 30s")
        unit = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}[match[2]]
        return cls(int(match[1]) * unit)


class Size(int):
    """A number of bytes, given in Spark's notation: bytes, or ``64m``."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Size:
        """Parse an option."""
        match = re.fullmatch(r"(\d+)\s*([kmg]?)b?", text.strip().lower())
        if match is None:
            raise ValueError("must be bytes, or a number with k, m or g, such as 64m")
        size = int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]
        if not size:
            raise ValueError("at least 1")
        return cls(size)


class Names(tuple[str, ...]):
    """Names, separated by commas or as a JSON list."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Names:
        """Parse an option."""
        if not text.lstrip().startswith("["):
            return cls(name.strip() for name in text.split(",") if name.strip())
        names: Any = json.loads(text)
        if not all(isinstance(each, str) for each in names):
            raise ValueError("must be a list of names")
        return cls(names)


class Expressions(tuple[tuple[str, str], ...]):
    """Names and expressions: an expression, or a JSON object of several; "" for all messages."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Expressions:
        """Parse an option."""
        if not text.lstrip().startswith("{"):
            return cls([(text, text)])
        try:
            named: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise ValueError(f"must be a JSON object of names and expressions: {error}") from None
        for name, expression in named.items():
            if not isinstance(expression, str):
                raise UsageError(f"option expression: the expression of {name!r} must be a string")
        return cls(named.items())


class WriteOptions(ConnectionOptions, frozen=True, kw_only=True, rename="camel"):
    """Options of ``df.write`` and ``df.writeStream``, and of :func:`bmq.spark.write_partition`."""

    queue: str = ""
    value_column: str = "value"
    property_columns: Names = Names()
    queue_column: str = "queue"
    id_column: str = ""
    guid_column: str = ""
    key_column: str = ""
    not_before_column: str = ""
    guid_mode: GuidMode | None = None
    write_name: str = ""
    compression: str = "none"
    rate: Annotated[float, msgspec.Meta(gt=0)] | None = None
    on_invalid_row: OnInvalidRow = OnInvalidRow.FAIL
    dead_letter_queue: str = ""
    max_retries: Count = 5
    retry_interval: Seconds = msgspec.field(default=Seconds(0.2), name="retryIntervalMs")
    ack_timeout: Seconds = msgspec.field(default=Seconds(300), name="ackTimeoutMs")
    session_idle: Seconds = msgspec.field(default=Seconds(30), name="sessionIdleMs")

    @property
    def guids(self) -> GuidMode:
        """The source of the GUIDs."""
        if self.guid_mode is not None:
            return self.guid_mode
        if self.id_column:
            return GuidMode.ID
        return GuidMode.SOURCE if self.guid_column else GuidMode.CONTENT

    @property
    def columns(self) -> list[str]:
        """All columns with a role."""
        roles = (*self.property_columns, self.queue_column, self.id_column, self.guid_column)
        every = (self.value_column, *roles, self.key_column, self.not_before_column)
        return [name for name in every if name]

    @property
    def keeps_invalid_rows(self) -> bool:
        """Whether the write continues after a row that cannot be posted."""
        return self.on_invalid_row is not OnInvalidRow.FAIL

    @property
    def wire_compression(self) -> Compression:
        """The compression of posted payloads."""
        return Compression[self.compression.upper()]

    def resolved(self, names: Sequence[str]) -> WriteOptions:
        """Return the same options with the names of a DataFrame's columns; "" for a column without a role.

        Raises:
            UsageError: a column is missing.
        """
        given = {
            "value_column": self.value_column,
            "queue_column": "" if self.queue else self.queue_column,
            "id_column": self.id_column if self.guids is GuidMode.ID else "",
            "guid_column": self.guid_column if self.guids is GuidMode.SOURCE else "",
            "key_column": self.key_column,
            "not_before_column": self.not_before_column,
        }
        found: dict[str, Any] = {role: resolve(name, names) for role, name in given.items()}
        properties = Names(resolve(name, names) for name in self.property_columns)
        wanted = (*given.values(), *self.property_columns)
        missing = [name for name in wanted if name and not resolve(name, names)]
        if missing:
            raise UsageError(
                f"no column {', '.join(map(repr, missing))}; the DataFrame has: {', '.join(names) or 'none'}"
            )
        return msgspec.structs.replace(self, guid_mode=self.guids, property_columns=properties, **found)

    def check(self) -> None:
        """See :meth:`ConnectionOptions.check`."""
        super().check()
        if self.queue:
            check_queue(self.queue)
        elif not self.queue_column:
            raise UsageError("no target: name a queue (bmq://DOMAIN/QUEUE), or the column with the queue")
        if self.compression.upper() not in Compression.__members__:
            known = ", ".join(each.name.lower() for each in Compression)
            raise UsageError(f"compression must be one of {known}, not {self.compression!r}")
        taken = {BUCKET} if self.key_column else set[str]()
        taken |= {DUE, DESTINATION} if self.not_before_column else set[str]()
        if twice := taken.intersection(self.property_columns):
            raise UsageError(
                f"{', '.join(sorted(twice))}: both a property column and made from another column"
            )
        if (self.on_invalid_row is OnInvalidRow.DEAD_LETTERS) != bool(self.dead_letter_queue):
            raise UsageError("dead letters need both onInvalidRow=deadLetters and deadLetterQueue")
        if self.dead_letter_queue:
            check_queue(self.dead_letter_queue)
        if self.guids is GuidMode.ID and not self.id_column:
            raise UsageError("guidMode=id needs idColumn, the column with the id of each row")
        if self.guids is GuidMode.SOURCE and not self.guid_column:
            raise UsageError(
                "guidMode=source needs guidColumn, the column with the GUIDs of a queue that was read"
            )


class SourceOptions(ConnectionOptions, frozen=True, kw_only=True, rename="camel"):
    """Options of batch reads and of streams."""

    queue: Names = Names()
    expression: Expressions = Expressions([("", "")])
    consumer_priority: int = 0
    properties_schema: str = ""
    include_properties: bool = True
    on_invalid_message: OnInvalidMessage = OnInvalidMessage.ROW
    dead_letter_queue: str = ""
    checkpoint_location: str = ""
    num_partitions: Positive = 1

    @property
    @abstractmethod
    def max_unconfirmed(self) -> int:
        """Limit of delivered messages without a confirmation, for each subscription."""

    def described(self) -> dict[str, Any]:
        """Return the options that determine which messages are read, as JSON."""
        return {"queues": list(self.queue), "subscriptions": [list(each) for each in self.expression]}

    def check(self) -> None:
        """See :meth:`ConnectionOptions.check`."""
        from bmq.subscriptions import subscriptions_for

        super().check()
        if not self.queue:
            raise UsageError("option queue is missing: the URI of the queue to read, bmq://DOMAIN/QUEUE")
        for uri in self.queue:
            QueueUri.parse(uri)
            if self.queue.count(uri) > 1:
                raise UsageError(f"option queue names {uri} more than once")
        for _, expression in self.expression:
            if expression:
                subscriptions_for(expression)
        if self.properties_schema and not self.include_properties:
            raise UsageError("propertiesSchema describes the column that includeProperties=false leaves out")
        aside = self.on_invalid_message is OnInvalidMessage.DEAD_LETTERS
        if aside and not self.dead_letter_queue:
            raise UsageError("onInvalidMessage=deadLetters needs option deadLetterQueue, the URI of a queue")
        if self.dead_letter_queue:
            if not aside:
                raise UsageError("option deadLetterQueue needs onInvalidMessage=deadLetters")
            check_queue(self.dead_letter_queue)


class ReadOptions(SourceOptions, frozen=True, kw_only=True, rename="camel"):
    """Options of ``spark.read``."""

    max_messages: Positive = 1_000_000
    idle_timeout: Seconds = msgspec.field(default=Seconds(2), name="idleTimeoutMs")
    confirm: ReadConfirmation | None = None
    push_filters: bool = False

    @property
    def max_unconfirmed(self) -> int:
        """See :attr:`SourceOptions.max_unconfirmed`."""
        # A broker with a full window delivers more only below 80 % of the window, so the stored messages must
        # fit into 80 %: messages put aside are confirmed during the read.
        return min(self.max_messages * 5 // 4 + 1, INT32_MAX)

    def check(self) -> None:
        """See :meth:`ConnectionOptions.check`."""
        super().check()
        if self.checkpoint_location:
            if self.confirm is ReadConfirmation.NEVER:
                raise UsageError(
                    "confirm=never needs no checkpointLocation: rows stored there wait for bmq.spark.confirm"
                )
        elif self.confirm not in (None, ReadConfirmation.NEVER):
            raise UsageError(
                f"confirm={self.confirm} needs option checkpointLocation, where the rows are stored before "
                "their messages are removed from the queue: Spark may read a partition several times"
            )
        elif self.dead_letter_queue:
            raise UsageError(
                "onInvalidMessage=deadLetters removes messages from the queue, and therefore needs "
                "checkpointLocation"
            )


class StreamOptions(SourceOptions, frozen=True, kw_only=True, rename="camel"):
    """Options of ``spark.readStream``."""

    log_path: str = ""
    source_name: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,100}\Z")] = ""  # a folder's name
    fail_on_data_loss: bool = True
    max_messages_per_trigger: Positive = 10_000
    max_bytes_per_trigger: Size | None = None
    min_messages_per_trigger: Positive = 1
    max_trigger_delay: Duration = Duration(900)
    poll_timeout: Seconds = msgspec.field(default=Seconds(0.5), name="pollTimeoutMs")
    linger: Seconds = msgspec.field(default=Seconds(0.05), name="lingerMs")
    idle_timeout: Seconds = msgspec.field(default=Seconds(2), name="idleTimeoutMs")
    max_messages: Positive | None = None
    num_receivers: Positive = 1

    @property
    def max_unconfirmed(self) -> int:
        """See :attr:`SourceOptions.max_unconfirmed`."""
        # A batch is confirmed when Spark requests the next one; meanwhile the batch after that should arrive.
        return 3 * self.max_messages_per_trigger

    @property
    def log_folder(self) -> str:
        """The folder of the stream's log."""
        if self.log_path:
            return self.log_path
        folder = f"{self.checkpoint_location.rstrip('/')}/bmq"
        return f"{folder}/{self.source_name}" if self.source_name else folder

    def check(self) -> None:
        """See :meth:`ConnectionOptions.check`."""
        super().check()
        if self.min_messages_per_trigger > self.max_messages_per_trigger:
            raise UsageError(
                f"option minMessagesPerTrigger={self.min_messages_per_trigger}: no batch can reach this "
                f"number, because of maxMessagesPerTrigger={self.max_messages_per_trigger}"
            )


_HOMES: Final[dict[str, type[ConnectionOptions]]] = {
    "spark.read": ReadOptions,
    "spark.readStream": StreamOptions,
    "writing": WriteOptions,
}


def parse(kind: type[T], given: Mapping[str, str]) -> T:
    """Return the options of one DataFrame, checked.

    Args:
        kind: class of the options.
        given: options as Spark passes them, with keys in lower case.

    Raises:
        UsageError: an option is unknown, or its value is not legal.
    """
    check_names(given, _names(kind))
    fields = {field.encode_name.lower(): field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {"session": _session_values(given)}
    for key, text in given.items():
        field = fields.get(key.lower())
        if field is not None:
            values[field.name] = _value(field, text)
    options = kind(**values)
    try:
        options.check()
    except UsageError as error:
        if given:
            raise
        raise UsageError(f"{error}. {OF_A_TABLE}") from None
    return options


def arguments(given: Mapping[str, Any]) -> WriteOptions:
    """Return the options of a write, given as the arguments of :func:`bmq.spark.write_partition`.

    Raises:
        UsageError: an argument is not legal.
    """
    fields = {field.name: field.type for field in msgspec.structs.fields(WriteOptions)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        option = _OPTION_OF.get(name, name)
        values[option] = _argument(name, fields[option], value)
    options = WriteOptions(**values)
    options.check()
    return options


def _argument(name: str, kind: Any, value: Any) -> Any:
    if value is None and type(None) in get_args(kind):
        return None
    if kind is Seconds:
        return Seconds(_checks.seconds(name, value, positive=name in _POSITIVE))
    if kind is SessionValues:
        if not isinstance(value, Mapping):
            raise UsageError(
                f"session must be a dict of fields of SessionOptions, not {_checks.shown(value)}"
            )
        return SessionValues(cast("Mapping[str, Any]", value).items())
    if kind is Names:
        return Names(_checks.texts(name, [value] if isinstance(value, str) else value))
    if kind is Secret:
        try:
            return Secret(_checks.text(name, value))
        except UsageError:  # has the value
            raise UsageError(f"{name} must be a str without NUL and lone surrogates") from None
    if name == "rate":
        return checked_rate(value)
    if name == "max_retries":
        return _checks.integer(name, value)
    text = _checks.text(name, value)
    enumeration = _enumeration(kind)
    return text if enumeration is None else choice(enumeration, _camel(name), text)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _enumeration(kind: Any) -> type[StrEnum] | None:
    """Return the enumeration of a field's type, which may be optional."""
    for each in (kind, *get_args(kind)):
        if isinstance(each, type) and issubclass(each, StrEnum):
            return each
    return None


def _value(field: msgspec.structs.FieldInfo, text: str) -> Any:
    enumeration = _enumeration(field.type)
    if enumeration is not None:
        return choice(enumeration, field.encode_name, text)
    try:
        return msgspec.convert(text, field.type, strict=False, dec_hook=_custom)
    except (ValueError, msgspec.ValidationError) as error:
        raise UsageError(f"option {field.encode_name}={text!r}: {error}") from None


def _session_values(given: Mapping[str, str]) -> SessionValues:
    """Return the options ``bmq.NAME``, in any letter case, as fields of :class:`bmq.SessionOptions`."""
    passed = {key: text for key, text in given.items() if key.lower().startswith(_SESSION)}
    if not passed:
        return SessionValues()
    from bmq.client.options import SessionFields

    kinds: dict[str, Any] = get_type_hints(SessionFields)
    fields = {
        name.replace("_", ""): name
        for name, kind in kinds.items()
        if name not in _OWN_SESSION_FIELDS and get_origin(kind) is not Callable
    }
    values: dict[str, Any] = {}
    for key, text in passed.items():
        name = fields.get(key.lower().removeprefix(_SESSION).replace("_", ""))
        if name is None:
            raise UsageError(
                f"unknown option {key}; {_SESSION}NAME is a field of bmq.SessionOptions, with NAME one of "
                f"{', '.join(fields.values())}"
            )
        try:
            values[name] = msgspec.convert(text, kinds[name], strict=False)
        except msgspec.ValidationError as error:
            raise UsageError(f"option {key}={text!r}: {error}") from None
    return SessionValues(sorted(values.items()))


def _custom(kind: Any, text: str) -> Any:
    return kind.parse(text) if hasattr(kind, "parse") else kind(text)


def choice(kind: type[E], name: str, text: str) -> E:
    """Return the value of an enumeration, in any letter case.

    Raises:
        UsageError: the value does not exist.
    """
    for each in kind:
        if text.lower() == each.lower():
            return each
    raise UsageError(f"{name} must be one of {', '.join(kind)}, not {text!r}")


def _names(kind: type[ConnectionOptions]) -> dict[str, str]:
    """Return the names of all options of a class, by their lower case."""
    return {each.encode_name.lower(): each.encode_name for each in msgspec.structs.fields(kind)}


def check_names(given: Iterable[str], known: Mapping[str, str]) -> None:
    """Check that options exist.

    Raises:
        UsageError: an option is unknown; the error has the probable intention.
    """
    keys = {key: key.lower() for key in given}
    unknown = sorted(key for key, low in keys.items() if low not in known and not _is_shared(low))
    if unknown:
        hints = {key: _hint(key.lower(), known) for key in unknown}
        told = "".join(
            f"{key}: {hint}; " if len(hints) > 1 else f"{hint}; " for key, hint in hints.items() if hint
        )
        raise UsageError(f"unknown option {', '.join(unknown)}; {told}options: {', '.join(known.values())}")


def _is_shared(key: str) -> bool:
    """Whether an option, in lower case, is Spark's own or one of the session's."""
    return key in _SPARKS or key.startswith(_SESSION)


def _hint(key: str, known: Mapping[str, str]) -> str:
    """Return a hint for an unknown option; "" for none."""
    if name := next((each for each in _OF_KAFKA if key.startswith(each)), None):
        return _OF_KAFKA[name]
    if homes := _homes(key):
        return f"{key} is an option of {homes}"
    near = get_close_matches(key, known, n=1, cutoff=0.7)
    return f"did you mean {known[near[0]]}?" if near else ""


def _homes(key: str) -> str:
    """Return what accepts an option; "" if nothing does."""
    return " and ".join(home for home, kind in _HOMES.items() if key in _names(kind))


def check_reading(given: Mapping[str, str]) -> ConnectionOptions:
    """Check and return the options of a read, which may be a batch read or a stream.

    Options for writing are allowed: a view in SQL may be only for INSERT.

    Raises:
        UsageError: an option is unknown, two options never belong to one read, or a value is not legal.
    """
    keys = {key.lower() for key in given if not _is_shared(key.lower())}
    for kind in _HOMES.values():
        if keys <= _names(kind).keys():
            return parse(kind, given)
    every = {key: name for kind in _HOMES.values() for key, name in _names(kind).items()}
    check_names(given, every)
    some = [key for key in sorted(keys) if not all(key in _names(kind) for kind in _HOMES.values())]
    homes = ", ".join(f"{every[key]} ({_homes(key)})" for key in some)
    raise UsageError(f"options of different ways to use a queue: {homes}")


def write_options(given: Mapping[str, str], names: Sequence[str]) -> WriteOptions:
    """Return the options of a write, for a DataFrame with these columns.

    Raises:
        UsageError: an option is not legal, or a column is missing or has no role.
    """
    options = parse(WriteOptions, given)
    queue_column = resolve(options.queue_column, names)
    if not options.queue and not queue_column and "queuecolumn" not in {key.lower() for key in given}:
        hint = "" if given else f". {OF_A_TABLE}"
        raise UsageError(
            f"no target: name a queue (bmq://DOMAIN/QUEUE) in the option queue, or in a column "
            f"{options.queue_column!r}{hint}"
        )
    properties = options.property_columns
    if (every := resolve("properties", names)) and every not in [resolve(name, names) for name in properties]:
        properties = Names((every, *properties))
    found = msgspec.structs.replace(options, property_columns=properties).resolved(names)
    identities = [resolve(name, names) for name in (options.guid_column, options.id_column)]
    useful = {*found.columns, queue_column, *identities}
    if set(SOURCE_COLUMNS) - {"error"} <= set(names):  # a copied queue has all columns of a source
        useful.update(SOURCE_COLUMNS)
    unknown = [name for name in names if name not in useful]
    if unknown:
        raise UsageError(
            f"column {', '.join(map(repr, unknown))} cannot be written to a queue; possible columns: "
            f"{options.value_column!r} (the payload), 'properties' (a map or struct), and "
            f"{options.queue_column!r} (the target). "
            "List the columns that become properties in the option propertyColumns, name a column with "
            "another role (guidColumn, idColumn, keyColumn, notBeforeColumn), and drop the other columns"
        )
    return found
