# SPDX-License-Identifier: Apache-2.0
"""The interface between a broker and the broker's sessions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from bmq.protocol.broker.output import BrokerOutput
from bmq.wire.control import (
    INVALID_CONSUMER_PRIORITY,
    CloseQueueResponse,
    ConsumerInfo,
    OpenQueue,
    OpenQueueResponse,
    QueueHandleParameters,
    QueueStreamParameters,
    Status,
    StreamParameters,
    Subscription,
)
from bmq.wire.put import Put

__all__ = ["BrokerBackend", "ClientPort", "stream_parameters"]


class ClientPort(Protocol):
    """The backend's services for the client of one session."""

    def open_queue(self, request: OpenQueue, now: float) -> OpenQueueResponse | Status:
        """Open a queue."""
        ...

    def configure(self, q_id: int, parameters: StreamParameters, now: float) -> Status | None:
        """Replace a stream's subscriptions; None means success."""
        ...

    def close_queue(
        self, wanted: QueueHandleParameters, now: float, *, final: bool
    ) -> CloseQueueResponse | Status:
        """Close a queue."""
        ...

    def inflate(self, q_id: int, data: bytes, now: float) -> bytes | None:
        """Decompress a message's data; None if the message has no room, or the result is too large.

        Raises:
            ProtocolError: the data cannot be decompressed.
        """
        ...

    def post(self, q_id: int, puts: list[Put], now: float) -> None:
        """Post messages to a queue."""
        ...

    def refuse(self, q_id: int, puts: Iterable[Put]) -> None:
        """Refuse messages to a queue."""
        ...

    def confirm(self, confirms: Iterable[tuple[int, bytes, int]], now: float) -> None:
        """Confirm messages by (qId, GUID, subId)."""
        ...


class BrokerBackend(Protocol):
    """The broker behind the sessions: queues, routing, storage."""

    @property
    def effort(self) -> int:
        """The work done so far, as a number; each step takes some microseconds."""
        ...

    def connect(self, output: BrokerOutput, *, new_properties: bool, description: str) -> ClientPort:
        """Start serving a client."""
        ...

    def disconnect(self, client: ClientPort, now: float, *, lost: bool) -> None:
        """Close a client's queues; ``lost`` unless the client disconnected properly."""
        ...

    def deliver(self, now: float) -> None:
        """Deliver messages made deliverable by the latest requests and messages."""
        ...

    def admin(self, command: str, now: float) -> str:
        """Carry out an admin command and return the answer."""
        ...


def stream_parameters(old: QueueStreamParameters) -> StreamParameters:
    """Return the newer form of stream parameters: one subscription with the sub-queue's id."""
    info = old.sub_id_info
    parameters = StreamParameters() if info is None else StreamParameters(app_id=info.app_id)
    consumer = ConsumerInfo(
        max_unconfirmed_messages=old.max_unconfirmed_messages,
        max_unconfirmed_bytes=old.max_unconfirmed_bytes,
        consumer_priority=old.consumer_priority,
        consumer_priority_count=old.consumer_priority_count,
    )
    if old.consumer_priority == INVALID_CONSUMER_PRIORITY and not old.consumer_priority_count:
        return parameters
    subscription = Subscription(s_id=info.sub_id if info is not None else 0, consumers=(consumer,))
    return StreamParameters(app_id=parameters.app_id, subscriptions=(subscription,))
