# SPDX-License-Identifier: Apache-2.0
"""TCP byte streams out of packet captures (pcap and pcapng), as tcpdump and Wireshark write them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address

from bmq.cli.messages import BadInput

__all__ = ["TcpStream", "is_capture", "tcp_streams"]

_PCAP = {
    b"\xa1\xb2\xc3\xd4": ">",
    b"\xd4\xc3\xb2\xa1": "<",
    b"\xa1\xb2\x3c\x4d": ">",
    b"\x4d\x3c\xb2\xa1": "<",
}
_PCAPNG = b"\x0a\x0d\x0d\x0a"
_IPV4, _IPV6 = 0x0800, 0x86DD
_VLAN = (0x8100, 0x88A8)
_TCP = 6
_SYN = 2
_WRAP = 2**32


@dataclass(slots=True)
class TcpStream:
    """Bytes of one side of a connection.

    Attributes:
        source: address and port of the sender.
        target: address and port of the receiver.
        data: the bytes, in order.
        missing: number of bytes that the capture lacks between ``data`` and later segments.
        begins: whether the beginning of the connection was captured.
    """

    source: str
    target: str
    data: bytearray = field(default_factory=bytearray)
    missing: int = 0
    begins: bool = False
    _next: int | None = None
    _later: dict[int, bytes] = field(default_factory=dict[int, bytes])

    def segment(self, sequence: int, payload: bytes, *, begins: bool) -> None:
        """Take a segment; early segments wait, repeated segments are dropped."""
        if begins:
            self.begins = True
            self._next = (sequence + 1) % _WRAP
            return
        if not payload:
            return
        if self._next is None:
            self._next = sequence
        ahead = (sequence - self._next) % _WRAP
        if ahead < _WRAP // 2:
            if len(self._later.get(sequence, b"")) < len(payload):
                self._later[sequence] = payload
        elif (repeated := _WRAP - ahead) < len(payload):
            self._later[self._next] = payload[repeated:]
        while self._next in self._later:
            ready = self._later.pop(self._next)
            self.data += ready
            self._next = (self._next + len(ready)) % _WRAP

    def finish(self) -> None:
        """Set ``missing`` from segments that still wait for earlier ones."""
        if self._later and self._next is not None:
            self.missing = min((sequence - self._next) % _WRAP for sequence in self._later)


def is_capture(data: bytes) -> bool:
    """Whether a file begins as a packet capture does."""
    return data[:4] in _PCAP or data[:4] == _PCAPNG


def tcp_streams(data: bytes) -> list[TcpStream]:
    """Return the streams of a capture, in the order of their first packets.

    Raises:
        BadInput: the capture is cut off, or has packets of an unknown kind.
    """
    streams: dict[tuple[str, str], TcpStream] = {}
    order: list[TcpStream] = []
    for link, packet in _packets(data):
        found = _tcp(link, packet)
        if found is None:
            continue
        source, target, sequence, flags, payload = found
        key = (source, target)
        stream = streams.get(key)
        if stream is None or (flags & _SYN and stream.data):  # a port is used again
            stream = streams[key] = TcpStream(source, target)
            order.append(stream)
        stream.segment(sequence, payload, begins=bool(flags & _SYN))
    for stream in order:
        stream.finish()
    return [stream for stream in order if stream.data]


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Iterate over packets with the number of their link-layer type."""
    try:
        yield from _pcapng(data) if data[:4] == _PCAPNG else _pcap(data)
    except struct.error:
        raise BadInput("the capture ends in the middle of a packet") from None


def _pcap(data: bytes) -> Iterator[tuple[int, bytes]]:
    order = _PCAP[data[:4]]
    (link,) = struct.unpack_from(order + "I", data, 20)
    position = 24
    while position < len(data):
        (length,) = struct.unpack_from(order + "I", data, position + 8)
        position += 16
        if position + length > len(data):
            raise BadInput("the capture ends in the middle of a packet")
        yield link & 0xFFFF, data[position : position + length]
        position += length


def _pcapng(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    order = "<"
    links: list[int] = []
    while position < len(data):
        (kind,) = struct.unpack_from(order + "I", data, position)
        if kind == 0x0A0D0D0A:
            order = "<" if data[position + 8 : position + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            links = []
        (length,) = struct.unpack_from(order + "I", data, position + 4)
        if length < 12 or position + length > len(data):
            raise BadInput("the capture ends in the middle of a block")
        if kind == 1:
            links.append(struct.unpack_from(order + "H", data, position + 8)[0])
        elif kind == 6:
            interface, _, _, captured = struct.unpack_from(order + "IIII", data, position + 8)
            if interface < len(links):
                yield links[interface], data[position + 28 : position + 28 + captured]
        position += length


def _network(link: int, packet: bytes) -> tuple[int, bytes]:
    """Return the EtherType and the bytes behind the link-layer header."""
    match link:
        case 1:
            kind, start = int.from_bytes(packet[12:14], "big"), 14
            while kind in _VLAN:
                kind, start = int.from_bytes(packet[start + 2 : start + 4], "big"), start + 4
            return kind, packet[start:]
        case 113:
            return int.from_bytes(packet[14:16], "big"), packet[16:]
        case 276:
            return int.from_bytes(packet[0:2], "big"), packet[20:]
        case 0 | 108:
            packet = packet[4:]
        case 12 | 14 | 101:
            pass
        case _:
            raise BadInput(
                f"packets of link type {link} are not known here; Ethernet, loopback and raw IP are"
            )
    return (_IPV6 if packet[:1] and packet[0] >> 4 == 6 else _IPV4), packet


def _tcp(link: int, packet: bytes) -> tuple[str, str, int, int, bytes] | None:
    kind, packet = _network(link, packet)
    if kind == _IPV4 and len(packet) >= 20:
        start, length, protocol = (packet[0] & 15) * 4, int.from_bytes(packet[2:4], "big"), packet[9]
        source, target = ip_address(packet[12:16]), ip_address(packet[16:20])
    elif kind == _IPV6 and len(packet) >= 40:
        start, length, protocol = 40, 40 + int.from_bytes(packet[4:6], "big"), packet[6]
        source, target = ip_address(packet[8:24]), ip_address(packet[24:40])
    else:
        return None
    segment = packet[start : length or None]
    if protocol != _TCP or len(segment) < 20:
        return None
    source_port, target_port, sequence = struct.unpack_from(">HHI", segment)
    return (
        f"{source}:{source_port}",
        f"{target}:{target_port}",
        sequence,
        segment[13],
        segment[(segment[12] >> 4) * 4 :],
    )
