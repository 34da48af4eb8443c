# SPDX-License-Identifier: Apache-2.0
"""Whole control and authentication events, to and from the messages of :mod:`bmq.wire.control`."""

from __future__ import annotations

from typing import Literal, overload

from bmq.errors import ProtocolError, UsageError
from bmq.wire.codec import EVENT_HEADER
from bmq.wire.constants import EventType
from bmq.wire.control import (
    AuthenticationMessage,
    AuthenticationRequest,
    AuthenticationResponse,
    Codec,
    ControlMessage,
    Message,
    MessageKind,
    NegotiationMessage,
    check,
    decode_json,
    encode_json,
    request_id_in_json,
)
from bmq.wire.event import CODEC_SHIFT, Event, pack_schema_event
from bmq.wire.notice import Notice


def encode_event(
    message: Message, codec: Codec, *, escape_solidus: bool = False, omit_empty_arrays: bool = False
) -> bytes:
    """Return a whole event: header, message, padding.

    Args:
        message: the message; its kind determines the event's type.
        codec: the encoding to use.
        escape_solidus: see :func:`encode_json`; no effect in BER.
        omit_empty_arrays: see :func:`encode_json`; no effect in BER.

    Raises:
        UsageError: a value does not fit its member.
    """
    check(message)
    try:
        if codec == Codec.JSON:
            body = encode_json(message, escape_solidus=escape_solidus, omit_empty_arrays=omit_empty_arrays)
        else:
            # Imported late: only brokers write BER, and clients shall not pay for the import.
            from bmq.wire.ber import encode_ber

            body = encode_ber(message)
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object!r:.80} has no form in UTF-8") from None
    authentication = isinstance(message, AuthenticationRequest | AuthenticationResponse)
    return pack_schema_event(EventType.AUTHENTICATION if authentication else EventType.CONTROL, codec, body)


def codec_of(event: Event) -> Codec:
    """Return the codec of a control or authentication event.

    Raises:
        ProtocolError: the codec is unknown.
    """
    number = event.type_specific >> CODEC_SHIFT
    try:
        return Codec(number)
    except ValueError:
        raise ProtocolError(
            f"expected codec 0 (BER) or 1 (JSON), got {number}",
            field="EventHeader.typeSpecific",
            offset=EVENT_HEADER.offset_of("typeSpecific"),
        ) from None


@overload
def decode_event(
    event: Event, kind: Literal[MessageKind.NEGOTIATION], notice: Notice | None = ...
) -> NegotiationMessage: ...
@overload
def decode_event(
    event: Event, kind: Literal[MessageKind.CONTROL], notice: Notice | None = ...
) -> ControlMessage: ...
@overload
def decode_event(
    event: Event, kind: Literal[MessageKind.AUTHENTICATION], notice: Notice | None = ...
) -> AuthenticationMessage: ...
@overload
def decode_event(event: Event, kind: MessageKind, notice: Notice | None = ...) -> Message: ...
def decode_event(event: Event, kind: MessageKind, notice: Notice | None = None) -> Message:
    """Read the message of a whole event, using the codec named in the event.

    Args:
        event: a control or authentication event.
        kind: the expected kind of message. In control events the first message of each direction is a
            negotiation message, and the later ones are control messages.
        notice: receives unknown content, and makes unknown enumerators legal; see :func:`decode_json`.

    Raises:
        ProtocolError: see :func:`decode_json` and :func:`bmq.wire.ber.decode_ber`.
    """
    if codec_of(event) is Codec.JSON:
        return decode_json(event.data[event.body :], kind, offset=event.body, notice=notice)
    from bmq.wire.ber import decode_ber

    return decode_ber(event.data[event.body :], kind, offset=event.body, notice=notice)


def request_id(event: Event) -> int | None:
    """Return the request id of a control message that :func:`decode_event` cannot read, or None."""
    body = event.data[event.body :]
    try:
        if codec_of(event) is Codec.JSON:
            return request_id_in_json(body)
    except ProtocolError:
        return None
    from bmq.wire.ber import request_id_in_ber

    return request_id_in_ber(body)
