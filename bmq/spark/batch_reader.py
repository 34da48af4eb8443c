# SPDX-License-Identifier: Apache-2.0
"""``spark.read.format("bmq")``: the content of a queue, as rows that Spark can read any number of times.

Spark may run a task twice, run two attempts concurrently, or discard a result. So tasks receive nothing.
Messages are received while the read is planned, and written to a log for all tasks. The messages stay
unconfirmed, and return to their queue, until :func:`bmq.spark.confirm` names them. An unconfirmed read is
read again, with exactly the same rows.
"""

from __future__ import annotations

import operator
import os
import re
import shutil
import socket
import tempfile
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec
import pyspark.sql.datasource
from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bmq import _checks
from bmq._logging import Log
from bmq.arrow.decoding import RecordBatch, pa
from bmq.client.queue import Queue
from bmq.errors import InvalidExpression, StateError, UsageError
from bmq.spark.connection import run
from bmq.spark.log import (
    BatchLog,
    Guids,
    LoggedBatch,
    LogPartition,
    RowMaker,
    cut,
    guid_keys,
    read_partition,
)
from bmq.spark.options import Expressions, ReadConfirmation, ReadOptions, parse
from bmq.spark.receiver import (
    DeadLetterWriter,
    ReceivedMessages,
    SourceReceiver,
    confirm_guids,
    look_for_others,
    new_messages,
)
from bmq.subscriptions import Expression, Filter, Operand, P

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import Filter as SparkFilter

__all__ = [
    "READS",
    "Application",
    "BatchReader",
    "Drain",
    "FilteredReader",
    "Reads",
    "application_of_planner",
    "confirm",
]

# Maximum depth of a planning process below the driver's Java.
_DEPTH = 8


logger = Log("bmq.spark")
#: Folder of the reads within a checkpoint.
READS = "bmq-reads"
_STATE = "reads.json"
_ROWS = 10_000
# Seconds to wait for another read that is being planned.
_PATIENCE = 600.0
# Number of confirmed reads whose GUIDs are remembered: a confirmation can be lost with the connection.
_REMEMBERED = 8
_GONE_TEMPORARY = (
    "a read without the option checkpointLocation stores its rows in a folder of the driver's machine, "
    "which other machines cannot reach, and which is removed at the end of the application. On a cluster "
    "set checkpointLocation to a folder that all machines can reach"
)
_GONE = (
    "this read was confirmed, and the next read removed its rows; or this machine cannot reach the folder "
    "of option checkpointLocation"
)


_INTEGERS = {"byte": 8, "short": 16, "integer": 32, "long": 64}

_COMPARISONS = {
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
}

# A string column shows numbers and booleans as text, while the broker compares only strings with strings.
_TEXT_OF_ANOTHER_TYPE = re.compile(r"-?[0-9]+|true|false")


class Application(msgspec.Struct, frozen=True):
    """A Spark application.

    Attributes:
        host: machine of the driver.
        process: process id of the driver's Java.
        started: start time of the Java process, in ticks since the machine's boot.
    """

    host: str
    process: int
    started: int

    @classmethod
    def of(cls, process: int) -> Application:
        """Return the application of a process on this machine."""
        return cls(socket.gethostname(), process, _started(process))

    @property
    def runs(self) -> bool:
        """Whether the process runs on the local machine; False for applications of a different machine."""
        return self.host == socket.gethostname() and 0 <= self.started == _started(self.process)


def application_of_planner() -> Application | None:
    """Return the application whose read this process plans; None without a Java process among the ancestors.

    Spark plans a read in a child of a child of the driver's Java.
    """
    process = os.getppid()
    for _ in range(_DEPTH):
        stat = _stat(process)
        if stat is None:
            break
        command, fields = stat
        if command == "java":
            return Application.of(process)
        process = int(fields[1])
    return None


def application_of_program() -> Application | None:
    """Return the application of this program; None without a Spark context, as with Spark Connect."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    if context is None or _stat(os.getpid()) is None:  # only Linux provides the start time of a process
        return None
    return Application.of(int(context._jvm.java.lang.ProcessHandle.current().pid()))


def alive(process: int) -> bool:
    """Whether a process exists on this machine; True on systems where the test would send a signal."""
    if os.name == "nt":  # signal 0 is Ctrl-C on Windows
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _stat(process: int) -> tuple[str, list[str]] | None:
    """Return the command of a process and the following fields of its Linux stat file."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        return text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 1 :].split()
    except (OSError, ValueError):
        return None


