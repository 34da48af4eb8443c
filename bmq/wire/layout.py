# SPDX-License-Identifier: Apache-2.0
# pyright: basic
"""The layout of every binary header, declared once with Construct.

Field names are the protocol's. The codecs (see :mod:`bmq.wire.codec`) and the tables in the documentation are
derived from these declarations. All integers are big-endian. A *word* is four bytes.
"""

from __future__ import annotations

from construct import BitsInteger, BitStruct, Bytes, Bytewise, Construct


def _bits(n: int) -> Construct:
    return BitsInteger(n)


def _int32() -> Construct:
    return BitsInteger(32, signed=True)


def _guid() -> Construct:
    return Bytewise(Bytes(16))


#: Starts every event. ``length`` counts the whole event in bytes, header and padding included.
EventHeader = BitStruct(
    "fragment" / _bits(1),
    "length" / _bits(31),
    "protocolVersion" / _bits(2),
    "type" / _bits(6),
    "headerWords" / _bits(8),
    "typeSpecific" / _bits(8),
    "reserved" / _bits(8),
)

#: Starts each message of a PUT event. ``schemaId`` 1 announces the new property encoding.
PutHeader = BitStruct(
    "flags" / _bits(4),
    "messageWords" / _bits(28),
    "optionsWords" / _bits(24),
    "compressionAlgorithmType" / _bits(3),
    "headerWords" / _bits(5),
    "queueId" / _int32(),
    "messageGUID" / _guid(),
    "crc32c" / _bits(32),
    "schemaId" / _bits(16),
    "reserved" / _bits(16),
)

#: Starts each message of a PUSH event. Old brokers send 28 bytes, without ``schemaId``.
PushHeader = BitStruct(
    "flags" / _bits(4),
    "messageWords" / _bits(28),
    "optionsWords" / _bits(24),
    "compressionAlgorithmType" / _bits(3),
    "headerWords" / _bits(5),
    "queueId" / _int32(),
    "messageGUID" / _guid(),
    "schemaId" / _bits(16),
    "reserved" / _bits(16),
)

#: Starts an option of a PUT or PUSH message. Packed options have no body: ``words`` is the data.
OptionHeader = BitStruct(
    "type" / _bits(6),
    "packed" / _bits(1),
    "typeSpecific" / _bits(4),
    "words" / _bits(21),
)

#: One entry of the option SUB_QUEUE_IDS_OLD; towards clients it carries a subscription id.
SubQueueId = BitStruct("id" / _bits(32))

#: One entry of the option SUB_QUEUE_INFOS; the remaining delivery attempts are the RDA counter.
SubQueueInfo = BitStruct(
    "id" / _bits(32),
    "unlimited" / _bits(1),
    "potentiallyPoisonous" / _bits(1),
    "remainingDeliveryAttempts" / _bits(6),
    "reserved" / _bits(24),
)

#: Starts the body of an ACK event, once.
AckHeader = BitStruct(
    "headerWords" / _bits(4),
    "perMessageWords" / _bits(4),
    "flags" / _bits(8),
    "reserved" / _bits(16),
)

#: One acknowledgement. ``correlationId`` is only used by clients that do not generate GUIDs.
AckMessage = BitStruct(
    "reserved" / _bits(4),
    "status" / _bits(4),
    "correlationId" / _bits(24),
    "messageGUID" / _guid(),
    "queueId" / _int32(),
)

#: Starts the body of a CONFIRM event, once.
ConfirmHeader = BitStruct(
    "headerWords" / _bits(4),
    "perMessageWords" / _bits(4),
    "reserved" / _bits(24),
)

#: One confirmation. ``subQueueId`` is the subId of openQueue, 0 when none.
ConfirmMessage = BitStruct(
    "queueId" / _int32(),
    "messageGUID" / _guid(),
    "subQueueId" / _int32(),
)

#: Starts the body of a REJECT event (between brokers only), once.
RejectHeader = BitStruct(
    "headerWords" / _bits(4),
    "perMessageWords" / _bits(4),
    "reserved" / _bits(24),
)

#: One rejection (between brokers only).
RejectMessage = BitStruct(
    "queueId" / _int32(),
    "messageGUID" / _guid(),
    "subQueueId" / _int32(),
)

#: Starts a message properties area; sizes are in units of two bytes, ``areaWords`` counts the padding.
MessagePropertiesHeader = BitStruct(
    "reserved" / _bits(2),
    "propertyHeaderSize2x" / _bits(3),
    "headerSize2x" / _bits(3),
    "areaWords" / _bits(24),
    "reserved2" / _bits(8),
    "numProperties" / _bits(8),
)

#: One property. ``valueField`` is the value's length (old encoding) or the name's offset (new encoding).
MessagePropertyHeader = BitStruct(
    "reserved" / _bits(1),
    "type" / _bits(5),
    "valueField" / _bits(26),
    "reserved2" / _bits(4),
    "nameLength" / _bits(12),
)

#: A client-generated message GUID: unique by client id, nanosecond tick and counter.
MessageGUID = BitStruct(
    "version" / _bits(2),
    "counter" / _bits(22),
    "timerTick" / _bits(56),
    "clientId" / Bytewise(Bytes(6)),
)

#: Every declaration by its name in the protocol, in the order of the documentation.
LAYOUTS: dict[str, Construct] = {
    "EventHeader": EventHeader,
    "PutHeader": PutHeader,
    "PushHeader": PushHeader,
    "OptionHeader": OptionHeader,
    "SubQueueId": SubQueueId,
    "SubQueueInfo": SubQueueInfo,
    "AckHeader": AckHeader,
    "AckMessage": AckMessage,
    "ConfirmHeader": ConfirmHeader,
    "ConfirmMessage": ConfirmMessage,
    "RejectHeader": RejectHeader,
    "RejectMessage": RejectMessage,
    "MessagePropertiesHeader": MessagePropertiesHeader,
    "MessagePropertyHeader": MessagePropertyHeader,
    "MessageGUID": MessageGUID,
}
