# SPDX-License-Identifier: Apache-2.0
"""The accounts of a chaos run: what was posted, what became of it, what arrived where, and when."""

from __future__ import annotations

import statistics
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

#: Which stream a message is of, and its number there, counted from 0.
Key = tuple[str, int]

SUCCESS = "SUCCESS"
#: What ends a connection so that the client can notice at once.
CUTS = frozenset({"cut", "reset", "cut client"})
_SIZE = 128


def payload(key: Key) -> bytes:
    """The message of a key."""
    return f"{key[0]}:{key[1]}:".encode().ljust(_SIZE, b".")


def key_of(data: bytes) -> Key:
    """The key of a message."""
    stream, number, _ = data.split(b":", 2)
    return stream.decode(), int(number)


@dataclass(slots=True)
class _Copy:
    """The last delivery of a message to an application."""

    consumer: str
    connection: int
    confirmed_on: int | None = None


@dataclass
class Moment:
    """A fault, or something a session said of itself."""

    at: float
    what: str


@dataclass
class Result:
    """One run, as plain data.

    Attributes:
        posts: how many messages the client took.
        outcomes: how many of them had which outcome.
        more_than_one_outcome: posts with a second outcome.
        lost: acknowledged, and not delivered to some application: as many as examples fit.
        deliveries: how many messages reached the applications.
        duplicates: how many of those had reached that application before, by what had become of the earlier
            copy: "confirmed here" on the same connection, "in hand" (not confirmed when its connection was
            lost), "other consumer".
        disorder: messages, never delivered before, behind a later one of the same stream.
        dropped: redeliveries of confirmed messages that the client kept from the application; None where the
            client does not do that.
        refused: posts the client did not take: its buffers were full.
        sessions: what each session went through.
    """

    posts: int
    outcomes: dict[str, int]
    more_than_one_outcome: int
    lost: list[str]
    deliveries: int
    duplicates: dict[str, int]
    disorder: list[str]
    dropped: int | None = None
    refused: int = 0
    sessions: dict[str, list[Moment]] = field(default_factory=dict)

    @property
    def acknowledged(self) -> int:
        return self.outcomes.get(SUCCESS, 0)

    @property
    def without_outcome(self) -> int:
        return self.posts - sum(self.outcomes.values())

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        sessions = {
            name: [Moment(**moment) for moment in moments] for name, moments in data["sessions"].items()
        }
        return cls(**{**data, "sessions": sessions})


