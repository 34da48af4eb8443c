# SPDX-License-Identifier: Apache-2.0
"""Batch reads: rows are stored before any task sees them, and kept until the read is confirmed.

The problem: Spark may run a task twice, run two attempts concurrently, or discard a result. So tasks receive
nothing. Messages are received while the read is planned, and written to a log for all tasks. The messages
stay unconfirmed, and return to their queue, until :func:`bmq.spark.confirm` names them. An unconfirmed read
is read again, with exactly the same rows.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bmq._logging import Log
from bmq.errors import StateError
from bmq.spark._application import Application, alive, application_of_planner, application_of_program
from bmq.spark._arrow import RecordBatch, pa
from bmq.spark._aside import PutAside
from bmq.spark._ledger import Arrivals, GuidSets
from bmq.spark._log import BatchLog, LoggedBatch
from bmq.spark._log_partition import LogPartition, cut
from bmq.spark._portal import portal
from bmq.spark._raw import guid_array, guid_keys, texts_of
from bmq.spark._receiving import Arrived, SourceReceiver, SourceSettings, confirm_guids
from bmq.spark._state import described_settings, look_for_others

__all__ = ["READS", "ReadLimits", "Reads", "read_unconfirmed"]

logger = Log("bmq.spark")

#: Folder of the reads within a checkpoint.
READS = "bmq-reads"
_STATE = "reads.json"
_ROWS = 10_000
# Seconds to wait for another read that is being planned.
_PATIENCE = 600.0
# Number of confirmed reads whose GUIDs are remembered: a confirmation can be lost with the connection.
_REMEMBERED = 8
_OPEN, _CONFIRMED = "open", "confirmed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """End of a read, and its number of partitions.

    Attributes:
        max_messages: maximum number of messages of a read.
        idle: seconds without a message after which the read ends in any case.
        partitions: number of partitions of the stored rows.
        on_store: whether messages are confirmed as soon as they are stored.
    """

    max_messages: int
    idle: float
    partitions: int
    on_store: bool = False


@dataclass(slots=True)
class _State:
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
    status: str = _CONFIRMED
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

    def plan(self, settings: SourceSettings, limits: ReadLimits) -> list[LogPartition]:
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
            if state.status == _OPEN:
                self._check(state, settings)
                self._take_over(state, here)
                batches = self._rows(state.number).batches()
                logger.warning(
                    "read %d of %s is not confirmed: the same %d messages are read again",
                    state.number,
                    self._checkpoint,
                    sum(each.end - each.start for each in batches),
                )
                return list(cut(self._root, batches, limits.partitions, state.confirmed_files))
            batches = self._read_on(state, settings, limits, here)
            return list(cut(self._root, batches, limits.partitions))
        finally:
            self._log.release()

    def confirm(self, settings: SourceSettings, guids: Iterable[str] | None) -> int:
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
            if state.status == _OPEN:
                self._check(state, settings, queues_alone=True)
                if guids is None:
                    self._check_reader(state)
                count = self._note_confirmed(state, None if guids is None else set(map(bytes.fromhex, guids)))
            known = {} if state.told else self._log.read_guids(state.confirmed_files)
            if any(known.values()):
                with portal() as here:
                    here.run(confirm_guids(settings.connection, known))
            return count
        finally:
            self._log.release()

    def describe(self) -> tuple[int, int, bool] | None:
        """Return number and messages of the unconfirmed read, and whether only the log has the messages.

        None if all reads are confirmed.
        """
        state = self._state()
        if state.status != _OPEN:
            return None
        messages = sum(each.end - each.start for each in self._rows(state.number).batches())
        return state.number, messages, state.stored

    def give_up(self) -> None:
        """Forget the unconfirmed read: its messages are still in the queue, and will be read again.

        Raises:
            StateError: only the log has the messages; or the folder is in use.
        """
        self._log.acquire(_PATIENCE)
        try:
            state = self._state()
            if state.status != _OPEN:
                return
            if state.stored:
                raise StateError(
                    f"the messages of read {state.number} were confirmed when they were stored, and exist "
                    f"only in {self._rows(state.number).path}. Read and confirm them"
                )
            state.status = _CONFIRMED
            self._note(state)
        finally:
            self._log.release()

    # state

    def _state(self) -> _State:
        noted: Any = self._log.noted(_STATE)
        if not isinstance(noted, dict):
            return _State()
        given = cast("dict[str, Any]", noted)
        state = _State(given["read"], given["status"], given["stored"], given["what"], given["parts"])
        state.told = given["told"]
        state.reader = Application.noted(given["reader"])
        return state

    def _note(self, state: _State) -> None:
        document = {"read": state.number, "status": state.status, "stored": state.stored}
        reader = None if state.reader is None else state.reader._asdict()
        self._log.note(
            _STATE,
            {**document, "what": state.what, "parts": state.parts, "told": state.told, "reader": reader},
        )

    def _rows(self, number: int) -> BatchLog:
        return BatchLog(f"{self._root}/{number:06d}")

    def _check(self, state: _State, settings: SourceSettings, *, queues_alone: bool = False) -> None:
        now, then = described_settings(settings), state.what or {}
        # The options do not contain Spark's filters that became subscriptions.
        if now["queues"] != then.get("queues") or (not queues_alone and now != then):
            raise StateError(
                f"read {state.number} of {self._checkpoint} has other queues or subscriptions, and is not "
                "confirmed: confirm the read with its original options (bmq.spark.confirm), or give up "
                f"the read (bmq spark repair {self._checkpoint}), which leaves its messages in the queue"
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

    def _read_on(
        self, state: _State, settings: SourceSettings, limits: ReadLimits, here: Application | None
    ) -> list[LoggedBatch]:
        known: GuidSets = {}
        self._forget(state)
        for name in self._log.files("confirmed-"):
            for uri, keys in self._log.read_guids([name]).items():
                known.setdefault(uri, set()).update(keys)
        rows = self._rows(state.number + 1)
        rows.fs.create_dir(rows.root, recursive=True)
        for each in rows.batches():  # left by a driver that died before it could record the read
            rows.remove(each)
        rows.clear()
        with portal() as loop:
            drain = Drain(settings, limits, rows, known)
            try:
                batches = loop.run(drain.run())
                if batches:
                    what = described_settings(settings)
                    state = _State(state.number + 1, _OPEN, limits.on_store, what, reader=here)
                    self._note(state)
                    if limits.on_store:
                        state.told = loop.run(drain.confirm())
                        self._note(state)
            finally:
                loop.run(drain.close())
        if batches:
            count = sum(each.end - each.start for each in batches)
            logger.info("read %d of %s: %d messages", state.number, self._checkpoint, count)
        return batches

    def _forget(self, state: _State) -> None:
        """Remove the rows of confirmed reads, and old GUIDs."""
        for number in range(max(1, state.number - 1), state.number + 1):
            rows = self._rows(number)
            if rows.exists():
                rows.drop()
        for name in self._log.files("confirmed-"):
            if int(name.split("-")[1]) <= state.number - _REMEMBERED:
                self._log.delete(name)

    # confirming

    def _note_confirmed(self, state: _State, wanted: set[bytes] | None) -> int:
        """Record durably which rows are confirmed, before the confirmations are sent."""
        batches = self._rows(state.number).batches()
        name = f"confirmed-{state.number:06d}-{state.parts:04d}.arrow"
        left = 0
        if wanted is None and not state.parts:
            count = sum(each.end - each.start for each in batches)
            self._log.copy_guids(name, batches)
            state.parts = 1
        else:
            count, left = self._note_some(state, name, wanted)
        if not left:
            state.status = _CONFIRMED
        self._note(state)
        return count

    def _note_some(self, state: _State, name: str, wanted: set[bytes] | None) -> tuple[int, int]:
        """Record the wanted unconfirmed rows; return their number, and the number of remaining rows."""
        before = self._log.read_guids(state.confirmed_files)
        rows = self._rows(state.number)
        confirmed: dict[str, list[bytes]] = {}
        count = left = 0
        for batch in rows.batches():
            for uri, keys in rows.guids(batch.path):
                gone = before.get(uri, set[bytes]())
                some = [key for key in keys if key not in gone]
                chosen = some if wanted is None else [key for key in some if key in wanted]
                confirmed.setdefault(uri, []).extend(chosen)
                count += len(chosen)
                left += len(some) - len(chosen)
        if count:
            self._log.write_guids(name, confirmed)
            state.parts += 1
        return count, left


class Drain:
    """Receives the content of a queue, and stores it.

    Args:
        settings: settings of the read.
        limits: end of the read.
        log: destination of the rows.
        known: GUIDs confirmed earlier, by the URI of their queue, which are confirmed once more.
    """

    def __init__(
        self, settings: SourceSettings, limits: ReadLimits, log: BatchLog, known: Mapping[str, set[bytes]]
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._log = log
        self._known = known
        self._arrivals = Arrivals()
        self._bad: set[tuple[str, bytes]] = set()
        self._receiver = SourceReceiver(settings)
        self._aside = PutAside(settings)

    async def run(self) -> list[LoggedBatch]:
        """Receive until a limit is reached, or no more messages arrive; return the stored batches.

        Raises:
            ConnectionFailed, OpenQueueError, ConfigureQueueError, RequestTimeout: no messages can be
            received.
            QueueClosed, SessionClosed: the connection is permanently lost.
            OSError: the messages cannot be stored.
        """
        limits = self._limits
        await look_for_others(self._settings)
        await self._receiver.open()
        file = self._log.begin(0, self._receiver.schema)
        try:
            while file.rows < limits.max_messages:
                wanted = min(_ROWS, limits.max_messages - file.rows)
                arrived = await self._receiver.take(wanted, limits.idle, drains=True)
                if not arrived:
                    break
                for each in arrived:
                    rows = await self._new(each)
                    if rows.num_rows:
                        file.write([rows])
                        self._arrivals.add(each.queue.uri, guid_array(rows))
            repeated = self._arrivals.repeated()
            if len(repeated):  # after a lost connection, or the loss of a cluster's primary
                file = file.without(repeated)
            if file.rows:
                return [file.finish()]
        except BaseException:
            file.abandon()
            raise
        file.abandon()
        return []

    async def _new(self, arrived: Arrived) -> RecordBatch:
        """Return the rows to store: without confirmed messages, and without those that are put aside."""
        uri, known = arrived.queue.uri, self._known.get(arrived.queue.uri)
        if not known and not self._settings.dead_letters:
            return arrived.batch
        guids = guid_keys(arrived.batch)
        gone = {guid for guid in guids if (known and guid in known) or (uri, guid) in self._bad}
        places = [place for place, guid in enumerate(guids) if guid not in gone]
        bad = await self._aside.take(arrived, places)
        self._bad |= {(uri, guids[place]) for place in bad}
        gone |= {guids[place] for place in bad}
        if not gone:
            return arrived.batch
        arrived.queue.confirm(*texts_of(sorted(gone)))
        return arrived.batch.take(pa.array([place for place in places if place not in bad], pa.int64()))

    async def confirm(self) -> bool:
        """Confirm all stored messages; return whether the broker has certainly received the confirmations."""
        self._receiver.confirm_taken()
        return await self._receiver.settle()

    async def close(self) -> None:
        """Send confirmations, return unconfirmed messages to the queue, and disconnect."""
        await self._receiver.close()
        await self._aside.close()


def read_unconfirmed(settings: SourceSettings, limits: ReadLimits) -> Sequence[LogPartition]:
    """Store the content of a queue in a folder on this machine, and leave the messages in the queue.

    A later read removes the folder, once the folder's application has ended.

    Raises:
        ConnectionFailed, OpenQueueError, ConfigureQueueError, RequestTimeout: no messages can be received.
        OSError: the messages cannot be stored.
        StateError: the common folder of such reads belongs to another user.
    """
    folder = _temporary_folder()
    log = BatchLog(str(folder))
    with portal() as here:
        drain = Drain(settings, limits, log, {})
        try:
            batches = here.run(drain.run())
        finally:
            here.run(drain.close())
    count = sum(each.end - each.start for each in batches)
    logger.warning(
        "%d messages were read and stay in the queue, unconfirmed. To remove messages, set option "
        "checkpointLocation, and call bmq.spark.confirm after storing the rows",
        count,
    )
    if not batches:
        shutil.rmtree(folder, ignore_errors=True)
    return list(cut(str(folder), batches, limits.partitions))


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
