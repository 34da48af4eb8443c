# SPDX-License-Identifier: Apache-2.0
"""Deliberate misbehaviour of an embedded broker, for tests of services.

A proxy in front of the broker makes the faults of a network (cut, delay, split, corrupt); this module makes
faults inside the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from bmq import _checks
from bmq.broker._domain import Refused
from bmq.errors import AckStatus, StatusCategory, UsageError
from bmq.wire.constants import ACK_STATUS_TO_WIRE
from bmq.wire.control import QueueHandleParameters, Status
from bmq.wire.put import Put

if TYPE_CHECKING:
    from bmq.broker._client import QueueHandle, SubStream
    from bmq.broker._connection import BrokerConnection
    from bmq.broker._scheduler import Scheduler

__all__ = ["Faults"]

_UNKNOWN_STATUS = 5


class _Countdown:
    """The remaining repetitions of a fault; None is always."""

    __slots__ = ("left",)

    def __init__(self, count: int | None) -> None:
        self.left = _checks.optional(_checks.integer, "count", count)

    def __bool__(self) -> bool:
        """Return whether the fault happens once more, and count the repetition."""
        if self.left is None:
            return True
        if not self.left:
            return False
        self.left -= 1
        return True


def _status(category: StatusCategory, code: int, message: str) -> Status:
    """Return a legal refusal.

    Raises:
        UsageError: a part has another type, or is out of its range.
    """
    return Status(
        category=_checks.instance("category", category, StatusCategory, "one of bmq.errors.StatusCategory"),
        code=_checks.integer("code", code, -_checks.INT32_MAX - 1, _checks.INT32_MAX),
        message=_checks.text("message", message),
    )


class Faults:
    """The faults of one broker: ``broker.faults``. Faults apply to every client, later clients included.

    Each method switches one fault on, instead of an earlier fault of the kind; :meth:`clear` ends all
    faults. ``count`` is the number of repetitions; None is always.
    """

    def __init__(self, connections: Mapping[BrokerConnection, None]) -> None:
        self._connections = connections
        self._reset()

    def _reset(self) -> None:
        self._ack_delay = 0.0
        #: Seconds of the broker's clock until the broker reads from a client.
        self.negotiation_delay = 0.0
        self._lost_acks = _Countdown(0)
        self._duplicates = _Countdown(0)
        self._lost_confirms = _Countdown(0)
        self._nacks: tuple[_Countdown, int] = (_Countdown(0), 0)
        self._opens: tuple[_Countdown, Status, str] = (_Countdown(0), Status(), "")
        self._negotiations: tuple[_Countdown, Status] = (_Countdown(0), Status())
        self._events: int | None = None
        self._deaf = False

    # ---- switched on by users

    def delay_acks(self, seconds: float) -> None:
        """Send every acknowledgement late, by ``seconds`` of the broker's clock."""
        self._ack_delay = _checks.seconds("seconds", seconds)
        self._apply()

    def drop_acks(self, count: int | None = None) -> None:
        """Send no acknowledgements: messages are stored, and producers are never informed."""
        self._lost_acks = _Countdown(count)
        self._apply()

    def nack(self, status: AckStatus = AckStatus.UNKNOWN, count: int | None = None) -> None:
        """Store no posted messages, and acknowledge them negatively.

        Args:
            status: the reason; statuses without a number on the wire arrive as UNKNOWN.
            count: number of messages.

        Raises:
            UsageError: the status is SUCCESS.
        """
        _checks.instance("status", status, AckStatus, "one of bmq.AckStatus")
        if status is AckStatus.SUCCESS:
            raise UsageError("the status must be a negative acknowledgement, not SUCCESS")
        self._nacks = _Countdown(count), ACK_STATUS_TO_WIRE.get(status, _UNKNOWN_STATUS)

    def duplicate_pushes(self, count: int | None = None) -> None:
        """Send messages to consumers twice."""
        self._duplicates = _Countdown(count)
        self._apply()

    def lose_confirms(self, count: int = 1) -> None:
        """Lose confirmations, as a primary that dies before passing the confirmations on.

        The connections of clients last. Each message is delivered once more to the same consumer, and not
        marked as out of order.

        Args:
            count: number of confirmations.
        """
        self._lost_confirms = _Countdown(_checks.integer("count", count))

    def refuse_open(
        self,
        category: StatusCategory = StatusCategory.E_REFUSED,
        code: int = -1,
        message: str = "Refused for a test",
        *,
        uri: str = "",
        count: int | None = None,
    ) -> None:
        """Answer openQueue with a failure.

        Args:
            category: the generic result.
            code: the number in the status.
            message: the text in the status.
            uri: only queues whose URI starts with this text.
            count: number of requests.
        """
        self._opens = _Countdown(count), _status(category, code, message), _checks.text("uri", uri)

    def refuse_negotiation(
        self,
        category: StatusCategory = StatusCategory.E_REFUSED,
        code: int = -1,
        message: str = "Connection not authorized",
        *,
        count: int | None = None,
    ) -> None:
        """Refuse clients during negotiation, and close the connection."""
        self._negotiations = _Countdown(count), _status(category, code, message)

    def delay_negotiation(self, seconds: float) -> None:
        """Read from later clients only after ``seconds`` of the broker's clock."""
        self.negotiation_delay = _checks.seconds("seconds", seconds)

    def disconnect_after(self, events: int) -> None:
        """Cut each connection after ``events`` more events of the client."""
        self._events = _checks.integer("events", events)
        self._apply()

    def disconnect(self) -> None:
        """Cut all connections now, as a crash would."""
        for connection in list(self._connections):
            connection.cut()

    def stop_reading(self) -> None:
        """Read nothing more from any client: output of clients fills their buffers."""
        self._deaf = True
        self._apply()

    def resume_reading(self) -> None:
        """Read again."""
        self._deaf = False
        self._apply()

    def clear(self) -> None:
        """End all faults. Delayed acknowledgements are still sent late."""
        self._reset()
        self._apply()

    # ---- for the broker

    def refused_client(self) -> Status | None:
        """Return the reason to refuse a client, or None."""
        happens, status = self._negotiations
        return status if happens else None

    def check_open(self, wanted: QueueHandleParameters) -> None:
        """Refuse to open a queue.

        Raises:
            Refused: the fault happens.
        """
        happens, status, uri = self._opens
        if wanted.uri.startswith(uri) and happens:
            raise Refused(status.category, status.message, status.code)

    def kept_confirms(self, stream: SubStream, guids: list[bytes]) -> list[bytes]:
        """Redeliver the messages with lost confirmations; return the rest."""
        if not self._lost_confirms.left:
            return guids
        rest: list[bytes] = []
        for guid in guids:
            entry = stream.unconfirmed.get(guid)
            if entry is not None and self._lost_confirms:
                message, subscriber, _ = entry
                stream.handle.push(message, subscriber.option, out_of_order=False)
            else:
                rest.append(guid)
        return rest

    def kept_posts(self, handle: QueueHandle, puts: list[Put]) -> list[Put]:
        """Refuse posts; return the rest."""
        happens, status = self._nacks
        if happens.left == 0:
            return puts
        rest: list[Put] = []
        for put in puts:
            if happens:
                handle.queue.counts.refused += 1
                _, correlation_id, guid, *_ = put
                handle.client.output.ack(status, correlation_id, guid, handle.q_id)
            else:
                rest.append(put)
        return rest

    def apply_to(self, connection: BrokerConnection) -> None:
        """Apply the faults of acknowledgements, pushes, events and reading to a connection."""
        output = connection.output
        quiet = self._ack_delay or self._lost_acks.left != 0
        output.ack = partial(self._ack, connection._scheduler, output.add_ack) if quiet else output.add_ack
        output.push = partial(self._push, output.add_push) if self._duplicates.left != 0 else output.add_push
        if connection.session is not None:
            connection.session.events_left = self._events
        connection.read(not self._deaf)

    def _apply(self) -> None:
        for connection in list(self._connections):
            self.apply_to(connection)

    def _ack(self, scheduler: Scheduler, add: Callable[..., None], *ack: int | bytes) -> None:
        if self._lost_acks:
            return
        if self._ack_delay:
            scheduler.do_later(self._ack_delay, partial(add, *ack))
        else:
            add(*ack)

    def _push(self, add: Callable[[bytes, bytes], None], head: bytes, data: bytes) -> None:
        add(head, data)
        if self._duplicates:
            add(head, data)
