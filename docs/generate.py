# SPDX-License-Identifier: Apache-2.0
"""The parts of the documentation that come from the code.

A page marks the place of a part with ``<!-- generated: NAME -->``; MkDocs calls the hooks at the end of this
file. The sources are the objects at work: the Construct declarations, the transition tables and the error
classes.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import textwrap
import tokenize
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag
from functools import cache
from html import escape
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from annotated import annotate, annotate_area, drawn, recording
from construct import Construct
from diagram import Edge, state_diagram
from included import include
from messages import logged
from reference import Reference
from specification import anchor, contents, declarations, declared_machines, numbered, untested

import bmq
import bmq.admin
import bmq.arrow
import bmq.asyncapi
import bmq.blocking
import bmq.console
import bmq.conventions
import bmq.errors
import bmq.events
import bmq.groups
import bmq.health
import bmq.inbox
import bmq.interceptors
import bmq.otel
import bmq.prometheus
import bmq.spark
import bmq.stats
import bmq.subscriptions
import bmq.taskiq
import bmq.typed
import bmq.types
from bmq._json import orjson
from bmq.broker._session import BrokerSession
from bmq.client.buffer import ReceiveBuffer
from bmq.errors import AckStatus, ProtocolError, StatusCategory
from bmq.groups._protocol import Assignment, Candidate
from bmq.protocol.client.core import ClientCore
from bmq.protocol.client.handshake import Handshake
from bmq.protocol.client.queue import QueueCore
from bmq.protocol.client.subscription import SubscriptionSet
from bmq.testing._checker import RULES
from bmq.wire import constants, control, layout
from bmq.wire.ack import encode_acks
from bmq.wire.anatomy import read_control
from bmq.wire.confirm import encode_queue_confirms, pack_confirms
from bmq.wire.constants import EventType, PropertyType, PutFlags
from bmq.wire.control import (
    SELECTIONS,
    AdminCommand,
    AdminCommandResponse,
    Codec,
    ControlMessage,
    Disconnect,
    Member,
    Message,
    MessageKind,
    Structure,
    encode_json,
    members,
    selection_name,
)
from bmq.wire.control_event import encode_event
from bmq.wire.crc import crc32c
from bmq.wire.event import pack_event_header, read_event
from bmq.wire.options import encode_sub_queue_ids
from bmq.wire.properties import PropertyInput, PropertyValue, encode_properties
from bmq.wire.push import encode_push
from bmq.wire.put import encode_put_event
from bmq.workers._app import Life
from bmq.workers._options import HandlerOptions
from conformance import all_cases, client_cases

ROOT = Path(__file__).parent.parent
MARKER = re.compile(r"^<!-- generated: ([a-z-]+)((?: [\w-]+)*) -->$", re.MULTILINE)
ROW_BITS = 32
#: Characters of a field's name for each bit of a diagram.
CHARACTERS_PER_BIT = 2.4


@dataclass(frozen=True)
class Field:
    """A field's place in a structure; bit 0 is the most significant bit of the first byte."""

    name: str
    start: int
    bits: int
    kind: str


def layout_fields(declaration: Construct) -> list[Field]:
    """Walk a declaration: every field with its first bit, its width and its type."""
    fields: list[Field] = []
    start = 0
    for member in declaration.subcon.subcons:
        bits = member.sizeof()
        signed = getattr(member.subcon, "signed", None)
        if signed is None:
            kind = f"{bits // 8} bytes"
        else:
            kind = "signed" if signed else "unsigned"
        fields.append(Field(member.name, start, bits, kind))
        start += bits
    return fields


def notes(module: ModuleType) -> dict[str, str]:
    """The ``#:`` comments above a module's names."""
    found: dict[str, str] = {}
    pending: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(module)).readline):
        if token.type == tokenize.COMMENT and token.string.startswith("#:"):
            pending.append(token.string[2:].strip())
        elif token.type == tokenize.NAME and pending:
            found[token.string] = " ".join(pending)
            pending = []
    return found