class Accounts:
    """Keeps the accounts while a run goes on; may be used from several threads.

    Args:
        apps: which streams each application receives, by the beginning of their names.
    """

    def __init__(self, apps: dict[str, str]) -> None:
        self._apps = apps
        self._lock = threading.Lock()
        self._posted: set[Key] = set()
        self._outcomes: dict[Key, str] = {}
        self._twice: list[Key] = []
        self._delivered: dict[str, dict[Key, _Copy]] = {app: {} for app in apps}
        self._missing: dict[str, set[Key]] = {app: set() for app in apps}
        self._seen: dict[tuple[Any, ...], int] = {}
        self._disorder: list[str] = []
        self._duplicates: Counter[str] = Counter()
        self._deliveries = 0
        self._refused = 0
        self._restarts = 0
        #: Called whenever nothing acknowledged is missing anywhere.
        self.on_complete: Callable[[], None] = lambda: None

    # posts

    def posting(self, key: Key) -> None:
        """The client is about to be given this message."""
        with self._lock:
            self._posted.add(key)

    def refused(self, key: Key) -> None:
        """The client did not take it."""
        with self._lock:
            self._posted.remove(key)
            self._refused += 1

    def outcome(self, key: Key, status: str) -> None:
        """A post has its outcome."""
        with self._lock:
            if key in self._outcomes:
                self._twice.append(key)
            self._outcomes[key] = status
            if status == SUCCESS:
                for app, streams in self._apps.items():
                    if key[0].startswith(streams) and key not in self._delivered[app]:
                        self._missing[app].add(key)

    # deliveries

    def delivered(self, app: str, consumer: str, connection: int, key: Key, *, redelivered: bool) -> None:
        """A message reached an application.

        Args:
            app: which one.
            consumer: through which consumer.
            connection: which connection of that consumer's session, by number.
            key: the message.
            redelivered: whether it came marked as out of order.
        """
        with self._lock:
            self._deliveries += 1
            earlier = self._delivered[app].get(key)
            self._delivered[app][key] = _Copy(consumer, connection)
            if earlier is not None:
                self._duplicates[_kind(earlier, consumer)] += 1
            elif not redelivered:
                self._check_order(app, consumer, connection, key)
            missing = self._missing[app]
            missing.discard(key)
            if not missing and self._complete():
                self.on_complete()

    def confirmed(self, app: str, connection: int, key: Key) -> None:
        """The application has confirmed a message, through the connection of that number."""
        with self._lock:
            self._delivered[app][key].confirmed_on = connection

    def restarted(self) -> None:
        """The broker was restarted: what was not confirmed is delivered anew, unmarked."""
        with self._lock:
            self._restarts += 1

    def _check_order(self, app: str, consumer: str, connection: int, key: Key) -> None:
        stream, number = key
        place = (app, consumer, connection, self._restarts, stream)
        last = self._seen.get(place, -1)
        if number < last:
            self._disorder.append(f"{app}: {stream} {number} after {last}, connection {connection}")
        self._seen[place] = max(number, last)

    # the end

    def _complete(self) -> bool:
        return not any(self._missing.values())

    @property
    def complete(self) -> bool:
        """Whether everything acknowledged so far has arrived everywhere."""
        with self._lock:
            return self._complete()

    def result(self) -> Result:
        """Close the accounts."""
        with self._lock:
            return Result(
                posts=len(self._posted),
                outcomes=dict(Counter(self._outcomes[key] for key in self._outcomes)),
                more_than_one_outcome=len(self._twice),
                lost=[
                    f"{app}: {key[0]} {key[1]}" for app, keys in self._missing.items() for key in sorted(keys)
                ],
                deliveries=self._deliveries,
                duplicates=dict(self._duplicates),
                disorder=list(self._disorder),
                refused=self._refused,
            )


def _kind(earlier: _Copy, consumer: str) -> str:
    if earlier.consumer != consumer:
        return "other consumer"
    return "confirmed here" if earlier.confirmed_on == earlier.connection else "in hand"


@dataclass
class Recoveries:
    """How long sessions took from a cut to StateRestored.

    Attributes:
        times: seconds, of those that no other fault disturbed.
        disturbed: of those that the next fault came in between of.
    """

    times: list[float] = field(default_factory=list)
    disturbed: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    def __str__(self) -> str:
        if not self.times:
            return f"none undisturbed, {len(self.disturbed)} disturbed by the next fault"
        return (
            f"median {self.median * 1000:.0f} ms, longest {max(self.times) * 1000:.0f} ms, of "
            f"{len(self.times)} undisturbed; {len(self.disturbed)} disturbed by the next fault"
        )


def recoveries(faults: list[Moment], sessions: Iterable[list[Moment]]) -> Recoveries:
    """Find for each cut when each session that was in good order had its state restored."""
    found = Recoveries()
    for moments in sessions:
        for index, fault in enumerate(faults):
            if fault.what not in CUTS:
                continue
            following = faults[index + 1].at if index + 1 < len(faults) else float("inf")
            before = [m.what for m in moments if m.at < fault.at]
            if before and before[-1] not in ("Connected", "StateRestored"):
                continue  # it had not got over the fault before
            after = [m for m in moments if m.at >= fault.at]
            if not after or after[0].what != "ConnectionLost" or after[0].at > following:
                continue  # it had lost its connection without noticing: cut on the other side
            restored = next((m.at for m in after if m.what == "StateRestored"), None)
            if restored is not None:
                times = found.disturbed if restored > following else found.times
                times.append(restored - fault.at)
    return found
