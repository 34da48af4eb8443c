# SPDX-License-Identifier: Apache-2.0
"""Both encodings can be read back; any input gives a value or a ProtocolError."""

from enum import IntEnum
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bmq.errors import ProtocolError
from bmq.wire.ber import decode_ber, encode_ber
from bmq.wire.control import (
    SELECTIONS,
    AuthenticationRequest,
    AuthenticationResponse,
    BrokerResponse,
    ClientIdentity,
    Codec,
    ControlMessage,
    Member,
    Message,
    MessageKind,
    Structure,
    decode_json,
    kind_of,
    members,
)
from bmq.wire.control_event import decode_event, encode_event
from bmq.wire.event import read_event
from tests.wire.control_recordings import RecordedControl, recorded


def contents(member: Member, text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    kind = member.kind
    if issubclass(kind, IntEnum):
        return st.sampled_from(kind)
    if issubclass(kind, Structure):
        inner = structures(kind, text)
        return st.lists(inner, max_size=3).map(tuple) if member.array else inner
    if kind is int:
        high = 2 ** (member.bits - member.signed) - 1
        low = ~high if member.signed else 0
        edges = st.sampled_from([low, high, high // 2 + 1, 0, 127, 128, 255, 256])
        return edges | st.integers(low, high)
    return {bool: st.booleans(), bytes: st.binary()}.get(kind, text)


def structures(type: type[Structure], text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    if type is ControlMessage:
        bodies = [structures(each, text) for each in SELECTIONS[MessageKind.CONTROL].values()]
        r_ids = st.none() | st.integers(-(2**31), 2**31 - 1)
        return st.builds(type, r_id=r_ids, body=st.none() | st.one_of(bodies))
    return st.builds(
        type,
        **{
            m.attribute: st.none() | contents(m, text) if m.optional else contents(m, text)
            for m in members(type)
        },
    )


def messages(text: st.SearchStrategy[str]) -> st.SearchStrategy[Message]:
    types = (
        ControlMessage, ClientIdentity, BrokerResponse, AuthenticationRequest, AuthenticationResponse,
    )  # fmt: skip
    return st.one_of([structures(type, text) for type in types])


text = st.text(max_size=200)
#: Strings in BER: arbitrary bytes.
raw_text = st.binary(max_size=200).map(lambda octets: octets.decode("utf-8", "surrogateescape"))


@given(messages(text), st.sampled_from(Codec))
def test_events_survive_a_round_trip(message: Message, codec: Codec):
    data = encode_event(message, codec)
    assert len(data) % 4 == 0
    assert decode_event(read_event(data), kind_of(message)) == message


def legible(value: Any) -> Any:
    """Return a value with invalid UTF-8 replaced, as JSON requires."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, tuple):
        return tuple(map(legible, value))
    if isinstance(value, Structure):
        return type(value)(*(legible(getattr(value, name)) for name in value.__struct_fields__))
    return value


@given(messages(raw_text))
def test_decoded_messages_can_be_encoded(message: Message):
    for codec in Codec:
        again = decode_event(read_event(encode_event(message, codec)), kind_of(message))
        assert again == (message if codec is Codec.BER else legible(message))


@st.composite
def mutated(draw: st.DrawFn) -> tuple[RecordedControl, bytes]:
    original = draw(st.sampled_from(recorded()))
    body = bytearray(original.body)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        cut = draw(st.sampled_from([0, 0, 1, 1, 2, 8, len(body)]))
        piece = draw(
            st.binary(max_size=6)
            | st.sampled_from(
                [b"\x80", b"\0\0", b"\x30\x80", b"\xa0\x80", b"\x84\x7f\xff\xff\xff", b"null", b"{", b"]"]
            )
        )
        body[at : at + cut] = piece
    return original, bytes(body)


@given(mutated(), st.sampled_from(MessageKind))
def test_mutated_recordings_are_read_or_refused(case: tuple[RecordedControl, bytes], other: MessageKind):
    original, body = case
    for kind in (original.kind, other):
        for decode in (decode_json, decode_ber):
            try:
                message = decode(body, kind)
            except ProtocolError as error:
                offset = error.offset
            else:
                # Accepted input can be encoded again.
                assert decode_ber(encode_ber(message), kind) == message
                continue
            assert offset is None or 8 <= offset <= 8 + len(body)


@given(st.binary(max_size=300), st.sampled_from(MessageKind))
def test_noise_is_refused(body: bytes, kind: MessageKind):
    for decode in (decode_json, decode_ber):
        try:
            decode(body, kind)
        except ProtocolError:
            continue
        # Even an empty object is a message.
        assert body.lstrip()[:1] in (b"{", b"0")
