# SPDX-License-Identifier: Apache-2.0
"""Numbers and limits of the protocol."""

from __future__ import annotations

from enum import IntEnum, IntFlag

from bmq.errors import AckStatus

#: Version in every event header.
PROTOCOL_VERSION = 1

#: Largest size in bytes of the application data (properties and payload) of a message.
MAX_APPLICATION_DATA = 64 * 1024 * 1024
#: Largest size in bytes of an event of several messages.
MAX_EVENT_SOFT = 512 * 1024 * 1024
#: Default limit for events from a peer: one message of the largest size, with headers.
DEFAULT_MAX_INCOMING_EVENT = 68 * 1024 * 1024
#: Largest size in bytes of any event: the length field has 31 bits.
MAX_EVENT_HARD = 2**31 - 1

MAX_PROPERTIES = 255
MAX_PROPERTY_NAME = 4095
MAX_PROPERTY_VALUE = 67_104_745
MAX_PROPERTIES_AREA = 67_108_856

#: Default minimum size in bytes of data to compress.
COMPRESSION_THRESHOLD = 1024

#: First reserved queue id; the ids after it are reserved as well.
FIRST_RESERVED_QUEUE_ID = 4_294_967_286

UNSET_GUID = bytes(16)


class EventType(IntEnum):
    """The kind of an event's messages."""

    UNDEFINED = 0
    CONTROL = 1
    PUT = 2
    CONFIRM = 3
    PUSH = 4
    ACK = 5
    CLUSTER_STATE = 6
    ELECTOR = 7
    STORAGE = 8
    RECOVERY = 9
    PARTITION_SYNC = 10
    HEARTBEAT_REQ = 11
    HEARTBEAT_RSP = 12
    REJECT = 13
    REPLICATION_RECEIPT = 14
    AUTHENTICATION = 15


class PutFlags(IntFlag):
    """Flags of a PUT message."""

    NONE = 0
    ACK_REQUESTED = 1
    MESSAGE_PROPERTIES = 2


class PushFlags(IntFlag):
    """Flags of a PUSH message."""

    NONE = 0
    IMPLICIT_PAYLOAD = 1
    MESSAGE_PROPERTIES = 2
    OUT_OF_ORDER = 4


class OptionType(IntEnum):
    """Options of PUT and PUSH messages."""

    SUB_QUEUE_IDS_OLD = 1
    MSG_GROUP_ID = 2
    SUB_QUEUE_INFOS = 3


class Compression(IntEnum):
    """Compression of application data (CAT).

    ::

        zlib = bmq.Compression.ZLIB
        queue = await session.open_queue(uri, write=True, compression=zlib)
    """

    NONE = 0
    ZLIB = 1


class PropertyType(IntEnum):
    """The type of a message property.

    ::

        customer = bmq.PropertyValue(bmq.PropertyType.INT32, 7)
        await queue.post(b"...", properties={"CustomerId": customer})
    """

    BOOL = 1
    CHAR = 2
    SHORT = 3
    INT32 = 4
    INT64 = 5
    STRING = 6
    BINARY = 7


ACK_STATUS_TO_WIRE: dict[AckStatus, int] = {
    AckStatus.SUCCESS: 0,
    AckStatus.LIMIT_MESSAGES: 1,
    AckStatus.LIMIT_BYTES: 2,
    AckStatus.STORAGE_FAILURE: 6,
    AckStatus.NOT_READY: 7,
}
"""Statuses with a number of their own; every other one travels as 5 and is read as UNKNOWN."""

ACK_STATUS_FROM_WIRE: tuple[AckStatus, ...] = tuple(
    {v: k for k, v in ACK_STATUS_TO_WIRE.items()}.get(n, AckStatus.UNKNOWN) for n in range(16)
)

#: ACK statuses without a meaning in this version.
UNKNOWN_ACK_NUMBERS = frozenset(range(16)) - {*ACK_STATUS_TO_WIRE.values(), 5}
