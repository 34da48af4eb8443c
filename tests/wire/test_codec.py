# SPDX-License-Identifier: Apache-2.0
"""The words of the codecs are those of the Construct declarations, wherever a declaration puts a field."""

from __future__ import annotations

from typing import Any

import pytest
from construct import BitsInteger, BitStruct
from hypothesis import strategies as st

# The codecs have no public form, and every event depends on them.
from bmq.wire.codec import CODECS, StructureCodec
from bmq.wire.layout import LAYOUTS
from tests.sweeps import sweep

#: Words with all fields, for each structure.
STRUCTURES = {
    "EventHeader": "fragment+length protocolVersion+type headerWords typeSpecific reserved",
    "PutHeader": (
        "flags+messageWords optionsWords+compressionAlgorithmType+headerWords queueId messageGUID crc32c "
        "schemaId reserved"
    ),
    "PushHeader": (
        "flags+messageWords optionsWords+compressionAlgorithmType+headerWords queueId messageGUID schemaId "
        "reserved"
    ),
    "OptionHeader": "type+packed+typeSpecific+words",
    "SubQueueId": "id",
    "SubQueueInfo": "id unlimited+potentiallyPoisonous+remainingDeliveryAttempts+reserved",
    "AckHeader": "headerWords+perMessageWords flags reserved",
    "AckMessage": "reserved+status+correlationId messageGUID queueId",
    "ConfirmHeader": "headerWords+perMessageWords+reserved",
    "ConfirmMessage": "queueId messageGUID subQueueId",
    "RejectHeader": "headerWords+perMessageWords+reserved",
    "RejectMessage": "queueId messageGUID subQueueId",
    "MessagePropertiesHeader": "reserved+propertyHeaderSize2x+headerSize2x+areaWords reserved2 numProperties",
    "MessagePropertyHeader": "reserved+type+valueField reserved2+nameLength",
    "MessageGUID": "clientId",
}


def values_of(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """What each field may hold, read from the declaration and not from the codec under test."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for sub in LAYOUTS[name].subcon.subcons:
        bits = sub.sizeof()
        if not isinstance(sub.subcon, BitsInteger):
            fields[sub.name] = st.binary(min_size=bits // 8, max_size=bits // 8)
        else:
            least = -(1 << bits - 1) if sub.subcon.signed else 0
            fields[sub.name] = st.integers(least, least + (1 << bits) - 1)
    return st.fixed_dictionaries(fields)


@pytest.mark.statement("8.2")
@sweep(
    "name, first",
    [(name, at) for name, layout in LAYOUTS.items() for at in range(len(layout.subcon.subcons) - 1)],
)
def test_fields_in_another_order_are_noticed_at_import(name: str, first: int) -> None:
    """A swap changes the bytes, or a caller who names the words of the old order is refused."""
    members = list(LAYOUTS[name].subcon.subcons)
    members[first : first + 2] = members[first + 1], members[first]
    swapped = StructureCodec(name, BitStruct(*members))
    moved = members[first].name
    if swapped.fields[moved] == CODECS[name].fields[moved]:
        raise AssertionError(f"{moved} is where it was")
    if moved in STRUCTURES[name] and members[first + 1].name in STRUCTURES[name]:
        with pytest.raises(TypeError, match="does not have"):
            swapped.words(*STRUCTURES[name].split())