def _code(text: str) -> str:
    return text.replace("``", "`")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _segments(fields: list[Field]) -> Iterator[list[tuple[int, Field, int, bool]]]:
    """Cut the fields into rows of 32 bits: (number, field, bits in this row, whether it continues)."""
    row: list[tuple[int, Field, int, bool]] = []
    free = ROW_BITS
    for number, item in enumerate(fields, 1):
        left = item.bits
        while left:
            bits = min(left, free)
            row.append((number, item, bits, left < item.bits))
            left -= bits
            free -= bits
            if not free:
                yield row
                row, free = [], ROW_BITS
    if row:
        yield row


def bit_diagram(fields: list[Field]) -> str:
    """The structure as rows of 32 bits; a narrow field shows its number in the table instead of its name."""
    rows = []
    for row in _segments(fields):
        cells = []
        for number, item, bits, continued in row:
            fits = len(item.name) + 2 * continued <= bits * CHARACTERS_PER_BIT
            text = ("… " if continued else "") + item.name if fits else str(number)
            title = f"{number}: {item.name}, {item.bits} bits"
            cells.append(f'<td colspan="{bits}" title="{escape(title)}">{escape(text)}</td>')
        rows.append("<tr>" + "".join(cells) + "</tr>")
    head = "".join(f"<th>{bit}</th>" for bit in range(ROW_BITS))
    return f'<table class="bits"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


@cache
def meanings() -> dict[str, dict[str, str]]:
    """The meaning of each field of the protocol, by structure."""
    return tomllib.loads((Path(__file__).parent / "fields.toml").read_text(encoding="utf-8"))


def layouts() -> str:
    """Every structure: purpose, bits, and a table of fields."""
    return "\n\n".join(structure(name, "##") for name in layout.LAYOUTS)


def structure(name: str, level: str = "###") -> str:
    """One structure: purpose, bits, and a table of fields."""
    fields = layout_fields(layout.LAYOUTS[name])
    rows = [
        (
            str(number),
            f"{f.start // 8}",
            f"{f.start % 8}",
            str(f.bits),
            f"`{f.name}`",
            f.kind,
            meanings()[name][f.name],
        )
        for number, f in enumerate(fields, 1)
    ]
    remark = _code(notes(layout).get(name, ""))
    return "\n\n".join(
        [
            f"{level} {name}",
            f"{remark} {sum(f.bits for f in fields) // 8} bytes.".strip(),
            bit_diagram(fields),
            _table(("#", "byte", "bit", "bits", "field", "type", "meaning"), rows),
        ]
    )


def numbers(*names: str) -> str:
    """Some enumerations in the fields of structures."""
    return "\n\n".join(_enumeration(getattr(constants, name)) for name in names)


def control_numbers(*names: str) -> str:
    """Some enumerations in control messages."""
    return "\n\n".join(_enumeration(getattr(control, name)) for name in names)


def enumerations() -> str:
    """The numbers in the fields of structures."""
    return _enumerations(constants, Enum)


def control_enumerations() -> str:
    """The numbers in control messages; JSON has the names."""
    return _enumerations(control, IntEnum | IntFlag)


def _enumerations(module: ModuleType, kinds: Any) -> str:
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, kinds) and value.__module__ == module.__name__
    ]
    return "\n\n".join(_enumeration(value) for value in found)


def _enumeration(kind: type[Enum]) -> str:
    rows = [(str(member.value), f"`{member.name}`") for member in kind.__members__.values()]
    unit = "bit" if issubclass(kind, IntFlag) else "value"
    return "\n\n".join(
        [f"### {kind.__name__}", _code(inspect.getdoc(kind) or ""), _table((unit, "name"), rows)]
    )


def event(name: str, line: str, kind: str = "CONTROL") -> str:
    """One event of a recorded conversation, byte by byte; lines count from 1, as in the file."""
    side, data = recording(name)[int(line) - 1]
    who = "client to broker" if side == "c2b" else "broker to client"
    return f"*{who}, {len(data)} bytes*\n\n```text\n{drawn(annotate(data, MessageKind[kind]))}\n```"