def _started(process: int) -> int:
    """Return the start time of a process; -1 if the process has ended, or the time is unknown."""
    stat = _stat(process)
    return -1 if stat is None or stat[1][0] in "ZX" else int(stat[1][19])


class _State(msgspec.Struct):
    """State of the reads of a checkpoint.

    Attributes:
        number: number of the newest read; 0 before the first.
        status: whether the newest read is confirmed.
        stored: whether its messages were confirmed as soon as they were stored.
        what: queues and subscriptions of the read.
        parts: number of files with GUIDs of confirmed rows.
        told: whether the broker has certainly received all confirmations.
        reader: application that read the rows last; None if unknown.
    """

    number: int = 0
    status: Literal["open", "confirmed"] = "confirmed"
    stored: bool = False
    what: dict[str, Any] | None = None
    parts: int = 0
    told: bool = False
    reader: Application | None = None

    @property
    def confirmed_files(self) -> tuple[str, ...]:
        return tuple(f"confirmed-{self.number:06d}-{part:04d}.arrow" for part in range(self.parts))


class Reads:
    """The reads of one checkpoint.

    Args:
        checkpoint: option ``checkpointLocation``.
    """

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self._root = f"{checkpoint.rstrip('/')}/{READS}"
        self._log = BatchLog(self._root)

    def plan(self, options: ReadOptions) -> list[LogPartition]:
        """Return the partitions of the unconfirmed read, or of a new read.

        Raises:
            ConnectionFailed, OpenQueueError, ConfigureQueueError, RequestTimeout: no messages can be
            received.
            StateError: the unconfirmed read belongs to other queues or subscriptions, or to another running
                application; or the folder is in use.
            OSError: the messages cannot be stored.
        """
        here = application_of_planner()
        self._log.acquire(_PATIENCE)
        try:
            self._log.clear()
            state = self._state()
            if state.status == "open":
                self._check(state, options)
                self._take_over(state, here)
                batches = self._rows(state.number).batches()
                logger.warning(
                    "read %d of %s is not confirmed: the same %d messages are read again",
                    state.number,
                    self._checkpoint,
                    sum(each.end - each.start for each in batches),
                )
                return list(cut(self._root, batches, options.num_partitions, state.confirmed_files))
            batches = self._read_on(state, options, here)
            return list(cut(self._root, batches, options.num_partitions))
        finally:
            self._log.release()

    def confirm(self, options: ReadOptions, guids: Iterable[str] | None) -> int:
        """Confirm the newest read, or some of its rows; return the number of rows.

        Raises:
            ConnectionFailed, OpenQueueError, RequestTimeout: the confirmations cannot be sent; the next call,
                or the next read, sends them.
            StateError: the unconfirmed read belongs to other queues; or another application has read it, and
                no rows are named; or the folder is in use.
        """
        self._log.acquire(_PATIENCE)
        try:
            state = self._state()
            if not state.number:
                return 0
            count = 0
            if state.status == "open":
                self._check(state, options, queues_alone=True)
                if guids is None:
                    self._check_reader(state)
                count = self._note_confirmed(state, None if guids is None else set(map(bytes.fromhex, guids)))
            known = {} if state.told else self._log.read_guids(state.confirmed_files)
            if any(known.values()):
                run(confirm_guids(options, known))
            return count
        finally:
            self._log.release()

    # state

    def _state(self) -> _State:
        noted = self._log.noted(_STATE)
        return _State() if noted is None else msgspec.convert(noted, _State)

    def _note(self, state: _State) -> None:
        self._log.note(_STATE, msgspec.to_builtins(state))

    def _rows(self, number: int) -> BatchLog:
        return BatchLog(f"{self._root}/{number:06d}")

    def _check(self, state: _State, options: ReadOptions, *, queues_alone: bool = False) -> None:
        now, then = options.described(), state.what or {}
        # The options do not contain Spark's filters that became subscriptions.
        if now["queues"] != then.get("queues") or (not queues_alone and now != then):
            # The folder of a stored read is the only place of its messages.
            note = f"{self._root}/{_STATE}"
            give_up = "" if state.stored else f", or delete {note} to leave its messages in the queue"
            raise StateError(
                f"read {state.number} of {self._checkpoint} has other queues or subscriptions, and is not "
                f"confirmed: confirm the read with its original options (bmq.spark.confirm){give_up}"
            )

    def _take_over(self, state: _State, here: Application | None) -> None:
        """Record the reading application. Two applications at a time would write the same rows."""
        reader = state.reader
        if reader == here:
            return
        if reader is not None and reader.runs:
            raise StateError(
                f"read {state.number} of {self._checkpoint} belongs to another running application "
                f"(process {reader.process}), which has not confirmed the read: both would write the same "
                "rows. Wait until that application has confirmed the read or has ended, or give each "
                "application a checkpointLocation of its own"
            )
        state.reader = here
        self._note(state)

    def _check_reader(self, state: _State) -> None:
        """Check that the confirming program is not an application other than the last reader."""
        here = application_of_program()
        if here is not None and state.reader is not None and here != state.reader:
            raise StateError(
                f"read {state.number} of {self._checkpoint} was read by another application (process "
                f"{state.reader.process} on {state.reader.host}), which has not confirmed the read, and "
                "this application has not read the rows since. Load and write the rows again before "
                "confirm, or pass the written rows: bmq.spark.confirm(options, rows)"
            )

    # a new read

    def _read_on(self, state: _State, options: ReadOptions, here: Application | None) -> list[LoggedBatch]:
        self._forget(state)
        known = self._log.read_guids(self._log.files("confirmed-"))
        rows = self._rows(state.number + 1)
        rows.fs.create_dir(rows.root, recursive=True)
        for each in rows.batches():  # left by a driver that died before it could record the read
            rows.remove(each)
        rows.clear()
        drain = Drain(options, rows, known)
        try:
            batches = run(drain.run())
            if batches:
                on_store = options.confirm is ReadConfirmation.ON_STORE
                state = _State(state.number + 1, "open", on_store, options.described(), reader=here)
                self._note(state)
                if on_store:
                    state.told = run(drain.confirm())
                    self._note(state)
        finally:
            run(drain.close())
        if batches:
            count = sum(each.end - each.start for each in batches)
            logger.info("read %d of %s: %d messages", state.number, self._checkpoint, count)
        return batches

    def _forget(self, state: _State) -> None:
        """Remove the rows of confirmed reads, and old GUIDs."""
        for number in range(max(1, state.number - 1), state.number + 1):
            self._rows(number).drop()
        for name in self._log.files("confirmed-"):
            if int(name.split("-")[1]) <= state.number - _REMEMBERED:
                self._log.delete(name)

    # confirming

    def _note_confirmed(self, state: _State, wanted: set[bytes] | None) -> int:
        """Record durably which rows are confirmed, before the confirmations are sent."""
        name = f"confirmed-{state.number:06d}-{state.parts:04d}.arrow"
        before = self._log.read_guids(state.confirmed_files)
        rows = self._rows(state.number)
        confirmed: dict[str, list[bytes]] = {}
        count = left = 0
        for batch in rows.batches():
            for uri, keys in rows.guids(batch.name):
                gone = before.get(uri, set[bytes]())
                some = [key for key in keys if key not in gone] if gone else keys
                chosen = some if wanted is None else [key for key in some if key in wanted]
                confirmed.setdefault(uri, []).extend(chosen)
                count += len(chosen)
                left += len(some) - len(chosen)
        if count:
            self._log.write_guids(name, confirmed)
            state.parts += 1
        if not left:
            state.status = "confirmed"
        self._note(state)
        return count


