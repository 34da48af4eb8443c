# SPDX-License-Identifier: Apache-2.0
"""Programs of the documentation as the page runs them, without a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.browser import ROOT, load
from tests.sweeps import sweep

PROGRAM = re.compile(r'```python(?: title="([^"]+)")?\n(.*?)```', re.S)
POSTS = """
import asyncio, sys, bmq
async def main():
    async with bmq.connect("tcp://localhost:30114") as session:
        queue = await session.open_queue("bmq://bmq.test.mem.priority/q", write=True)
        for each in sys.argv[1:]:
            await queue.post(each.encode())
            print("posted", each)
asyncio.run(main())
"""
RECEIVES = """
import bmq
from names import NAME
async def main():
    async with bmq.connect("tcp://localhost:30114") as session:
        async for message in await session.open_queue(NAME, read=True):
            async with message:
                print(message.data)
bmq.run(main())
"""
NAMES = {"names.py": 'NAME = "bmq://bmq.test.mem.priority/q"'}


class Reader:
    """A desk, and the output of its programs."""

    def __init__(self) -> None:
        self.desk = load("desk").Desk()
        self.text: dict[str, str] = {}

    def run(self, key: str, source: str, arguments: str = "", files: dict[str, str] | None = None) -> None:
        self.text[key] = ""
        self.desk.run(key, source, f"{key}.py", arguments, files or {})

    def after(self, seconds: float) -> dict[str, bool]:
        """Let time pass; return which programs run."""
        state = json.loads(self.desk.advance(int(seconds * 50)))
        for key, each in state.items():
            self.text[key] += each["text"]
        return {key: each["running"] for key, each in state.items()}


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.desk.close()


def test_two_programs_share_the_broker_and_are_run_again(reader: Reader) -> None:
    for arguments, printed in (
        ("cake", "posted cake\n"),
        ("tea 'two cakes'", "posted tea\nposted two cakes\n"),
    ):
        reader.run("posts", POSTS, arguments)
        assert reader.after(1) == {"posts": False}
        assert reader.text["posts"] == printed
    reader.run("receives", RECEIVES, files=NAMES)
    assert reader.after(1)["receives"] is True
    assert reader.text["receives"] == "b'cake'\nb'tea'\nb'two cakes'\n"
    reader.run("receives", RECEIVES, files=NAMES)
    assert reader.after(1)["receives"] is True
    reader.desk.stop("receives")
    assert reader.after(1)["receives"] is False


@sweep(
    "source, shown",
    [
        ("print(1", "SyntaxError"),
        ("import bmq\n1 / 0", 'File "p.py", line 2'),
        ("import bmq\nasync def main():\n    1 / 0\nbmq.run(main())", 'File "p.py", line 3'),
        ("import nothing", "No module named 'nothing'"),
        ("import sys\nsys.exit('no orders')", "no orders\n"),
        ("import sys, bmq\nasync def main():\n    sys.exit('late')\nbmq.run(main())", "late\n"),
    ],
)
def test_a_failure_is_shown(reader: Reader, source: str, shown: str) -> None:
    reader.run("p", source)
    assert reader.after(1) == {"p": False}
    assert shown in reader.text["p"]
    assert "desk.py" not in reader.text["p"]


def test_endless_output_is_bounded(reader: Reader) -> None:
    endless = "while True:\n        print('x' * 1000)\n        await asyncio.sleep(0.0001)"
    reader.run("p", f"import asyncio\nasync def main():\n    {endless}\nasyncio.run(main())")
    reader.after(0.5)
    assert len(reader.text["p"]) < 200_000
    assert reader.text["p"].endswith("... more than can be shown\n")


def test_the_program_of_the_first_page(reader: Reader) -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    (source,) = (each for _, each in PROGRAM.findall(text) if "bmq.run(" in each)
    reader.run("first", source)
    assert reader.after(1) == {"first": False}
    assert reader.text["first"] == "b'one coffee'\n"