def both_encodings() -> str:
    """The same properties in the old and in the new encoding."""
    properties = {
        "CustomerId": PropertyValue(PropertyType.INT32, 2000),
        "DestinationId": "ABC",
        "Urgent": True,
    }
    parts = []
    for new, title in ((False, "Old"), (True, "New")):
        area = encode_properties(properties, new=new)
        parts.append(f"**{title} encoding**\n\n```text\n{drawn(annotate_area(area, new=new))}\n```")
    return "\n\n".join(parts)


@cache
def _examples() -> dict[type, Message]:
    """A message of each kind: the first in the recordings, otherwise a message made here."""
    found: dict[type, Message] = {
        AdminCommand: ControlMessage(1, AdminCommand("HELP")),
        AdminCommandResponse: ControlMessage(1, AdminCommandResponse("This process responds to ...")),
    }
    for name in ("json-session", "json-old", "json-authentication"):
        for _, data in recording(name):
            read = read_event(data)
            if read.type in (EventType.CONTROL, EventType.AUTHENTICATION):
                try:
                    message = read_control(read)[0]
                except ProtocolError:  # recorded because a broker has refused the message
                    continue
                body = message.body if isinstance(message, ControlMessage) else message
                found.setdefault(type(body), message)
    return found


def _kind(member: Member) -> str:
    kind = member.kind
    if issubclass(kind, IntEnum):
        return f"a number of {kind.__name__}"
    if issubclass(kind, Structure):
        return ("list of " if member.array else "") + f"[{kind.__name__}](#{kind.__name__.lower()})"
    if kind is int:
        return ("int" if member.signed else "unsigned int") + f", {member.bits} bits"
    return {bool: "boolean", bytes: "bytes"}.get(kind, "string")


def _default(member: Member) -> str:
    if member.optional:
        return "may be missing"
    if issubclass(member.kind, Structure):
        return ""
    if isinstance(member.default, IntEnum):
        return f"`{member.default.name}`"
    return f"`{orjson.dumps(member.default).decode()}`"


def _members_of(cls: type[Structure]) -> str:
    if not members(cls):
        return "No members."
    rows = [
        (str(m.number), f"`{m.name}`", _kind(m), _default(m), meanings()[cls.__name__][m.name])
        for m in members(cls)
    ]
    return _table(("id", "member", "type", "if missing", "meaning"), rows)


def control_messages() -> str:
    """Every control message: the members, and an example in both codecs."""
    parts: list[str] = []
    examples = _examples()
    told: set[type] = set()
    inner: list[type[Structure]] = []
    for kind, number, cls in _selections():
        told.add(cls)
        whole = encode_event(examples[cls], Codec.BER)
        block = textwrap.indent(f"```text\n{drawn(annotate(whole, kind))}\n```", "    ")
        parts += [
            _message(kind, number, cls, "##"),
            f'??? note "The same in BER, byte by byte"\n\n{block}',
        ]
        inner += [t for t in _nested(cls) if t not in inner]
    parts.append("## Structures\n\nThe structures inside the messages above.")
    for cls in inner:
        if cls not in told:
            parts += [f"### {cls.__name__}", _members_of(cls)]
    return "\n\n".join(parts)


def _selections() -> Iterator[tuple[MessageKind, int, type[Structure]]]:
    for kind in (MessageKind.NEGOTIATION, MessageKind.AUTHENTICATION, MessageKind.CONTROL):
        for number, cls in SELECTIONS[kind].items():
            yield kind, number, cls


def _message(kind: MessageKind, number: int, cls: type[Structure], level: str) -> str:
    said = _code(inspect.getdoc(cls) or "").partition("\n\n")[0].replace(":class:", "").replace("\n", " ")
    return "\n\n".join(
        [
            f"{level} {selection_name(cls)}",
            f"{said} Selection {number} of {kind.value}.",
            _members_of(cls),
            f"```json\n{_wrapped(encode_json(_examples()[cls]).decode())}\n```",
        ]
    )


def message(name: str) -> str:
    """One control message: the members, and an example in JSON."""
    kind, number, cls = next(found for found in _selections() if selection_name(found[2]) == name)
    return _message(kind, number, cls, "###")