class Drain:
    """Receives the content of a queue, and stores it.

    Args:
        options: options of the read.
        log: destination of the rows.
        known: GUIDs confirmed earlier, by the URI of their queue, which are confirmed once more.
    """

    def __init__(self, options: ReadOptions, log: BatchLog, known: Guids) -> None:
        self._options = options
        self._log = log
        # Messages that have a row, or must not have one; the latter are confirmed when they arrive again.
        self._known: Guids = {uri: set(guids) for uri, guids in known.items()}
        self._settled = known
        # The stored messages in the order of arrival, by their queue: a broker is slower in any other order.
        self._stored: list[tuple[Queue, list[bytes]]] = []
        self._receiver = SourceReceiver(options)
        self._aside = DeadLetterWriter(options)

    async def run(self) -> list[LoggedBatch]:
        """Receive until a limit is reached, or no more messages arrive; return the stored batches.

        Raises:
            ConnectionFailed, OpenQueueError, ConfigureQueueError, RequestTimeout: no messages can be
            received.
            StateError: the read could stop other readers.
            QueueClosed, SessionClosed: the connection is permanently lost.
            OSError: the messages cannot be stored.
        """
        options = self._options
        await look_for_others(options, returns=options.confirm is not ReadConfirmation.ON_STORE)
        await self._receiver.open(silence=options.idle_timeout)
        file = self._log.begin(0, self._receiver.schema)
        try:
            while file.rows < options.max_messages:
                wanted = min(_ROWS, options.max_messages - file.rows)
                arrived = await self._receiver.take(wanted, options.idle_timeout, drains=True)
                if not arrived:
                    break
                for each in arrived:
                    rows = await self._new(each)
                    if rows.num_rows:
                        file.write([rows])
            if file.rows:
                return [file.finish()]
        except BaseException:
            file.abandon()
            raise
        file.abandon()
        return []

    async def _new(self, arrived: ReceivedMessages) -> RecordBatch:
        """Return the rows to store: without repeated messages, and without those that are put aside.

        Messages are repeated after a lost connection, or after the loss of a cluster's primary.
        """
        uri, guids = arrived.queue.uri, guid_keys(arrived.batch)
        fresh = new_messages(self._known.setdefault(uri, set()), guids)
        bad = await self._aside.take(arrived, fresh)
        if fresh is None and not bad:
            self._stored.append((arrived.queue, guids))
            return arrived.batch
        settled = self._settled.setdefault(uri, set())
        settled.update(guids[place] for place in bad)
        self._receiver.confirm(arrived.queue, settled.intersection(guids))
        places = [place for place in (range(len(guids)) if fresh is None else fresh) if place not in bad]
        self._stored.append((arrived.queue, [guids[place] for place in places]))
        return arrived.batch.take(pa.array(places, pa.int64()))

    async def confirm(self) -> bool:
        """Confirm all stored messages; return whether the broker has certainly received the confirmations."""
        for queue, guids in self._stored:
            self._receiver.confirm(queue, guids)
        return await self._receiver.settle()

    async def close(self) -> None:
        """Send confirmations, return unconfirmed messages to the queue, and disconnect."""
        await self._receiver.close()
        await self._aside.close()


