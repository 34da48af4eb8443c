# SPDX-License-Identifier: Apache-2.0
"""A client of raw bytes, for the reproductions in this folder: Python's standard library alone."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

CONTROL, PUT, CONFIRM, PUSH, ACK = 1, 2, 3, 4, 5
#: The table of Castagnoli's polynomial.
_CRC = [0] * 256
for _index in range(256):
    _value = _index
    for _ in range(8):
        _value = (_value >> 1) ^ (0x82F63B78 if _value & 1 else 0)
    _CRC[_index] = _value


def crc32c(data: bytes) -> int:
    """The checksum of a PUT message."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def event(kind: int, body: bytes, specific: int = 0) -> bytes:
    """An event with its header of 8 bytes."""
    return struct.pack(">IBBBB", 8 + len(body), 0x40 | kind, 2, specific, 0) + body


def padded(data: bytes, size: int = 4) -> bytes:
    """Add the padding of the protocol, whose bytes are its length."""
    count = size - len(data) % size
    return data + bytes((count,)) * count


def properties(values: dict[str, int]) -> bytes:
    """Integers as properties in the old encoding: headers, names and values, padded to words."""
    heads, area = b"", b""
    for name, value in values.items():
        heads += struct.pack(">HHH", 5 << 10, 8, len(name))
        area += name.encode() + struct.pack(">q", value)
    words = (6 + len(heads) + len(area)) // 4 + 1
    head = struct.pack(">BBHBB", (3 << 3) | 3, words >> 16, words & 0xFFFF, 0, len(values))
    return padded(head + heads + area)


class Client:
    """A negotiated connection with a broker.

    Args:
        port: the broker's port on loopback.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 5)
        self._data = b""
        self._kept: list[tuple[int, bytes]] = []
        self._request = 0
        self._guid = 0
        self.send_json(
            {
                "clientIdentity": {
                    "protocolVersion": 1,
                    "sdkVersion": 999_999,
                    "clientType": "E_TCPCLIENT",
                    "processName": "reproduction",
                    "pid": 1,
                    "sessionId": 1,
                    "hostName": "localhost",
                    "features": "PROTOCOL_ENCODING:JSON",
                    "clusterName": "",
                    "clusterNodeId": -1,
                    "sdkLanguage": "E_CPP",
                    "guidInfo": {"clientId": "0123456789AB", "nanoSecondsFromEpoch": 1},
                }
            }
        )
        self.control()

    def send(self, data: bytes) -> None:
        """Send bytes, and print them."""
        print(f"> {data[:160].hex(' ', 4)}{' ...' if len(data) > 160 else ''}")
        self._socket.sendall(data)

    def send_json(self, message: dict[str, Any]) -> None:
        """Send a control message."""
        print(f"> {json.dumps(message)[:300]}")
        self._socket.sendall(event(CONTROL, padded(json.dumps(message).encode()), 0x20))

    def read(self, seconds: float = 3.0) -> tuple[int, bytes] | None:
        """Return type and body of the next event, or None after some seconds.

        Raises:
            ConnectionError: the broker ended the connection.
        """
        self._socket.settimeout(seconds)
        while len(self._data) < 8 or len(self._data) < struct.unpack_from(">I", self._data)[0] & 0x7FFFFFFF:
            try:
                more = self._socket.recv(1 << 16)
            except TimeoutError:
                return None
            if not more:
                raise ConnectionError("the broker ended the connection")
            self._data += more
        size = struct.unpack_from(">I", self._data)[0] & 0x7FFFFFFF
        found, self._data = self._data[:size], self._data[size:]
        return found[4] & 0x3F, found[4 * found[5] :]

    def control(self) -> dict[str, Any]:
        """Return the next control message."""
        while True:
            found = self.read(10)
            if found is None:
                raise TimeoutError("no control message within 10 s")
            if found[0] != CONTROL:
                self._kept.append(found)
            else:
                body = found[1]
                message: dict[str, Any] = json.loads(body[: len(body) - body[-1]])
                print(f"< {json.dumps(message)[:200]}")
                return message

    def ask(self, **choice: Any) -> dict[str, Any]:
        """Send a request, and return the answer."""
        self._request += 1
        self.send_json({"rId": self._request, **choice})
        return self.control()

    def open(self, uri: str, q_id: int = 0, *, read: bool = False, write: bool = False) -> dict[str, Any]:
        """Open a queue."""
        return self.ask(
            openQueue={
                "handleParameters": {
                    "uri": uri,
                    "qId": q_id,
                    "flags": (2 if read else 0) | (12 if write else 0),
                    "readCount": int(read),
                    "writeCount": int(write),
                    "adminCount": 0,
                }
            }
        )

    def subscribe(self, *subscriptions: tuple[str, int], q_id: int = 0, priority: int = 1) -> dict[str, Any]:
        """Configure a queue with subscriptions of (expression, messages in flight)."""
        return self.ask(
            configureStream={
                "qId": q_id,
                "streamParameters": {
                    "appId": "__default",
                    "subscriptions": [
                        {
                            "sId": number,
                            "expression": {"version": "E_VERSION_1" if text else "E_UNDEFINED", "text": text},
                            "consumers": [
                                {
                                    "maxUnconfirmedMessages": window,
                                    "maxUnconfirmedBytes": 33_554_432,
                                    "consumerPriority": priority,
                                    "consumerPriorityCount": 1,
                                }
                            ],
                        }
                        for number, (text, window) in enumerate(subscriptions, 1)
                    ],
                },
            }
        )

    def post(self, payload: bytes, values: dict[str, int] | None = None, q_id: int = 0) -> bytes:
        """Post a message with integer properties; return its GUID."""
        self._guid += 1
        guid = b"\x40" + self._guid.to_bytes(9, "big") + bytes.fromhex("0123456789AB")
        data = (properties(values) if values else b"") + payload
        full = padded(data)
        head = struct.pack(
            ">IIi16sIBBBB",
            (1 | (2 if values else 0)) << 28 | (36 + len(full)) // 4,
            9,
            q_id,
            guid,
            crc32c(data),
            0,
            0,
            0,
            0,
        )
        self.send(event(PUT, head + full))
        return guid

    def payloads(self, seconds: float = 3.0) -> list[bytes]:
        """Return the payloads that arrive until nothing arrives for some seconds; ACK events are skipped."""
        found = []
        while (received := self._kept.pop(0) if self._kept else self.read(seconds)) is not None:
            kind, body = received
            while kind == PUSH and body:
                size, options, _, _ = struct.unpack_from(">IIi16s", body)
                size, words, head = size & 0x0FFFFFFF, options >> 8, options & 0xFF
                message = body[: size * 4]
                data = message[4 * ((head & 0x1F) + (words & 0xFFFFFF)) :]
                found.append(data[: len(data) - data[-1]])
                body = body[size * 4 :]
        return found

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


def is_alive(port: int) -> bool:
    """Whether a broker accepts connections."""
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
    except OSError:
        return False
    return True
