# SPDX-License-Identifier: Apache-2.0
"""Control events of a newer peer: new members, new enumerators, and longer headers."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from bmq.wire.control import SELECTIONS, Structure, members
from bmq.wire.event import HEADER_SIZE, pack_schema_event

#: A member and an enumerator of the next version.
NEW_MEMBER, NEW_ENUMERATOR = "sinceNextYear", "E_NEXT_YEAR"


def enumerations() -> set[str]:
    """The names of all members that hold an enumerator, in any structure of the control schema."""
    waiting = [kind for each in SELECTIONS.values() for kind in each.values()]
    names, seen = set[str](), set(waiting)
    while waiting:
        for member in members(waiting.pop()):
            if issubclass(member.kind, IntEnum):
                names.add(member.name)
            elif issubclass(member.kind, Structure) and member.kind not in seen:
                seen.add(member.kind)
                waiting.append(member.kind)
    return names


def with_new_members(document: Any) -> Any:
    """Return a JSON document with a new member in every object."""
    if isinstance(document, list):
        return [with_new_members(each) for each in document]
    if not isinstance(document, dict):
        return document
    return {**{key: with_new_members(value) for key, value in document.items()}, NEW_MEMBER: {"deep": [1]}}


def with_new_enumerators(document: Any, value: Any = NEW_ENUMERATOR) -> Any:
    """Return a JSON document with a new enumerator in place of every enumerator except E_SUCCESS."""
    if isinstance(document, list):
        return [with_new_enumerators(each, value) for each in document]
    if not isinstance(document, dict):
        return document
    return {
        key: value if key in enumerations() and inner != "E_SUCCESS" else with_new_enumerators(inner, value)
        for key, inner in document.items()
    }


def edited(event: bytes, edit: Callable[[Any], Any]) -> bytes:
    body = event[HEADER_SIZE : len(event) - event[-1]]
    return pack_schema_event(event[4] & 0x3F, event[6] >> 5, json.dumps(edit(json.loads(body))).encode())


def longer_header(event: bytes, words: int) -> bytes:
    """Return an event with a longer header; all bits of the added words are set."""
    more = words * 4 - HEADER_SIZE
    length = (len(event) + more).to_bytes(4, "big")
    return length + event[4:5] + bytes((words,)) + event[6:HEADER_SIZE] + b"\xff" * more + event[HEADER_SIZE:]