def read_unconfirmed(options: ReadOptions) -> Sequence[LogPartition]:
    """Store the content of a queue in a folder on this machine, and leave the messages in the queue.

    A later read removes the folder, once the folder's application has ended. Reads that an application plans
    at the same time, in several threads, wait for each other: each has all messages.

    Raises:
        ConnectionFailed, OpenQueueError, ConfigureQueueError, RequestTimeout: no messages can be received.
        OSError: the messages cannot be stored.
        StateError: the common folder of such reads belongs to another user.
    """
    folder = _temporary_folder()
    application = folder.name.partition("-")[0]
    queues = uuid.uuid5(uuid.NAMESPACE_URL, ",".join(options.queue))
    turn = BatchLog(str(folder.with_name(f"{application}-{queues.hex}")))
    turn.acquire(_PATIENCE)
    drain = Drain(options, BatchLog(str(folder)), {})
    try:
        batches = run(drain.run())
    finally:
        run(drain.close())
        turn.release()
    count = sum(each.end - each.start for each in batches)
    logger.warning(
        "%d messages were read and stay in the queue, unconfirmed. To remove messages, set option "
        "checkpointLocation, and call bmq.spark.confirm after storing the rows",
        count,
    )
    if not batches:
        shutil.rmtree(folder, ignore_errors=True)
    return list(cut(str(folder), batches, options.num_partitions))


def _temporary_folder() -> Path:
    """Create a folder for this user alone, and remove the folders of ended applications."""
    user = 0
    if hasattr(os, "getuid"):
        user = os.getuid()
    root = Path(tempfile.gettempdir()) / f"bmq-spark-{user}"
    root.mkdir(mode=0o700, exist_ok=True)
    about = root.lstat()
    if hasattr(os, "getuid") and (about.st_uid != user or about.st_mode & 0o077 or root.is_symlink()):
        raise StateError(f"{root} must be a folder that only this user can change: remove the folder")
    for old in root.iterdir():
        made_for = old.name.partition("-")[0]
        if made_for.isdigit() and not alive(int(made_for)):
            shutil.rmtree(old, ignore_errors=True)
    application = application_of_planner()
    owner = os.getppid() if application is None else application.process
    folder = root / f"{owner}-{uuid.uuid4().hex}"
    folder.mkdir(mode=0o700)
    return folder


