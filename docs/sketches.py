# SPDX-License-Identifier: Apache-2.0
"""Draw the pictures of the first page, the packages, a message's life, delays and requests.

usage: python docs/sketches.py
"""

from __future__ import annotations

from html import escape
from pathlib import Path

ASSETS = Path(__file__).parent / "assets"

_STYLE = """
 text{fill:#24292f} .dim{fill:#6e7781} .w{fill:#fff} .a{fill:#4b7bec} .b{fill:#20a37a} .n{fill:#8c959f}
 .box{fill:#f6f8fa;stroke:#8c959f} .in{fill:#fff;stroke:#d0d7de} .ra,.rb,.rn{fill:none;stroke-width:2}
 .ra{stroke:#4b7bec} .rb{stroke:#20a37a} .rn{stroke:#8c959f} .dash{stroke-dasharray:5 4}
 @media (prefers-color-scheme: dark){
  text{fill:#e6edf3} .dim{fill:#9da7b3} .w{fill:#fff}
  .box{fill:#161b22;stroke:#6e7681} .in{fill:#0d1117;stroke:#3d444d}
 }
"""


class Sketch:
    """A picture made of boxes, texts and arrows, in the reader's colour scheme.

    Args:
        width: in pixels, as are all further sizes.
        height: of the picture.
        title: description for readers who cannot see the picture.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'font-family="sans-serif" font-size="13" role="img" aria-label="{escape(title)}">',
            f"<style>{_STYLE}</style>",
            "<defs>",
            *(
                f'<marker id="m{kind}" markerWidth="9" markerHeight="9" refX="8" refY="4" orient="auto">'
                f'<path d="M0,0 L9,4 L0,8 z" class="{kind}"/></marker>'
                for kind in "abn"
            ),
            "</defs>",
        ]

    def box(self, x: int, y: int, width: int, height: int, kind: str = "box") -> None:
        """Draw a rectangle."""
        self._parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')

    def text(
        self,
        x: int,
        y: int,
        text: str,
        kind: str = "",
        *,
        size: int = 13,
        at: str = "middle",
        bold: bool = False,
    ) -> None:
        """Write a line."""
        weight = ' font-weight="bold"' if bold else ""
        self._parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{at}" font-size="{size}"{weight} class="{kind}">'
            f"{escape(text)}</text>"
        )

    def arrow(self, path: str, kind: str = "n", *, dashed: bool = False, head: bool = True) -> None:
        """Draw a line, given as an SVG path, with a head at the end."""
        classes = f"r{kind}" + (" dash" if dashed else "")
        end = f' marker-end="url(#m{kind})"' if head else ""
        self._parts.append(f'<path class="{classes}" d="{path}"{end}/>')

    def svg(self) -> str:
        """Return the picture."""
        return "\n".join([*self._parts, "</svg>", ""])

    def save(self, name: str) -> None:
        """Write the file."""
        (ASSETS / f"{name}.svg").write_text(self.svg(), encoding="utf-8")


def landing() -> None:
    """The first page's picture: a producer, the broker, and two consumers with subscriptions."""
    sketch = Sketch(
        440,
        286,
        "A producer posts orders to a queue of the broker; each consumer receives the orders that match its "
        "subscription, and confirms each order when it is done",
    )
    sketch.box(8, 96, 112, 66)
    sketch.text(64, 123, "producer", bold=True)
    sketch.text(64, 144, "queue.post(…)", "dim", size=12)
    sketch.arrow("M120,120 H160", "a")
    sketch.arrow("M164,142 H124", "b")
    sketch.text(142, 160, "ack", "dim", size=12)
    sketch.box(164, 28, 106, 206)
    sketch.text(217, 52, "broker", bold=True)
    sketch.text(217, 72, "stores, selects", "dim", size=12)
    for row, kind in enumerate("abaab"):
        sketch.box(182, 86 + 27 * row, 70, 21, kind)
        sketch.text(217, 101 + 27 * row, "EXPRESS" if kind == "a" else "NORMAL", "w", size=11)
    for y, kind, name in ((36, "a", "EXPRESS"), (160, "b", "NORMAL")):
        sketch.arrow(f"M270,{y + 22} H310", kind)
        sketch.arrow(f"M314,{y + 46} H274", "n")
        sketch.box(314, y, 118, 66)
        sketch.text(373, y + 23, "consumer", bold=True)
        sketch.text(373, y + 42, "OrderType ==", "dim", size=12)
        sketch.text(373, y + 58, f'"{name}"', "dim", size=12)
    sketch.text(292, 98, "confirm", "dim", size=11)
    sketch.text(292, 222, "confirm", "dim", size=11)
    sketch.text(220, 262, "An unconfirmed message goes to another consumer.", "dim", size=13)
    sketch.text(220, 280, "Nothing is dropped to make room.", "dim", size=13)
    sketch.save("landing")


