# SPDX-License-Identifier: Apache-2.0
"""Session events are values: frozen dataclasses."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

import bmq.events
from bmq.events import Connected, HostUnhealthy, Reconnecting, SessionEvent

EVENTS: list[Any] = [
    made for made in vars(bmq.events).values() if isinstance(made, type) and made is not SessionEvent
]


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_events_are_values(kind: Any) -> None:
    names = [field.name for field in dataclasses.fields(kind)]
    values = dict(zip(names, range(len(names)), strict=True))
    event = kind(*values.values())
    assert event == kind(**values)
    assert hash(event) == hash(kind(**values))
    assert copy.copy(event) == copy.deepcopy(event) == pickle.loads(pickle.dumps(event)) == event
    assert dataclasses.asdict(event) == values
    shown = ", ".join(f"{name}={value}" for name, value in values.items())
    assert repr(event) == f"{kind.__name__}({shown})"
    with pytest.raises(TypeError, match=kind.__name__):
        kind(*values.values(), "more")
    for name in names:
        assert dataclasses.replace(event, **{name: "new"}) != event
        with pytest.raises(TypeError, match=name):
            kind(**{each: 1 for each in names if each != name})


def test_events_do_not_change() -> None:
    event: Any = Connected("broker")
    with pytest.raises(dataclasses.FrozenInstanceError, match="'broker'"):
        event.broker = "other"
    with pytest.raises(dataclasses.FrozenInstanceError, match="'broker'"):
        del event.broker
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
        event.more = 1


def test_different_kinds_are_different() -> None:
    assert Connected("broker") != HostUnhealthy() != SessionEvent()
    assert Connected("broker") != ("broker",)


def test_events_match_by_position() -> None:
    match Reconnecting(1, 2.5, "tcp://localhost:30114"):
        case Reconnecting(attempt, delay, address):
            assert (attempt, delay, address) == (1, 2.5, "tcp://localhost:30114")