class BatchReader(DataSourceReader):
    """Stores the content of a queue while the read is planned; tasks read the stored rows.

    Args:
        options: options of the read.
        schema: columns.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        RowMaker(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Receive and store the content of the queue; return the stored partitions.

        Raises:
            Error: as for :meth:`Reads.plan`.
        """
        options = self._options
        if options.checkpoint_location:
            planned: Sequence[InputPartition] = Reads(options.checkpoint_location).plan(options)
        else:
            planned = read_unconfirmed(options)
        return planned or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read stored rows: the same rows in each attempt."""
        if isinstance(partition, LogPartition):
            options = self._options
            gone = _GONE if options.checkpoint_location else _GONE_TEMPORARY
            yield from read_partition(partition, self._schema, options.on_invalid_message, gone)


def confirm(options: Mapping[str, Any], rows: DataFrame | None = None) -> int:
    """Remove the messages of a read from their queue, once the rows are stored at their destination.

    ::

        options = {"broker": ..., "queue": ..., "checkpointLocation": "/data/checkpoints/nightly"}
        orders = spark.read.format("bmq").options(**options).load()
        orders.write.mode("overwrite").parquet("/data/orders/today")
        bmq.spark.confirm(options)

    Confirms the unconfirmed read of this ``checkpointLocation``: all its rows, including rows removed by a
    filter or ``limit``. With ``rows``, only the listed GUIDs are confirmed, and the other messages are part
    of the next read.

    The confirmation is recorded in the folder of ``checkpointLocation`` before it is sent to the broker. So
    after any crash, the rows of a confirmed read are never read again. A confirmation that did not reach the
    broker is sent by the next call, or the next read.

    Args:
        options: options of the ``spark.read`` call.
        rows: DataFrame with a column ``guid``: the rows that were read, or written.

    Returns:
        Number of messages confirmed by this call; 0 if no read was unconfirmed.

    Raises:
        UsageError: an option is not legal, ``checkpointLocation`` is missing, or ``rows`` has no column
            ``guid``.
        StateError: the read belongs to other queues.
        ConnectionFailed: the broker cannot be reached; repeat the call.
        OpenQueueError, RequestTimeout: the queue cannot be opened; repeat the call.
    """
    given = {
        _checks.text("an option", name): _as_text(name, each)
        for name, each in _checks.mapping("options", options).items()
    }
    parsed = parse(ReadOptions, given)
    if not parsed.checkpoint_location:
        raise UsageError(
            "option checkpointLocation is missing: a read without this option is never confirmed, and its "
            "messages stay in the queue"
        )
    guids: list[str] | None = None
    if rows is not None:
        if "guid" not in _columns(rows):
            raise UsageError(
                "rows must be a DataFrame with the messages to confirm, identified by a column guid"
            )
        guids = [str(each["guid"]) for each in rows.select("guid").collect()]
    return Reads(parsed.checkpoint_location).confirm(parsed, guids)


def _as_text(name: str, value: object) -> str:
    """Return an option's value as text, in the form used by ``spark.read.options``."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(_checks.integer(f"option {name}", value, -(1 << 63)))
    if isinstance(value, float):
        return str(float(value))
    if isinstance(value, os.PathLike):
        value = os.fspath(cast("os.PathLike[str]", value))
    return _checks.text(f"option {name}", value)


def _columns(rows: object) -> list[str]:
    columns = getattr(rows, "columns", None)
    if not isinstance(columns, list | tuple):
        return []
    return [str(each) for each in cast("Sequence[object]", columns)]


# filters

# A filter is translated only if the broker selects exactly the rows that Spark would keep. A null is an
# absent property, or a property with another type than the column. If it matters, Spark keeps the filter.