def control_structure(*names: str) -> str:
    """Structures inside control messages."""
    return "\n\n".join(f"### {name}\n\n{_members_of(getattr(control, name))}" for name in names)


@cache
def cases_by_statement() -> dict[str, list[str]]:
    """The cases of each statement of the protocol, in the order of their numbers."""
    found: dict[str, list[str]] = {}
    for case in (*all_cases(), *client_cases()):
        found.setdefault(case.statement, []).append(case.number)
    return found


def client_machines() -> str:
    """The state machines of a minimal client."""
    parts = []
    for machine in declared_machines():
        edges = [Edge(state, event, target) for state, event, _, target, _ in machine["transitions"]]
        rows = [
            (f"`{state}`", event, action, f"`{target}`", f"[{number}](#{anchor(number)})")
            for state, event, action, target, number in machine["transitions"]
        ]
        meanings_of = [(f"`{state}`", text) for state, text in machine["states"].items()]
        title = f"{machine['name']}; the table below has the same content"
        parts += [
            f"### {machine['name']}",
            machine["text"],
            state_diagram(list(machine["states"]), edges, title),
            _table(("state", "meaning"), meanings_of),
            _table(("state", "event", "action", "next state", "statement"), rows),
        ]
    return "\n\n".join(parts)


def vectors() -> str:
    """Events and parts of events as hexadecimal digits, from this library's codecs."""
    guid = bytes.fromhex("40000100000000003039cd8101020304")
    properties: dict[str, PropertyInput] = {"alpha": PropertyValue(PropertyType.INT32, 7), "beta": "hi"}
    new, old = (encode_properties(properties, new=each) for each in (True, False))
    flags = PutFlags.ACK_REQUESTED | PutFlags.MESSAGE_PROPERTIES
    push = encode_push(0, guid, b"hello\3\3\3", encode_sub_queue_ids((1,)))
    events = {
        "PUT, qId 0, payload hello": encode_put_event(0, (guid, b"hello", PutFlags.ACK_REQUESTED, 0, 0)),
        "PUT with both properties in the new encoding": encode_put_event(
            0, (guid, new + b"hello", flags, 1, 0)
        ),
        "ACK with the status 0": encode_acks([(0, 0, guid, 0)]),
        "ACK with the status 5": encode_acks([(5, 0, guid, 0)]),
        "PUSH with the sId 1, payload hello": pack_event_header(8 + len(push), EventType.PUSH) + push,
        "CONFIRM, qId 0, subQueueId 0": pack_confirms([encode_queue_confirms(0, [guid], 0)]),
        "disconnect in JSON": encode_event(ControlMessage(3, Disconnect()), Codec.JSON),
        "disconnect in BER": encode_event(ControlMessage(3, Disconnect()), Codec.BER),
    }
    areas = {
        "alpha = INT32 7 and beta = STRING hi in the new encoding": new,
        "The same properties in the old encoding": old,
    }
    texts = (b"", b"a", b"hello", b"123456789")
    checksums = [(f"`{text.decode()}`" if text else "no bytes", f"`{crc32c(text):08x}`") for text in texts]
    return "\n\n".join(
        [
            *(
                f"{title}:\n\n```text\n{_wrapped_words(data)}\n```"
                for title, data in {**areas, **events}.items()
            ),
            _table(("bytes", "CRC-32C"), checksums),
        ]
    )


def _wrapped_words(data: bytes) -> str:
    """Hexadecimal words, ten in a line; words are counted from the beginning."""
    words = [data[at : at + 4].hex() for at in range(0, len(data), 4)]
    return "\n".join(" ".join(words[at : at + 10]) for at in range(0, len(words), 10))


def _nested(cls: type[Structure]) -> Iterator[type[Structure]]:
    for found in members(cls):
        if issubclass(found.kind, Structure):
            yield found.kind
            yield from _nested(found.kind)


def _wrapped(text: str) -> str:
    """JSON in short lines, broken at the ends of members."""
    lines, line = [], ""
    for piece in re.split(r"(?<=[,{])(?=\")", text):
        if line and len(line) + len(piece) > 84:
            lines.append(line)
            line = ""
        line += piece
    return "\n".join([*lines, line])


