# SPDX-License-Identifier: Apache-2.0
"""Events field by field: the shown fields equal the codecs' results."""

from __future__ import annotations

from bmq.wire.anatomy import dissect
from bmq.wire.constants import ACK_STATUS_FROM_WIRE
from tests.sweeps import sweep
from tests.transcripts import EventType, recorded


@sweep("number", range(16))
def test_the_name_of_an_acknowledgements_status_is_the_clients(number: int) -> None:
    event = bytearray(recorded(EventType.ACK, recording="json-session")[-1].data)
    event[12] = number
    shown = [part.value for part in dissect(bytes(event)) if part.name == "status"]
    assert shown == [f"{number} ({ACK_STATUS_FROM_WIRE[number].name})"]
