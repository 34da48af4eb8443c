# SPDX-License-Identifier: Apache-2.0
"""Events field by field: the shown fields equal the codecs' results."""

from __future__ import annotations

import pytest

from bmq.wire.anatomy import dissect
from bmq.wire.constants import ACK_STATUS_FROM_WIRE
from tests.transcripts import EventType, recorded


@pytest.mark.parametrize("number", range(16))
def test_the_name_of_an_acknowledgements_status_is_the_clients(number: int) -> None:
    event = bytearray(recorded(EventType.ACK, recording="json-session")[-1].data)
    event[12] = number
    shown = [part.value for part in dissect(bytes(event)) if part.name == "status"]
    assert shown == [f"{number} ({ACK_STATUS_FROM_WIRE[number].name})"]