def transition_tables() -> dict[str, Mapping[tuple[Enum, Enum], Any]]:
    """Every transition table of the protocol, by the name of its machine."""
    return {
        "Handshake": Handshake.TRANSITIONS,
        "Session": ClientCore.TRANSITIONS,
        "Queue": QueueCore.TRANSITIONS,
        "Subscriptions": SubscriptionSet.TRANSITIONS,
        "Consumer": ReceiveBuffer.TRANSITIONS,
        "App": Life.TRANSITIONS,
        "Bucket": Assignment.TRANSITIONS,
        "Candidate": Candidate.TRANSITIONS,
        "Broker": BrokerSession.TRANSITIONS,
    }


def _action(step: Any) -> str:
    """The name of a transition's action."""
    return f"`{step.action.__name__.removeprefix('_')}`" if step.action else ""


def _states(table: Mapping[tuple[Enum, Enum], Any]) -> list[Enum]:
    """The states in a table, in the order of their declaration."""
    used = {state for state, _ in table} | {step.next_state for step in table.values()}
    return [state for state in type(next(iter(used))) if state in used]


def drawing(name: str, table: Mapping[tuple[Enum, Enum], Any]) -> str:
    """A table's diagram."""
    edges = [Edge(state.name, event.name, step.next_state.name) for (state, event), step in table.items()]
    title = f"{name} state machine; the table below has the same content"
    return state_diagram([state.name for state in _states(table)], edges, title)


def transitions(table: Mapping[tuple[Enum, Enum], Any]) -> str:
    """A table as a table."""
    order = _states(table)
    rows = [
        (
            f"`{state.name}`",
            f"`{event.name}`",
            _action(step),
            f"`{step.next_state.name}`",
        )
        for (state, event), step in sorted(table.items(), key=lambda item: order.index(item[0][0]))
    ]
    return _table(("state", "event", "action", "next state"), rows)


def machines() -> str:
    """Every state machine: meaning of states and events, diagram, table."""
    parts = []
    for name, table in transition_tables().items():
        state, event = next(iter(table))
        parts += [f"## {name}", _code(inspect.getdoc(type(state)) or ""), drawing(name, table)]
        for title, values in (("state", _states(table)), ("event", list(type(event)))):
            parts.append(_table((title, "meaning"), [(f"`{m.name}`", str(m.value)) for m in values]))
        parts.append(transitions(table))
    return "\n\n".join(parts)


def _retryable(error: type[bmq.errors.Error]) -> str:
    decided_when_raised = any("self.retryable" in inspect.getsource(base.__init__) for base in _ours(error))
    if decided_when_raised:
        return "by status"
    return "yes" if error.retryable else "no"


def _ours(error: type[bmq.errors.Error]) -> list[Any]:
    return [
        base for base in error.__mro__ if base.__module__ == bmq.errors.__name__ and "__init__" in vars(base)
    ]


def _below(error: type[bmq.errors.Error]) -> list[type[bmq.errors.Error]]:
    return [child for child in error.__subclasses__() if child.__module__ == bmq.errors.__name__]


def _drawn(error: type[bmq.errors.Error], indent: str = "") -> Iterator[str]:
    children = _below(error)
    for child in children:
        last = child is children[-1]
        yield f"{indent}{'└──' if last else '├──'} {child.__name__}"
        yield from _drawn(child, indent + ("    " if last else "│   "))


def _listed(error: type[bmq.errors.Error]) -> Iterator[tuple[str, ...]]:
    builtin = [base.__name__ for base in error.__bases__ if not issubclass(base, bmq.errors.Error)]
    meaning = (inspect.getdoc(error) or "").partition("\n\n")[0].replace("\n", " ")
    also = ", ".join(f"`{name}`" for name in builtin if name != "Exception")
    yield f"[`{error.__name__}`](../api/{error.__name__}.md)", _code(meaning), _retryable(error), also
    for child in _below(error):
        yield from _listed(child)


