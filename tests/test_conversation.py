"""The page for people who write other clients: every byte is named, every event and member is there."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import pytest

from bmq.wire.constants import EventType
from bmq.wire.control import MessageKind
from bmq.wire.control.ber import encode_ber
from bmq.wire.control.messages import CHOICES, ControlMessage, OpenQueue, QueueHandleParameters
from bmq.wire.layout import LAYOUTS
from tests.test_docs import DOCS
from tests.test_docs import generate as generate
from tests.transcripts import RECORDINGS, recorded


@pytest.fixture
def conversation(generate: ModuleType) -> Any:
    return generate.conversation


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_byte_of_what_was_recorded_is_in_one_row(conversation: Any, name: str) -> None:
    for event in recorded(recording=name):
        rows = conversation.rows(event.data)
        assert b"".join(row.data for row in rows) == event.data, str(event)
        position = 0
        for row in rows:
            assert row.start == position, f"{event}: {row}"
            position += len(row.data)
        assert [row.name for row in rows if "newer" in row.name] == [], str(event)


def test_fields_that_share_a_byte_are_shown_together_with_their_values(conversation: Any) -> None:
    event = bytes.fromhex("000000084b020000")
    shown = [(row.start, row.data.hex(), row.name, row.value) for row in conversation.rows(event)]
    assert shown == [
        (0, "", "EventHeader", ""),
        (0, "00000008", "fragment, length", "0, 8"),
        (4, "4b", "protocolVersion, type", "1, 11 (HEARTBEAT_REQ)"),
        (5, "02", "headerWords", "2"),
        (6, "00", "typeSpecific", "0"),
        (7, "00", "reserved", "0"),
    ]


def test_names_and_values_of_properties_are_cut_in_both_encodings(conversation: Any) -> None:
    """The same two properties, as the recordings have them: one posted, one rewritten for an old consumer."""
    posted, rewritten = (conversation.recording("json-old")[line][1] for line in (11, 13))
    for event, tells in (
        (posted, ["0", "9"]),
        (rewritten, ["4", "2"]),
    ):  # where names begin; lengths of values
        rows = conversation.rows(event)
        found = [(row.value, row.data) for row in rows if row.name in ("name", "value")]
        assert found == [
            ("alpha", b"alpha"),
            ("7 (INT32)", b"\0\0\0\7"),
            ("beta", b"beta"),
            ("'hi' (STRING)", b"hi"),
        ]
        assert [row.value.split(", ")[-1] for row in rows if row.name.endswith("valueField")] == tells


def test_an_event_with_words_of_a_newer_peer_keeps_all_of_its_bytes(conversation: Any) -> None:
    event = bytes.fromhex("0000000c49030000cafecafe")
    last = conversation.rows(event)[-1]
    assert (last.start, last.data, last.name) == (8, bytes.fromhex("cafecafe"), "words of a newer peer")


MESSAGE = ControlMessage(7, OpenQueue(QueueHandleParameters(uri="bmq://d/q", q_id=300)))


def test_ber_is_named_element_by_element(conversation: Any) -> None:
    rows = conversation.ber_rows(encode_ber(MESSAGE), MessageKind.CONTROL)
    assert b"".join(row.data for row in rows) == encode_ber(MESSAGE)
    said = {row.name: row.value for row in rows if row.value}
    assert said["rId"] == "7"
    assert said["uri"] == "bmq://d/q"
    assert said["qId"] == "300"
    assert [row.name for row in rows][:4] == ["ControlMessage", "rId", "choice", "openQueue"]


def test_ber_of_definite_length_and_unknown_elements_are_read_too(conversation: Any) -> None:
    rows = conversation.ber_rows(bytes.fromhex("300a800107a102a100890101"), MessageKind.CONTROL)
    assert [(row.name, row.value) for row in rows] == [
        ("ControlMessage", ""),
        ("rId", "7"),
        ("choice", ""),
        ("disconnect", ""),
        ("id 9, of a newer peer", "1 bytes"),
    ]


@pytest.fixture
def page(generate: ModuleType) -> str:
    return str(generate.fill((DOCS / "wire.md").read_text(encoding="utf-8")))


def test_every_event_has_its_row(page: str) -> None:
    table = page.split("## Events", 1)[1].split("## EventHeader", 1)[0]
    for kind in set(EventType) - {EventType.UNDEFINED}:
        assert re.search(rf"^\| .*\b{kind.name}\b", table, re.MULTILINE), kind.name
    for name in LAYOUTS:
        assert f"## {name}\n" in page


def test_every_member_of_every_control_message_has_its_row(page: str) -> None:
    choices = [*CHOICES.values(), ControlMessage.MEMBERS[1].kind]
    messages = [of for choice in choices for of in choice.by_id.values()]  # type: ignore[attr-defined]
    assert len(messages) > 15
    for of in messages:
        name = of.__name__[0].lower() + of.__name__[1:]
        section = page.split(f"\n### {name}\n", 1)[1].split("\n### ", 1)[0]
        assert re.findall(r"^\| (\d+) \| `(\w+)` \|", section, re.MULTILINE) == [
            (str(member.id), member.name) for member in of.MEMBERS
        ]


def test_both_encodings_stand_side_by_side(conversation: Any) -> None:
    text = conversation.side_by_side()
    for name in ("clientIdentity", "brokerResponse", "openQueue", "configureStream", "status", "closeQueue"):
        section = text.split(f"### {name}\n", 1)[1].split("\n### ", 1)[0]
        assert "```json" in section
        assert f"end of {name}" in section