def house() -> None:
    """The packages and the directions of imports."""
    sketch = Sketch(
        760,
        534,
        "The packages of bmq: codecs at the bottom, then the protocol without input and output, then client "
        "and broker, and all other packages on top",
    )
    floors = [
        ("your program", ["services", "scripts", "notebooks", "jobs", "tests"], "in"),
        ("all packages below", ["testing", "cli", "console"], "box"),
        ("public names only", ["workers", "groups", "delays", "inbox", "blocking", "taskiq"], "box"),
        ("", ["arrow", "spark", "asyncapi", "otel", "prometheus"], "box"),
        ("asyncio", ["client: connect, Session, Queue, Consumer", "broker: for tests", "admin"], "box"),
        ("no I/O, no clock", ["protocol: client core, broker core", "subscriptions", "codecs"], "box"),
        ("bytes and values", ["wire: layouts, events, control messages, properties, columns"], "box"),
    ]
    y = -56
    for floor, (what, rooms, kind) in enumerate(floors):
        # A floor without a name is a second row of the floor above.
        y += 72 if what else 62
        sketch.text(120, y + 34, what, "dim", size=12, at="end")
        letters = sum(max(len(room), 4) + 3 for room in rooms)
        x = 136
        for room in rooms:
            width = round((612 - 6 * (len(rooms) - 1)) * (max(len(room), 4) + 3) / letters)
            sketch.box(x, y, width, 56, kind)
            sketch.text(x + width // 2, y + 34, room, size=12)
            x += width + 6
        if floor and what:
            sketch.arrow(f"M442,{y - 16} V{y - 1}")
    sketch.text(442, 524, "Imports point downwards; a test enforces the rule.", "dim")
    sketch.save("house")


def message() -> None:
    """The life of a message, from its post to its end."""
    sketch = Sketch(
        760,
        530,
        "A message is posted, stored and acknowledged, matched with a subscription, delivered, handled and "
        "confirmed; the effects of failures are listed below",
    )
    for x, title in ((14, "producer"), (272, "broker"), (530, "consumer")):
        sketch.box(x, 14, 216, 386)
        sketch.text(x + 108, 38, title, bold=True)
    steps = [
        (14, 52, "await queue.post(data)", "gets a GUID, waits for room"),
        (14, 122, "kept until acknowledged", "at most max_unacked_messages"),
        (14, 192, "post returns an Ack", "or raises PostError"),
        (272, 122, "stored", "a known GUID: not stored again"),
        (272, 192, "matched with subscriptions", "the highest priority with room"),
        (530, 192, "waits in line", "at most max_unconfirmed_messages"),
        (530, 262, "async for message in queue", "data and properties are decoded on access"),
        (530, 332, "async with message: ...", "handled, then confirmed"),
        (272, 332, "removed", "or expired: time to live, attempts"),
    ]
    for x, y, what, more in steps:
        sketch.box(x + 8, y, 200, 54, "in")
        sketch.text(x + 108, y + 23, what, size=12)
        sketch.text(x + 108, y + 42, more, "dim", size=9)
    sketch.arrow("M122,106 V120")
    sketch.arrow("M222,140 H278", "a")
    sketch.text(251, 134, "PUT", "dim", size=10)
    sketch.arrow("M280,166 H251 V219 H224", "b")
    sketch.text(251, 233, "ACK", "dim", size=10)
    sketch.arrow("M380,176 V190")
    sketch.arrow("M480,219 H536", "a")
    sketch.text(508, 213, "PUSH", "dim", size=10)
    sketch.arrow("M638,246 V260")
    sketch.arrow("M638,316 V330")
    sketch.arrow("M538,359 H482", "b")
    sketch.text(510, 374, "CONFIRM", "dim", size=10)
    lost = [
        "The producer loses its connection before the ACK: bmq resends under the same GUID, stored once.",
        "The consumer loses its connection before the CONFIRM: the broker delivers again, here or elsewhere.",
        "The handler fails: the message is not confirmed; a worker's policy retries or posts a dead letter.",
        "No subscription matches: the message stays until a subscription matches or its time to live ends.",
    ]
    for row, text in enumerate(lost):
        sketch.text(14, 432 + 25 * row, text, at="start")
    sketch.save("message")


def delays() -> None:
    """The messages in the broker, the messages held by a mover, and their destination."""
    sketch = Sketch(
        760,
        384,
        "Messages wait in a queue of the broker; a mover holds the messages due before a horizon, and posts "
        "each message to its destination at the due time",
    )
    sketch.box(10, 96, 122, 66)
    sketch.text(71, 123, "producer")
    sketch.text(71, 143, "post(…, delay=…)", "dim", size=11)
    sketch.arrow("M132,129 H184")
    sketch.box(188, 30, 216, 274)
    sketch.text(296, 52, "bmq://…/orders.delayed", bold=True)
    sketch.text(296, 72, "delayed messages, each with bmq_due", "dim", size=11)
    for row, text in enumerate(["10:00:02", "10:04:30", "10:41:00", "11:20:00", "16:45:00", "tomorrow"]):
        y = 84 + 28 * row + (34 if row > 2 else 0)
        sketch.box(218, y, 156, 22, "a" if row <= 2 else "in")
        sketch.text(296, y + 16, text, "w" if row <= 2 else "dim", size=12)
    sketch.arrow("M198,174 H394", dashed=True, head=False)
    sketch.text(296, 191, "the horizon: at most an hour ahead", "dim", size=11)
    sketch.text(296, 296, "due later: not delivered yet", "dim", size=11)
    sketch.arrow("M404,96 H470", "a")
    sketch.text(437, 87, "held", "dim", size=11)
    sketch.box(474, 58, 272, 84)
    sketch.text(610, 82, "mover", bold=True)
    sketch.text(610, 104, "holds messages due soon, by due time", size=12)
    sketch.text(610, 124, "any number of movers", "dim", size=11)
    sketch.arrow("M474,126 H408", "b")
    sketch.text(439, 143, "confirmed", "dim", size=11)
    sketch.arrow("M560,142 V212", "b")
    sketch.text(570, 172, "at the due time: posted under", "dim", size=11, at="start")
    sketch.text(570, 188, "a GUID derived from its own", "dim", size=11, at="start")
    sketch.box(474, 216, 172, 66)
    sketch.text(560, 243, "bmq://…/orders", bold=True)
    sketch.text(560, 263, "drops duplicates by GUID", "dim", size=11)
    sketch.arrow("M646,249 H682", "b")
    sketch.text(687, 253, "consumers", at="start", size=12)
    sketch.text(
        380,
        338,
        "The mover confirms a message once the post to its destination is acknowledged. If a mover dies",
    )
    sketch.text(
        380, 358, "in between, the next mover repeats the post, and the destination keeps a single copy."
    )
    sketch.save("delays")


def requests() -> None:
    """A request and its reply."""
    sketch = Sketch(
        760,
        330,
        "A requester posts to the responders' queue and awaits the reply in a separate queue",
    )
    sketch.box(10, 40, 168, 220)
    sketch.text(94, 64, "requester", bold=True)
    sketch.text(94, 92, "await queue.request(", size=12)
    sketch.text(94, 110, "data, timeout=5)", size=12)
    sketch.text(94, 216, "Message, or an error", size=12)
    sketch.text(94, 236, "late and second replies", "dim", size=11)
    sketch.text(94, 251, "are dropped", "dim", size=11)
    sketch.box(296, 60, 168, 66)
    sketch.text(380, 87, "bmq://…/prices", bold=True)
    sketch.text(380, 107, "shared by all responders", "dim", size=11)
    sketch.box(296, 186, 168, 66)
    sketch.text(380, 213, "…/replies.3f…", bold=True)
    sketch.text(380, 233, "one per session", "dim", size=11)
    sketch.box(582, 40, 168, 220)
    sketch.text(666, 64, "responder", bold=True)
    sketch.text(666, 98, "@app.responder(…)", size=12)
    sketch.text(666, 150, "returns, or raises,", size=12)
    sketch.text(666, 168, "until bmq_deadline", size=12)
    sketch.arrow("M178,93 H292", "a")
    sketch.text(235, 84, "GUID 4A…", "dim", size=11)
    sketch.text(235, 110, "bmq_reply_to", "dim", size=11)
    sketch.text(235, 124, "bmq_deadline", "dim", size=11)
    sketch.arrow("M464,93 H578", "a")
    sketch.arrow("M582,219 H468", "b")
    sketch.text(525, 210, "bmq_request = 4A…", "dim", size=11)
    sketch.text(525, 236, "bmq_error, if it failed", "dim", size=11)
    sketch.text(525, 250, "GUID from 4A…", "dim", size=11)
    sketch.arrow("M296,219 H182", "b")
    sketch.text(239, 210, "by bmq_request", "dim", size=11)
    sketch.text(
        380,
        296,
        "The request is confirmed once its reply is acknowledged: if a responder dies, another takes over.",
    )
    sketch.save("requests")


if __name__ == "__main__":
    landing()
    house()
    message()
    delays()
    requests()
