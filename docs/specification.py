# SPDX-License-Identifier: Apache-2.0
"""The numbered statements of the protocol page, and what the page shows around them.

A statement of ``docs/protocol/protocol.md`` is a paragraph that begins with its number:
``**4.12** A client MUST``...
Numbers stay: a new statement gets the next number of its chapter, wherever the statement stands there. Each
case of the conformance suite names the statement that it checks.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = [
    "WITHOUT_CASE",
    "Statement",
    "anchor",
    "contents",
    "declarations",
    "declared_machines",
    "numbered",
    "statements",
    "untested",
]

DOCS = Path(__file__).parent
PAGE = DOCS / "protocol" / "protocol.md"
_STATEMENT = re.compile(r"^\*\*(\d+\.\d+)\*\* (.*?)(?=\n\n|\n?\Z)", re.MULTILINE | re.DOTALL)
_CHAPTER = re.compile(r"^## (\d+)\. (.*?)(?: \{#([\w-]+)\})?$", re.MULTILINE)
#: Why a statement with MUST has no case in the conformance suite, by its number.
WITHOUT_CASE = {
    "5.1": "The contract of the suite with a client has no credentials.",
    "12.11": "The contract of the suite with a client has a mapping of properties: no name is there twice.",
    "13.18": "The contract of the suite with a client has one application of a queue.",
}
#: Numbers of statements in a text: "3.3", "10.17", but not "0.5 s" or versions such as "0.95.14".
_REFERENCE = re.compile(r"(?<=[ (])(\d{1,2}\.\d{1,2})(?=[),.:;]?(?:\s|$|[),]))")

_ROW = re.compile(r"^\| .* \|$", re.MULTILINE)


@dataclass(frozen=True)
class Statement:
    """A statement.

    Attributes:
        number: chapter and place.
        text: Markdown.
        level: ``must``, ``should``, ``may``, ``observed``, or ``definition``.
    """

    number: str
    text: str
    level: str


def anchor(number: str) -> str:
    """The anchor of a statement on the page of the protocol."""
    return "s-" + number.replace(".", "-")


def _level(text: str) -> str:
    if text.startswith("*Observed.*"):
        return "observed"
    for word in ("MUST", "SHOULD", "MAY"):
        if re.search(rf"\b{word}\b", text):
            return word.lower()
    return "definition"


@cache
def statements() -> dict[str, Statement]:
    """Every statement of the page, by its number."""
    page = PAGE.read_text(encoding="utf-8")
    found: dict[str, Statement] = {}
    for number, text in _STATEMENT.findall(page):
        if number in found:
            raise ValueError(f"two statements have the number {number}: give the later one the next number")
        # The first two define the words.
        level = "definition" if number in ("1.1", "1.2") else _level(text)
        found[number] = Statement(number, text, level)
    return found


def numbered(markdown: str, cases: Mapping[str, Sequence[str]]) -> str:
    """Give each statement an anchor and the links to its cases.

    Args:
        markdown: the page.
        cases: the numbers of the cases of each statement, in order.
    """

    def shown(match: re.Match[str]) -> str:
        number, text = match.groups()
        found = cases.get(number, ())
        head = f'<a id="{anchor(number)}"></a>**[{number}](#{anchor(number)})** {_linked(text)}'
        if found:
            return (
                f'{head} <span class="cases">{"case" if len(found) == 1 else "cases"} {_shown(found)}</span>'
            )
        if statements()[number].level == "must":
            return f'{head} <span class="cases">[no case](#untested)</span>'
        return head

    return _STATEMENT.sub(shown, _ROW.sub(lambda row: _linked(row[0]), markdown))


def _linked(text: str) -> str:
    """Turn the numbers of statements in a text into links."""
    known = statements()
    return _REFERENCE.sub(lambda m: f"[{m[1]}](#{anchor(m[1])})" if m[1] in known else m[1], text)


def _shown(numbers: Sequence[str]) -> str:
    """The numbers of cases; consecutive numbers are a range."""
    runs: list[list[str]] = []
    for number in numbers:
        section, _, place = number.rpartition(".")
        before = runs[-1][-1].rpartition(".") if runs else ("", "", "-1")
        if before[0] == section and int(before[2]) + 1 == int(place):
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(run[0] + (f"-{run[-1].rpartition('.')[2]}" if len(run) > 1 else "") for run in runs)


def contents() -> str:
    """The chapters of the page in a line."""
    page = PAGE.read_text(encoding="utf-8")
    return " · ".join(
        f"[{number} {title}](#{name or _slug(f'{number}. {title}')})"
        for number, title, name in _CHAPTER.findall(page)
    )


def _slug(title: str) -> str:
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip())


def untested(cases: Mapping[str, Sequence[str]]) -> str:
    """The statements with MUST that no case checks, and the reasons."""
    rows = [
        f"| [{number}](#{anchor(number)}) | {WITHOUT_CASE.get(number, '')} |"
        for number, found in statements().items()
        if found.level == "must" and not cases.get(number)
    ]
    counts: dict[str, list[int]] = {}
    for number, found in statements().items():
        pair = counts.setdefault(found.level, [0, 0])
        pair[0] += 1
        pair[1] += bool(cases.get(number))
    total = "; ".join(
        f"{counts[level][1]} of {counts[level][0]} statements "
        + ("that define a term" if level == "definition" else f"of the level *{level}*")
        for level in ("must", "should", "may", "observed", "definition")
        if level in counts
    )
    return "\n".join(
        [
            f"Cases check {total}. These statements with MUST have no case:",
            "",
            "| statement | reason |",
            "| --- | --- |",
            *rows,
        ]
    )


@cache
def declared_machines() -> list[dict[str, Any]]:
    """The state machines of a minimal client, as declared in ``machines.toml``."""
    found: list[dict[str, Any]] = tomllib.loads((DOCS / "machines.toml").read_text(encoding="utf-8"))[
        "machine"
    ]
    return found


def declarations(source: Path, names: Iterable[str]) -> str:
    """The assignments of a module to some names, as source code with their comments."""
    text = source.read_text(encoding="utf-8")
    lines = text.splitlines()
    wanted: set[str] = set(names)
    parts: list[str] = []
    for node in ast.parse(text).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id in wanted
        ):
            first = node.lineno - 1
            while lines[first - 1].startswith("#"):
                first -= 1
            parts.append("\n".join(lines[first : node.end_lineno]))
    return "```python\n" + "\n\n".join(parts) + "\n```"
