# SPDX-License-Identifier: Apache-2.0
# The rows of a table take any arguments: pyright cannot know those of a lambda in a row.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
"""Control messages in BER: the cases of requests, repeated in BER, and unusual forms of the encoding."""

from __future__ import annotations

from collections.abc import Callable

from bmq.wire.constants import EventType
from bmq.wire.control import Codec, ControlMessage
from bmq.wire.control_event import encode_event
from bmq.wire.event import HEADER_SIZE, pack_schema_event
from conformance.bench import Bench
from conformance.case import Cases, Check, Level, check, fail
from conformance.cases.framing import GROUP as _FRAMING
from conformance.cases.modes import GROUP as _MODES
from conformance.cases.negotiation import GROUP as _NEGOTIATION
from conformance.cases.requests import GROUP as _REQUESTS
from conformance.cases.requests import JSON_ONLY
from conformance.peer import open_request

__all__ = ["GROUP"]

GROUP = Cases(12, "Requests in BER")

_M, _S, _O = Level.MUST, Level.SHOULD, Level.OBSERVED


async def _in_ber(bench: Bench, case: Check) -> None:
    bench.codec = Codec.BER
    await case(bench)
    for peer in bench.peers:
        if Codec.JSON in peer.codecs:
            raise fail("answers in BER", "an answer in JSON")


#: Sections that are repeated in BER: the section, and its cases in JSON. Numbers of cases stay the same.
_SECTIONS: tuple[tuple[int, Cases, str], ...] = (
    (1, _REQUESTS, "3.1"),
    (2, _REQUESTS, "3.2"),
    (3, _REQUESTS, "3.3"),
    (4, _REQUESTS, "3.4"),
    (5, _REQUESTS, "3.5"),
    (6, _FRAMING, "2.5"),
    (7, _MODES, "7.1"),
    (8, _NEGOTIATION, "1.7"),
)

for _section, _group, _name in _SECTIONS:
    for _case in _group.cases:
        if _case.section == _name and _case.number not in JSON_ONLY:
            GROUP.add(
                f"12.{_section}.{_case.key[2]}",
                _case.statement,
                _case.level,
                f"{_case.title} (BER)",
                f"{_case.sends}, in BER",
                f"{_case.expects}, in BER",
                _in_ber,
                _case.check,
                domains=_case.domains,
                seconds=_case.seconds,
            )


# ---- 12.9 unusual forms

_END = b"\0\0"
_INDEFINITE = 0x80


def _length(count: int, size: int = 0) -> bytes:
    """A definite length: as short as possible, or in a number of bytes."""
    if not size and count < 128:
        return bytes([count])
    size = size or (count.bit_length() + 7) // 8
    return bytes([0x80 | size]) + count.to_bytes(size, "big")


class _Element:
    """An element, with members if constructed."""

    def __init__(self, tag: int, content: bytes, members: list[_Element] | None) -> None:
        self.tag = tag
        self.content = content
        self.members = members

    def written(self, *, definite: bool = False, size: int = 0) -> bytes:
        """The bytes, with definite lengths of members' lists, or long lengths of simple elements."""
        if self.members is None:
            return bytes([self.tag]) + _length(len(self.content), size) + self.content
        inner = b"".join(each.written(definite=definite, size=size) for each in self.members)
        if definite:
            return bytes([self.tag]) + _length(len(inner)) + inner
        return bytes([self.tag, _INDEFINITE]) + inner + _END


def _read(data: bytes, at: int = 0) -> tuple[_Element, int]:
    """Read an element as :mod:`bmq.wire.ber` writes it."""
    tag, first = data[at], data[at + 1]
    at += 2
    if first == _INDEFINITE:
        members: list[_Element] = []
        while data[at : at + 2] != _END:
            member, at = _read(data, at)
            members.append(member)
        return _Element(tag, b"", members), at + 2
    if first > _INDEFINITE:
        size = first & 0x7F
        first, at = int.from_bytes(data[at : at + size], "big"), at + size
    return _Element(tag, data[at : at + first], None), at + first


def _handle(request: _Element) -> list[_Element]:
    """The members of handleParameters: rId and the choice, openQueue, handleParameters."""
    place = request
    for index in (1, 0, 0):
        assert place.members is not None
        place = place.members[index]
    assert place.members is not None
    return place.members


def _with(request: _Element, member: _Element) -> bytes:
    _handle(request).append(member)
    return request.written()


def _wide(request: _Element) -> bytes:
    for each in _handle(request):
        if each.tag == 0x83:
            each.content = each.content.rjust(4, b"\0")
    return request.written()


def _without(request: _Element, *tags: int) -> bytes:
    members = _handle(request)
    members[:] = [each for each in members if each.tag not in tags]
    return request.written()


async def _form(bench: Bench, written: Callable[[_Element], bytes]) -> None:
    bench.codec = Codec.BER
    peer = await bench.client()
    event = encode_event(ControlMessage(r_id=77, body=open_request(bench.uri())), Codec.BER)
    request, _ = _read(event[HEADER_SIZE:])
    peer.send(pack_schema_event(EventType.CONTROL, Codec.BER, written(request)))
    check(await peer.reaction(77, "openQueueResponse"), "openQueueResponse", "reaction")


GROUP.rows(_form, [
    ("12.9.1", "3.17", _S, "Definite lengths are read", "with definite lengths of all elements", "openQueueResponse", lambda request: request.written(definite=True)),
    ("12.9.2", "3.18", _O, "Lengths in more bytes than needed are read", "with lengths of four bytes in simple elements", "openQueueResponse",
     lambda request: request.written(size=4)),
    ("12.9.3", "3.9", _M, "An unknown member at the end is skipped", "with a further member of id 15 in handleParameters", "openQueueResponse",
     lambda request: _with(request, _Element(0x8F, b"\1\2\3", None))),
    ("12.9.4", "3.9", _M, "An unknown member with members of its own is skipped", "with a further member of id 15, which has a member, in handleParameters",
     "openQueueResponse", lambda request: _with(request, _Element(0xAF, b"", [_Element(0x80, b"\1", None)]))),
    ("12.9.5", "3.21", _O, "Integers in more bytes than needed are read", "with flags of four bytes", "openQueueResponse", _wide),
    ("12.9.6", "3.10", _O, "Missing members have their defaults", "without qId and without adminCount", "openQueueResponse",
     lambda request: _without(request, 0x81, 0x86)),
], sends="openQueue in BER {}", domains=("priority",))  # fmt: skip
