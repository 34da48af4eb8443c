# SPDX-License-Identifier: Apache-2.0
"""The fields of every structure: written by ``python -m bmq.wire.layout``, not by hand."""

#: Name, width in bits and kind of each field, by structure.
FIELDS: dict[str, list[tuple[str, int, str]]] = {
    "EventHeader": [
        ("fragment", 1, "unsigned"),
        ("length", 31, "unsigned"),
        ("protocolVersion", 2, "unsigned"),
        ("type", 6, "unsigned"),
        ("headerWords", 8, "unsigned"),
        ("typeSpecific", 8, "unsigned"),
        ("reserved", 8, "unsigned"),
    ],
    "PutHeader": [
        ("flags", 4, "unsigned"),
        ("messageWords", 28, "unsigned"),
        ("optionsWords", 24, "unsigned"),
        ("compressionAlgorithmType", 3, "unsigned"),
        ("headerWords", 5, "unsigned"),
        ("queueId", 32, "signed"),
        ("messageGUID", 128, "bytes"),
        ("crc32c", 32, "unsigned"),
        ("schemaId", 16, "unsigned"),
        ("reserved", 16, "unsigned"),
    ],
    "PushHeader": [
        ("flags", 4, "unsigned"),
        ("messageWords", 28, "unsigned"),
        ("optionsWords", 24, "unsigned"),
        ("compressionAlgorithmType", 3, "unsigned"),
        ("headerWords", 5, "unsigned"),
        ("queueId", 32, "signed"),
        ("messageGUID", 128, "bytes"),
        ("schemaId", 16, "unsigned"),
        ("reserved", 16, "unsigned"),
    ],
    "OptionHeader": [
        ("type", 6, "unsigned"),
        ("packed", 1, "unsigned"),
        ("typeSpecific", 4, "unsigned"),
        ("words", 21, "unsigned"),
    ],
    "SubQueueId": [
        ("id", 32, "unsigned"),
    ],
    "SubQueueInfo": [
        ("id", 32, "unsigned"),
        ("unlimited", 1, "unsigned"),
        ("potentiallyPoisonous", 1, "unsigned"),
        ("remainingDeliveryAttempts", 6, "unsigned"),
        ("reserved", 24, "unsigned"),
    ],
    "AckHeader": [
        ("headerWords", 4, "unsigned"),
        ("perMessageWords", 4, "unsigned"),
        ("flags", 8, "unsigned"),
        ("reserved", 16, "unsigned"),
    ],
    "AckMessage": [
        ("reserved", 4, "unsigned"),
        ("status", 4, "unsigned"),
        ("correlationId", 24, "unsigned"),
        ("messageGUID", 128, "bytes"),
        ("queueId", 32, "signed"),
    ],
    "ConfirmHeader": [
        ("headerWords", 4, "unsigned"),
        ("perMessageWords", 4, "unsigned"),
        ("reserved", 24, "unsigned"),
    ],
    "ConfirmMessage": [
        ("queueId", 32, "signed"),
        ("messageGUID", 128, "bytes"),
        ("subQueueId", 32, "signed"),
    ],
    "RejectHeader": [
        ("headerWords", 4, "unsigned"),
        ("perMessageWords", 4, "unsigned"),
        ("reserved", 24, "unsigned"),
    ],
    "RejectMessage": [
        ("queueId", 32, "signed"),
        ("messageGUID", 128, "bytes"),
        ("subQueueId", 32, "signed"),
    ],
    "MessagePropertiesHeader": [
        ("reserved", 2, "unsigned"),
        ("propertyHeaderSize2x", 3, "unsigned"),
        ("headerSize2x", 3, "unsigned"),
        ("areaWords", 24, "unsigned"),
        ("reserved2", 8, "unsigned"),
        ("numProperties", 8, "unsigned"),
    ],
    "MessagePropertyHeader": [
        ("reserved", 1, "unsigned"),
        ("type", 5, "unsigned"),
        ("valueField", 26, "unsigned"),
        ("reserved2", 4, "unsigned"),
        ("nameLength", 12, "unsigned"),
    ],
    "MessageGUID": [
        ("version", 2, "unsigned"),
        ("counter", 22, "unsigned"),
        ("timerTick", 56, "unsigned"),
        ("clientId", 48, "bytes"),
    ],
}