def errors() -> str:
    """The error tree, and the meaning and ``retryable`` of each error."""
    root = bmq.errors.Error
    tree = "\n".join([root.__name__, *_drawn(root)])
    return f"```text\n{tree}\n```\n\n" + _table(("error", "meaning", "retryable", "also a"), _listed(root))


def statuses() -> str:
    """The two enumerations in errors."""
    acks = [
        (f"`{s.name}`", str(s.value), "yes" if s in bmq.errors.RETRYABLE_ACK_STATUSES else "")
        for s in AckStatus
    ]
    categories = [
        (f"`{c.name}`", str(c.value), "yes" if bmq.errors.RequestError("", category=c).retryable else "")
        for c in StatusCategory
    ]
    return "\n\n".join(
        [
            "### AckStatus",
            inspect.getdoc(AckStatus) or "",
            _table(("name", "value", "retryable"), acks),
            "### StatusCategory",
            _code(inspect.getdoc(StatusCategory) or ""),
            _table(("name", "value", "retryable"), categories),
        ]
    )


#: The modules of the API reference, in the order of the navigation.
MODULES: dict[str, ModuleType] = {
    each.__name__: each
    for each in (
        bmq,
        bmq.errors,
        bmq.events,
        bmq.stats,
        bmq.interceptors,
        bmq.health,
        bmq.typed,
        bmq.types,
        bmq.workers,
        bmq.codecs,
        bmq.subscriptions,
        bmq.groups,
        bmq.delays,
        bmq.inbox,
        bmq.conventions,
        bmq.blocking,
        bmq.broker,
        bmq.testing,
        bmq.admin,
        bmq.arrow,
        bmq.spark,
        bmq.otel,
        bmq.prometheus,
        bmq.taskiq,
        bmq.console,
        bmq.asyncapi,
    )
}
#: The leading names in the list of a module.
FIRST = {
    "bmq": [
        *("connect", "run", "Session", "Queue", "Consumer", "Message", "MessageBatch", "PutMessage", "Ack"),
        *("PostReport", "FailedPost", "Properties", "App"),
    ],
    "bmq.admin": ["connect", "Admin", "QueueAdmin"],
    "bmq.blocking": ["connect", "Session", "Queue", "Consumer"],
}
#: The classes behind keyword arguments: defaults and texts are those of the arguments.
SOURCES: dict[str, Sequence[Any]] = {
    "SessionFields": [bmq.SessionOptions],
    "ConnectOptions": [bmq.connect, bmq.SessionOptions],
    **dict.fromkeys(("ConsumerOptions", "BatchConsumerOptions", "ResponderOptions"), (HandlerOptions,)),
}


@cache
def api() -> Reference:
    """The API reference: the docstrings of all public names."""
    notes = {getattr(bmq.errors, name): _advice(name) for name in troubles()["error"]}
    return Reference(MODULES, first=FIRST, sources=SOURCES, notes=notes)


def api_index() -> str:
    """A table of the names of each module."""
    parts = []
    for name in MODULES:
        parts += [f"## {name}", api().index(name)]
    return "\n\n".join(parts)


@cache
def troubles() -> dict[str, Any]:
    """Causes and remedies: of the errors by class, and of the log's lines by text."""
    text = (Path(__file__).parent / "troubles.toml").read_text(encoding="utf-8")
    # Both the page on troubleshooting and the pages of the errors are in a folder.
    return tomllib.loads(re.sub(r"\]\((?=[\w/.-]+\.md)", "](../", text))


def trouble_errors() -> str:
    """The cause and the remedy of each error."""
    rows = [
        (f"[`{name}`](../api/{name}.md)", found["cause"], found["remedy"])
        for name, found in troubles()["error"].items()
    ]
    return _table(("error", "cause", "remedy"), rows)