class FilteredReader(BatchReader):
    """Reads the messages that match Spark's filters.

    Raises:
        UsageError: this pyspark does not push filters.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if not hasattr(pyspark.sql.datasource, "EqualTo"):
            raise UsageError(
                f"option pushFilters needs pyspark 4.1 or newer, and this is {pyspark.__version__}: put "
                "the condition into the option expression"
            )
        super().__init__(options, schema)

    def pushFilters(self, filters: list[SparkFilter]) -> Iterable[SparkFilter]:
        """Accept the filters that the broker evaluates exactly like Spark; return the remaining filters."""
        left: list[SparkFilter] = []
        compared: set[Any] = set()
        # Spark adds IS NOT NULL to each comparison. A comparison alone already excludes nulls.
        for each in sorted(filters, key=lambda each: type(each).__name__ == "IsNotNull"):
            attribute = getattr(each, "attribute", None) or getattr(
                getattr(each, "child", None), "attribute", None
            )
            if type(each).__name__ == "IsNotNull" and attribute in compared:
                continue
            condition = translated(each, self._schema)
            if condition is not None and self._narrow(condition):
                compared.add(attribute)
            else:
                left.append(each)
        return left

    def _narrow(self, condition: Filter) -> bool:
        """Add a condition to all subscriptions, unless one would exceed the broker's limits."""
        subscriptions: list[tuple[str, str]] = []
        for name, expression in self._options.expression:
            both = f"{_operand(expression)} && {_operand(str(condition))}" if expression else str(condition)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # conditions may exclude each other
                    Expression(both)
            except InvalidExpression:
                return False
            subscriptions.append((name, both))
        self._options = replace(self._options, expression=Expressions(subscriptions))
        return True


def _operand(expression: str) -> str:
    """Return an expression as an operand of ``&&``."""
    return f"({expression})" if "||" in expression else expression


def translated(condition: SparkFilter, schema: StructType) -> Filter | None:
    """Return a filter that selects exactly the messages that a Spark filter keeps; None if impossible.

    Args:
        condition: Spark's filter.
        schema: columns of the source.
    """
    child: Any = getattr(condition, "child", None)
    negated = child is not None
    given: Any = child if negated else condition
    kind, attribute = type(given).__name__, given.attribute
    column = _column(attribute, schema)
    if column is None:
        return None
    try:
        return _translated(kind, P(attribute[1]), column, getattr(given, "value", None), negated)
    except UsageError:  # a name or value that is impossible in an expression
        return None


def _column(attribute: Sequence[str], schema: StructType) -> str | None:
    """Return the type of a property's column; None for a column without a property."""
    if len(attribute) != 2 or attribute[0] != "properties" or "properties" not in schema.fieldNames():
        return None
    properties = schema["properties"].dataType
    if not isinstance(properties, StructType) or attribute[1] not in properties.fieldNames():
        return None
    return properties[attribute[1]].dataType.typeName()


def _translated(kind: str, name: Operand, column: str, value: Any, negated: bool) -> Filter | None:
    if column in _INTEGERS:
        return _integers(kind, name, _INTEGERS[column], value, negated)
    if kind == "EqualNullSafe" and not negated:
        kind = "EqualTo"
    if column == "boolean" and kind == "EqualTo" and isinstance(value, bool):
        return name == (value is not negated)
    if column == "string" and not negated and kind in ("EqualTo", "In"):
        values = _without_null(kind, value)
        if values and all(type(each) is str and not _TEXT_OF_ANOTHER_TYPE.fullmatch(each) for each in values):
            return name.one_of(*values)
    return None


def _without_null(kind: str, value: Any) -> list[Any]:
    values: Any = value if kind == "In" else [value]
    return [each for each in values if each is not None]


def _integers(kind: str, name: Operand, bits: int, value: Any, negated: bool) -> Filter | None:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    with_null = kind == "In" and None in value
    if kind == "IsNotNull" and not negated:
        return _within(name >= low, name, bits, low=False)
    if kind in _COMPARISONS and type(value) is int and not negated:
        return _within(
            _COMPARISONS[kind](name, value), name, bits, low="Less" in kind, high="Greater" in kind
        )
    if kind not in ("EqualTo", "In", "EqualNullSafe") or (kind == "EqualNullSafe" and negated):
        return None
    values = _without_null(kind, value)
    if not values or not all(type(each) is int and low <= each <= high for each in values):
        return None
    if not negated:
        return name.one_of(*values)
    if with_null:
        return None  # NOT IN (..., NULL) keeps no rows
    apart = name != values[0]
    for each in values[1:]:
        apart = apart & (name != each)
    return _within(apart, name, bits)


def _within(condition: Filter, name: Operand, bits: int, *, low: bool = True, high: bool = True) -> Filter:
    """Add the range of a column's type: numbers outside the range are null in the column."""
    if bits == 64:
        return condition
    if low:
        condition = condition & (name >= -(1 << bits - 1))
    if high:
        condition = condition & (name <= (1 << bits - 1) - 1)
    return condition
