# SPDX-License-Identifier: Apache-2.0
"""Record the demo in a terminal as one animated SVG.

usage: python docs/recording.py   (a minute; with the extra cli; the program starts a broker)

Each piece of a line is drawn once for the time of its display. A viewer without animations shows a single
moment, with the broker down.
"""

from __future__ import annotations

import asyncio
import io
import re
import sys
import time
from html import escape
from pathlib import Path

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "assets" / "demo.svg"
sys.path.insert(0, str(ROOT / "examples"))
import demo  # noqa: E402

THEME = TerminalTheme(
    (13, 17, 23),
    (230, 237, 243),
    [(72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34), (88, 166, 255), (188, 140, 255),
     (57, 197, 207), (177, 186, 196)],
)  # fmt: skip
#: Seconds of the run between two pictures, and the factor by which the animation is faster than the run.
EVERY, FASTER = 1.0, 2.0
#: How long the last picture stays, in seconds.
STAYS = 6.0
CELL, LINE, MARGIN = 8.4, 18, 14

#: The content of the terminal at (line, column).
Picture = dict[tuple[int, int], str]


def colour(style: Style) -> str:
    """The colour of a text; dim text is half way to the background."""
    red, green, blue = style.color.get_truecolor(THEME) if style.color else THEME.foreground_color
    if style.dim:
        back = THEME.background_color
        red, green, blue = (red + back.red) // 2, (green + back.green) // 2, (blue + back.blue) // 2
    return f"#{red:02x}{green:02x}{blue:02x}"


def picture(lines: list[list[Segment]]) -> Picture:
    """The pieces of the screen, cut at two or more blanks; a piece is as wide as its cells."""
    drawn: Picture = {}
    for number, segments in enumerate(lines):
        column = 0
        for text, style, _ in segments:
            style = style or Style()
            bold = ' font-weight="bold"' if style.bold else ""
            for found in re.finditer(r"\S+(?: \S+)*", text):
                width = CELL * len(found[0])
                drawn[number, column + found.start()] = (
                    f' textLength="{width:.1f}" fill="{colour(style)}"{bold}>{escape(found[0])}'
                )
            column += len(text)
    return drawn


def stays(pictures: list[Picture]) -> dict[tuple[int, int], Picture]:
    """Every piece, with the first picture of its display and the first picture without the piece."""
    found: dict[tuple[int, int], Picture] = {}
    for place in sorted({place for each in pictures for place in each}):
        pieces = [each.get(place) for each in pictures]
        since = 0
        for until in range(1, len(pieces) + 1):
            if until == len(pieces) or pieces[until] != pieces[since]:
                if (markup := pieces[since]) is not None:
                    found.setdefault((since, until), {})[place] = markup
                since = until
    return found


def animated(pictures: list[Picture], still: int, width: int) -> str:
    """All pictures as one SVG; ``still`` is the picture for viewers without animations."""
    step = EVERY / FASTER
    whole = step * (len(pictures) - 1) + STAYS
    rows = 1 + max(line for each in pictures for line, _ in each)
    size = f"{CELL * width + 2 * MARGIN:.0f} {LINE * rows + 2 * MARGIN}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img"'
        ' font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"'
        ' font-size="14" xml:space="preserve">',
        "<title>make demo: records flow, a consumer is slow, the broker crashes, nothing is lost</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{THEME.background_color.hex}"/>',
    ]
    for (since, until), drawn in sorted(stays(pictures).items()):
        here = "" if since <= still < until else ' visibility="hidden"'
        parts.append(f"<g{here}>")
        if (since, until) != (0, len(pictures)):
            times = {0.0: "hidden", since * step / whole: "visible"}
            if until < len(pictures):
                times[until * step / whole] = "hidden"
            parts.append(
                f'<animate attributeName="visibility" calcMode="discrete" dur="{whole:.1f}s"'
                f' repeatCount="indefinite" values="{";".join(times.values())}"'
                f' keyTimes="{";".join(f"{each:.4f}" for each in times)}"/>'
            )
        for (line, column), markup in drawn.items():
            x, y = MARGIN + CELL * column, MARGIN + LINE * (line + 0.75)
            parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{markup}</text>')
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


async def record() -> tuple[list[Picture], int]:
    """Run the demo; return its pictures, and the number of a picture with the broker down."""
    terminal = Console(width=demo.WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    pictures: list[Picture] = []
    down: list[int] = []
    due = time.perf_counter()

    def draw(stage: demo.Stage) -> None:
        nonlocal due
        if time.perf_counter() < due and stage.act != demo.LAST_ACT:
            return
        due += EVERY
        if not stage.up:
            down.append(len(pictures))
        pictures.append(picture(terminal.render_lines(stage, pad=False)))

    books = Console(width=demo.WIDTH, file=io.StringIO(), record=True, force_terminal=True)
    async with demo.broker_at_hand(None) as broker:
        await demo.run(broker, demo.Pace(4015, 1.0), books, draw=draw)
    lines = terminal.render_lines(Text.from_ansi(books.export_text(styles=True)), pad=False)
    below = 1 + max(line for line, _ in pictures[-1])
    pictures.append(
        pictures[-1] | {(below + line, column): each for (line, column), each in picture(lines).items()}
    )
    return pictures, down[-1]


def main() -> None:
    pictures, still = asyncio.run(record())
    TARGET.write_text(animated(pictures, still, demo.WIDTH), encoding="utf-8")


if __name__ == "__main__":
    main()
