# SPDX-License-Identifier: Apache-2.0
"""BER built by hand, with forms that our encoder never writes."""

from bmq.wire.control import (
    ConfigureStream,
    ControlMessage,
    OpenQueue,
    QueueHandleParameters,
    StreamParameters,
    Subscription,
)


def octets(text: str) -> bytes:
    return bytes.fromhex(text)


def element(tag: int, *contents: bytes) -> bytes:
    """A constructed element of indefinite length, as brokers and clients write it."""
    return bytes((tag, 0x80)) + b"".join(contents) + b"\0\0"


def definite(tag: int, *contents: bytes) -> bytes:
    content = b"".join(contents)
    assert len(content) < 0x80
    return bytes((tag, len(content))) + content


def value(tag: int, content: bytes | int | str) -> bytes:
    if isinstance(content, int):
        content = bytes((content,))
    elif isinstance(content, str):
        content = content.encode()
    return bytes((tag, len(content))) + content


RID = value(0x80, 3)


def control(*selections: bytes) -> bytes:
    return element(0x30, RID, element(0xA1, *selections))


def open_queue(*members: bytes) -> bytes:
    return control(element(0xAA, element(0xA0, *members)))


def opened(**members: object) -> ControlMessage:
    return ControlMessage(3, OpenQueue(QueueHandleParameters(**members)))  # type: ignore[arg-type]


def configure(*subscriptions: bytes) -> bytes:
    """Return a configureStream whose streamParameters contain these elements."""
    return control(element(0xB0, value(0x80, 7), element(0xA1, *subscriptions)))


def configured(*s_ids: int) -> ControlMessage:
    subscriptions = tuple(Subscription(s_id) for s_id in s_ids)
    return ControlMessage(3, ConfigureStream(7, StreamParameters(subscriptions=subscriptions)))


def subscription(s_id: int) -> bytes:
    return element(0x30, value(0x80, s_id))


URI = value(0x80, "bmq://d/q")
