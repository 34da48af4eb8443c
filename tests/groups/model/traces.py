# SPDX-License-Identifier: Apache-2.0
"""Traces of ``Traces.tla`` and ``CrownTraces.tla``: convert the files of TLC, and read the converted files.

``python -m tests.groups.model.traces OUT FILE...`` writes the files of ``-simulate file=...`` to OUT. A line
of OUT is a trace; a step is a dictionary with the name and arguments of the step, and with the variables that
it changed.
"""

from __future__ import annotations

import lzma
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bmq._json import orjson

__all__ = ["CROWNS", "FILE", "read"]

FILE = Path(__file__).parent / "traces.xz"
CROWNS = Path(__file__).parent / "crowns.xz"
KEPT = [
    "step",
    "seat",
    "cov",
    "lease",
    "seen",
    "ldr",
    "mail",
    "reports",
    "early",
    "crowns",
    "kept",
    "conn",
    "life",
    "inc",
]
KEPT += ["st", "net", "up", "order"]  # of CrownTraces.tla
_TOKEN = re.compile(r'\s*(<<|>>|\|->|:>|@@|[{}\[\](),]|"[^"]*"|\w+)')


def read(path: Path = FILE) -> Iterator[list[dict[str, Any]]]:
    """Yield the traces."""
    for line in lzma.decompress(path.read_bytes()).splitlines():
        yield orjson.loads(line)


class _Parser:
    """A value of TLA+ as JSON: sequences and sets are lists, records and functions are dictionaries.

    A connection ``<<m1, 0>>`` becomes ``"m1.0"``.
    """

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._at = 0

    def _next(self) -> str:
        self._at += 1
        token: str = self._tokens[self._at - 1]
        return token

    def _list(self, end: str) -> list[Any]:
        items: list[Any] = []
        while self._tokens[self._at] != end:
            items.append(self.value())
            if self._tokens[self._at] == ",":
                self._at += 1
        self._at += 1
        return items

    def value(self) -> Any:
        token = self._next()
        if token == "<<":
            items = self._list(">>")
            if len(items) == 2 and re.fullmatch(r"m\d", str(items[0])) and isinstance(items[1], int):
                return f"{items[0]}.{items[1]}"
            return items
        if token == "{":
            return sorted(self._list("}"))
        if token == "[":
            record: dict[str, Any] = {}
            while True:
                name = self._next()
                self._next()
                record[name] = self.value()
                if self._next() == "]":
                    return record
        if token == "(":
            function: dict[str, Any] = {}
            while True:
                key = self.value()
                self._next()
                function[key] = self.value()
                if self._next() == ")":
                    return function
        if token.startswith('"'):
            return token[1:-1]
        return {"TRUE": True, "FALSE": False}.get(token, int(token) if token.isdigit() else token)


def _states(text: str) -> Iterator[dict[str, Any]]:
    for state in text.split("STATE_")[1:]:
        body = state.partition("==")[2].partition("\\*")[0].partition("====")[0]
        values = dict(part.split(" = ", 1) for part in re.split(r"^/\\ ", body, flags=re.MULTILINE)[1:])
        yield {name: _Parser(values[name]).value() for name in KEPT if name in values}


def main(out: str, *files: str) -> None:
    """Convert the files of TLC."""
    lines: list[bytes] = []
    for file in files:
        before: dict[str, Any] = {}
        trace: list[dict[str, Any]] = []
        for state in _states(Path(file).read_text("utf-8")):
            trace.append(
                {name: value for name, value in state.items() if name == "step" or before.get(name) != value}
            )
            before = state
        lines.append(orjson.dumps(trace))
    Path(out).write_bytes(lzma.compress(b"\n".join(lines), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main(*sys.argv[1:])
