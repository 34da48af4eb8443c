# SPDX-License-Identifier: Apache-2.0
"""Recorded conversations with a real broker (``tests/data/transcripts``, described in the README there)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from bmq.wire.constants import EventType

__all__ = ["RECORDINGS", "Recorded", "probes", "recorded", "stream"]

DIRECTORY = Path(__file__).parent / "data" / "transcripts"
#: The names of the recordings, without ``.jsonl``.
RECORDINGS = sorted(p.stem for p in DIRECTORY.glob("*.jsonl") if not p.stem.startswith("probes"))

Direction = Literal["c2b", "b2c"]


@dataclass(frozen=True)
class Recorded:
    """An event of a recording.

    Attributes:
        recording: the file's name without its suffix.
        line: its line in the file, from 1.
        connection: number of the connection in the recording.
        seconds: time since the start of the recording.
        direction: "c2b" (client to broker) or "b2c".
        type: event type, as read by the recorder.
        data: the whole event.
    """

    recording: str
    line: int
    connection: int
    seconds: float
    direction: Direction
    type: EventType
    data: bytes

    def __str__(self) -> str:
        return f"{self.recording}:{self.line}"


@cache
def _load(recording: str) -> tuple[Recorded, ...]:
    events = []
    with (DIRECTORY / f"{recording}.jsonl").open() as lines:
        for number, line in enumerate(lines, 1):
            entry = json.loads(line)
            if "hex" in entry:
                events.append(
                    Recorded(
                        recording,
                        number,
                        entry["conn"],
                        entry["t"],
                        entry["dir"],
                        EventType(entry["type"]),
                        bytes.fromhex(entry["hex"]),
                    )
                )
    return tuple(events)


def recorded(
    *types: EventType, recording: str | None = None, direction: Direction | None = None
) -> list[Recorded]:
    """Return the recorded events of the given types (by default all), in order."""
    return [
        event
        for name in ([recording] if recording else RECORDINGS)
        for event in _load(name)
        if (not types or event.type in types) and (direction is None or event.direction == direction)
    ]


def stream(recording: str, connection: int, direction: Direction) -> bytes:
    """Return all bytes sent by one side of a connection."""
    events = recorded(recording=recording, direction=direction)
    return b"".join(event.data for event in events if event.connection == connection)


def probes() -> dict[str, Any]:
    """Return the answers of the real broker, by the name of the request."""
    with (DIRECTORY / "probes-real-broker.jsonl").open() as lines:
        return {entry["probe"]: entry["result"] for entry in map(json.loads, lines)}