def trouble_messages() -> str:
    """The cause and the remedy of each line of the log, by area."""
    levels = logged(ROOT / "bmq")
    areas: dict[str, list[str]] = {}
    for found in troubles()["message"]:
        shown = found.get("shown") or re.sub(r"%[-,.\d]*[sdrg]", "…", found["text"])
        title = re.sub(r"([_*\[\]<>`])", r"\\\1", shown).replace('"', "&quot;")
        kind = "warning" if levels.get(found["text"], "WARNING") == "WARNING" else "failure"
        level = levels.get(found["text"], "")
        areas.setdefault(found["area"], []).append(
            f'??? {kind} "{title}"\n\n    **{level}.** {found["cause"]}\n\n    **Remedy:** {found["remedy"]}'
        )
    return "\n\n".join(f"### {area}\n\n" + "\n\n".join(entries) for area, entries in areas.items())


def _advice(name: str) -> str:
    """The entry of an error class in troubles.toml."""
    found = troubles()["error"][name]
    return f"**Cause**: {found['cause']}\n\n**Remedy**: {found['remedy']}"


STATEMENTS = Path(__file__).parent / "statements.toml"
VERDICTS = {"yes": "holds", "broker": "a real broker differs", "no": "bmq differs", "open": "not shown"}


def marked_tests() -> dict[str, list[str]]:
    """The tests of each statement, by their markers, from the source without importing."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        if "mark.statement(" in source:
            module = path.relative_to(ROOT).as_posix()
            for name, numbers in _marks(ast.parse(source), module):
                for number in numbers:
                    found.setdefault(number, []).append(name)
    return found


def _marks(parent: ast.Module | ast.ClassDef, name: str) -> Iterator[tuple[str, list[str]]]:
    for node in parent.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.statement":
                yield f"{name}::{node.name}", [ast.literal_eval(each) for each in decorator.args]
        if isinstance(node, ast.ClassDef):
            yield from _marks(node, f"{name}::{node.name}")


def statements() -> str:
    """The statements of the documents: verdict, reason for each difference, cases and tests."""
    tests = marked_tests()
    parts = []
    for section in tomllib.loads(STATEMENTS.read_text(encoding="utf-8"))["section"]:
        rows = [
            (
                row["number"],
                row["text"],
                " ".join(
                    [VERDICTS[row["holds"]] + ("." if "why" in row else ""), row.get("why", "")]
                ).strip(),
                "<br>".join(
                    [f"case {number}" for number in row.get("cases", ())]
                    + [f"`{name.removeprefix('tests/')}`" for name in tests.get(row["number"], [])]
                ),
            )
            for row in section["statement"]
        ]
        heading = f"## {section['number']}. {section['title']}"
        parts += [heading, _table(("", "stated", "in fact", "shown by"), rows)]
    return "\n\n".join(parts)


@cache
def benchmarks() -> ModuleType:
    """The module that makes tables of benchmarks/results.json; it stands outside of the packages."""
    spec = spec_from_file_location("report", ROOT / "benchmarks" / "report.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured(program: str = "") -> str:
    """The most important figures; the method; or the explanation and the table of a program."""
    report = benchmarks()
    document = report.results()
    if not program:
        return report.summary(document)
    if program == "method":
        return f"{report.METHOD}\n{report.about(document)}"
    return f"{report.explanation(program)}\n\n{report.table(document['programs'][program])}"


def headline() -> str:
    """The rates of the two main paths, as bars."""
    rates = benchmarks().rates(benchmarks().results())
    bars = []
    for what, path in (("posting", "post_many"), ("receiving", "batches + confirm")):
        for whose, text, kind in (("ours", "bmq", "ours"), ("official", "official", "theirs")):
            bars.append((f"{what}, {text}", round(rates[path][whose]), kind))
    longest = max(number for _, number, _ in bars)
    parts = []
    for line, (label, number, whose) in enumerate(bars):
        y, width = 8 + 30 * line, 270 * number / longest
        parts.append(
            f'<text x="124" y="{y + 15}" text-anchor="end">{label}</text>'
            f'<rect class="{whose}" x="132" y="{y}" width="{width:.0f}" height="20" rx="3"/>'
            f'<text x="{140 + width:.0f}" y="{y + 15}">{number:,}</text>'
        )
    said = escape(", ".join(f"{label}: {number:,} a second" for label, number, _ in bars))
    box = f'viewBox="0 0 480 {16 + 30 * len(bars)}"'
    return f'<svg class="headline" {box} role="img" aria-label="{said}">{"".join(parts)}</svg>'


def rules() -> str:
    """The rules of the check of a history."""
    return _table(("rule", "promise"), ((_code(rule), promise) for rule, promise in RULES.items()))


GENERATED: dict[str, Callable[..., str]] = {
    "headline": headline,
    "measured": measured,
    "layouts": layouts,
    "enumerations": enumerations,
    "event": event,
    "both-encodings": both_encodings,
    "control-messages": control_messages,
    "control-enumerations": control_enumerations,
    "machines": machines,
    "structure": structure,
    "numbers": numbers,
    "control-numbers": control_numbers,
    "control-structure": control_structure,
    "message": message,
    "protocol-contents": contents,
    "client-machines": client_machines,
    "declarations": lambda: declarations(Path(layout.__file__), layout.LAYOUTS),
    "vectors": vectors,
    "untested": lambda: untested(cases_by_statement()),
    "errors": errors,
    "statuses": statuses,
    "api-index": api_index,
    "api-of": lambda module: api().index(f"bmq.{module}"),
    "trouble-errors": trouble_errors,
    "trouble-messages": trouble_messages,
    "statements": statements,
    "rules": rules,
}

#: How high pages stand among the results of a search, by the beginning of their address. A search for a word
#: finds the guide first: the API reference has the same word in hundreds of titles.
SEARCH_BOOSTS = {
    "start/quickstart": 8.0,
    "data/spark.md": 3.0,
    "guides/": 4.0,
    "data/": 2.0,
    "operate/": 2.0,
    "start/": 1.0,
    "reference/": 1.0,
    "explain/": 0.5,
    "": 0.2,
    "api/": 0.01,
}

#: Pages of the site with the text of a file in the root of the project.
ROOT_PAGES = {"changelog.md": "CHANGELOG.md", "security-policy.md": "SECURITY.md"}


def fill(markdown: str) -> str:
    """Replace every marker. A marker without a generator is an error."""
    if "<!-- generated: protocol-contents -->" in markdown:
        markdown = numbered(markdown, cases_by_statement())

    def generated(match: re.Match[str]) -> str:
        try:
            make = GENERATED[match[1]]
        except KeyError:
            raise ValueError(f"nothing generates '{match[1]}'; there are {', '.join(GENERATED)}") from None
        return make(*match[2].split())

    return include(MARKER.sub(generated, markdown))


def on_config(config: Any) -> Any:
    """Add links into the repository, if pyproject.toml has the repository's address."""
    links = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["bmq"]["links"]
    if links["site"]:
        config.site_url = links["site"]
    if links["repository"]:
        config.repo_url = links["repository"]
        config.edit_uri = links["edit"]
    # The only section without entries in mkdocs.yml: the names come from the code.
    for section in config.nav:
        if "Reference" in section:
            section["Reference"].append({"Names": api().navigation()})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add pages from the root of the project, and the pages of the API reference."""
    from mkdocs.structure.files import File

    for path, name in ROOT_PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, path, content=text))
    for path, content in api().pages().items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the generated parts and the related terms of a page, and set its place in searches."""
    place = next(
        start for start in sorted(SEARCH_BOOSTS, reverse=True) if page.file.src_uri.startswith(start)
    )
    page.meta.setdefault("search", {}).setdefault("boost", SEARCH_BOOSTS[place])
    if also := page.meta.get("also"):
        heading, newline, rest = markdown.partition("\n\n")
        markdown = f'{heading}\n\n<p class="also">Related terms: {also}</p>{newline}{rest}'
    return fill(markdown)


def complete(name: str) -> str:
    """The whole text of a page for readers without a browser: generated parts, and no pictures."""
    page = (Path(__file__).parent / f"{name}.md").read_text(encoding="utf-8").partition("\n---\n\n")
    text = fill(page[2] or page[0])
    return re.sub(r'\n<(svg|table) class="(?:bits|states)".*?</\1>\n', "", text, flags=re.DOTALL)


if __name__ == "__main__":
    print(complete(sys.argv[1]))
