# SPDX-License-Identifier: Apache-2.0
"""State diagrams as SVG, drawn from a transition table.

The states stand in one column in the given order. Each event is written beside its state, on a wire to the
lane of the next state. A dot marks the joint of a wire with a lane, and a lane ends in an arrow at its state.
Wires down the column run on the right, wires up on the left, and a loop marks an event without a change of
state. Every event has a separate line, so texts never collide, however the table grows. Colors come from the
page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

CHARACTER = 7.3
LINE = 17
PADDING = 9
GAP = 30
LANE = 16
ARROW = 16
HUES = 6


@dataclass(frozen=True)
class Edge:
    """An event that leads from one state to another, or back to the same state."""

    source: str
    event: str
    target: str


@dataclass
class _Side:
    """The wires at one side of a box, from the top down."""

    enters: bool = False
    leaves: list[tuple[str, list[str]]] = field(default_factory=list)

    @property
    def height(self) -> int:
        lines = sum(len(events) for _, events in self.leaves)
        return LINE * (lines + self.enters) + PADDING * max(0, len(self.leaves) + self.enters - 1)


def state_diagram(states: Sequence[str], edges: Iterable[Edge], title: str) -> str:
    """Draw the states in their order; the first state is the initial state.

    Args:
        states: the names, from top to bottom.
        edges: the transitions between the states.
        title: description of the diagram for readers who cannot see the picture.

    Returns:
        One SVG element, without blank lines, which would end the element in Markdown.
    """
    order = {state: index for index, state in enumerate(states)}
    sides = {(state, side): _Side() for state in states for side in ("left", "right")}
    grouped: dict[tuple[str, str], list[str]] = {}
    for edge in edges:
        grouped.setdefault((edge.source, edge.target), []).append(edge.event)
    for (source, target), events in grouped.items():
        side = "left" if order[target] < order[source] else "right"
        sides[source, side].leaves.append((target, events))
        if source != target:
            sides[target, side].enters = True

    box_width = max(len(state) for state in states) * CHARACTER + 4 * PADDING
    columns = {
        side: max((len(e) for s in states for _, events in sides[s, side].leaves for e in events), default=0)
        * CHARACTER
        + 4 * PADDING
        for side in ("left", "right")
    }
    lanes = {side: [s for s in states if sides[s, side].enters] for side in ("left", "right")}
    box_left = columns["left"] + len(lanes["left"]) * LANE + ARROW
    box_right = box_left + box_width
    width = box_right + columns["right"] + len(lanes["right"]) * LANE + ARROW

    def lane_x(side: str, target: str) -> float:
        offset = columns[side] + lanes[side].index(target) * LANE
        return box_right + offset if side == "right" else box_left - offset

    boxes: list[str] = []
    wires: list[str] = []
    joints: dict[tuple[str, str], list[float]] = {}
    y = 2.0 * GAP
    boxes.append(f'<circle class="initial" cx="{box_left + box_width / 2:g}" cy="{GAP / 2}" r="6"/>')
    boxes.append(_path("wire", f"M{box_left + box_width / 2:g} {GAP / 2} V{y:g}", arrow=True))
    for state in states:
        final = all(target == state for s in ("left", "right") for target, _ in sides[state, s].leaves)
        height = max(LINE + 2 * PADDING, *(sides[state, s].height + 2 * PADDING for s in ("left", "right")))
        boxes.append(_box(state, box_left, y, box_width, height, final=final))
        for side, sign, edge_x in (("left", -1, box_left), ("right", 1, box_right)):
            attached = sides[state, side]
            port = y + PADDING
            if attached.enters:
                wire_y = port + LINE / 2
                x = lane_x(side, state)
                hue = f"wire hue{order[state] % HUES}"
                wires.append(_path(hue, f"M{x:g} {wire_y:g} H{edge_x:g}", arrow=True))
                joints.setdefault((side, state), []).append(wire_y)
                port += LINE + PADDING
            for target, events in attached.leaves:
                for line, event in enumerate(events):
                    text_y = port + LINE * (line + 1) - 5
                    mark = f"↻ {event}" if target == state else event
                    anchor = "start" if sign > 0 else "end"
                    wires.append(
                        f'<text class="event" x="{edge_x + sign * PADDING:g}" y="{text_y:g}" '
                        f'text-anchor="{anchor}">{escape(mark)}</text>'
                    )
                port += LINE * len(events)
                if target != state:
                    x = lane_x(side, target)
                    hue = f"hue{order[target] % HUES}"
                    wires.append(_path(f"wire {hue}", f"M{edge_x:g} {port:g} H{x:g}"))
                    wires.append(f'<circle class="joint {hue}" cx="{x:g}" cy="{port:g}" r="3"/>')
                    joints.setdefault((side, target), []).append(port)
                port += PADDING
        y += height + GAP

    for (side, target), ys in joints.items():
        x = lane_x(side, target)
        wires.append(_path(f"wire hue{order[target] % HUES}", f"M{x:g} {min(ys):g} V{max(ys):g}"))

    return (
        f'<svg class="states" role="img" viewBox="0 0 {width:.0f} {y - GAP + 4:.0f}" width="{width:.0f}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>'
        '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="context-stroke"/></marker></defs>'
        + "".join(wires)
        + "".join(boxes)
        + "</svg>"
    )


def _path(css: str, d: str, *, arrow: bool = False) -> str:
    end = ' marker-end="url(#arrow)"' if arrow else ""
    return f'<path class="{css}" d="{d}"{end}/>'


def _box(state: str, x: float, y: float, width: float, height: float, *, final: bool) -> str:
    css = "state final" if final else "state"
    return (
        f'<rect class="{css}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'
        f'<text class="name" x="{x + width / 2:g}" y="{y + height / 2 + 4:g}" text-anchor="middle">'
        f"{escape(state)}</text>"
    )
