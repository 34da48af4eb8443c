# SPDX-License-Identifier: Apache-2.0
"""Recorded conversations: one JSON line for each event."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bmq._json import orjson
from bmq.cli.messages import BadInput

__all__ = ["TO_BROKER", "TO_CLIENT", "Recorded", "read_recording"]

TO_BROKER, TO_CLIENT = "c2b", "b2c"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One event.

    Attributes:
        connection: number of the connection, from 1.
        seconds: seconds since the start of the recording.
        direction: "c2b" from the client, "b2c" from the broker.
        data: bytes of the event; empty at the end of the connection.
    """

    connection: int
    seconds: float
    direction: str
    data: bytes


def read_recording(path: str) -> tuple[list[Recorded], str]:
    """Return the events of a recording, and the error at its end, if any.

    Raises:
        BadInput: the file is not a recording.
        OSError: the file cannot be read.
    """
    lines = Path(path).read_bytes().splitlines(keepends=True)
    events: list[Recorded] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = cast("dict[str, Any]", orjson.loads(line))
            event = Recorded(
                int(entry["conn"]), float(entry["t"]), entry["dir"], bytes.fromhex(entry.get("hex", ""))
            )
            if event.direction not in (TO_BROKER, TO_CLIENT):
                raise ValueError(f"dir is {event.direction!r}")
        except (KeyError, TypeError, ValueError) as error:
            if number == len(lines) and not line.endswith(b"\n") and events:
                return events, f"{path} ends in the middle of line {number}, which is omitted"
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise BadInput(f"{path}, line {number}: not a line of a recording: {what}") from None
        events.append(event)
    return events, ""
