# SPDX-License-Identifier: Apache-2.0
"""Tables in which many rows differ only in their numbers."""

from __future__ import annotations

from bmq.cli.consoles import Row, folded
from tests.cli.conftest import Aside, Bmq
from tests.waiting import eventually

COUNT = ("subscriptions", 1)


def cells(rows: list[Row]) -> list[tuple[str, ...]]:
    return [row.cells for row in folded(rows, COUNT)]


def test_rows_that_differ_in_numbers_are_one_row_in_the_place_of_the_first() -> None:
    rows = [Row("m", (f"k % 16 == {number}", "m", f"{number * 1000:,} of 5,000")) for number in range(9)]
    rows.insert(1, Row("m", ("(everything)", "m", "0 of 5,000")))
    assert cells(rows) == [
        ("k % 16 == 0…8", "m (9 subscriptions)", "0…8,000 of 5,000"),
        ("(everything)", "m", "0 of 5,000"),
    ]


def test_rows_of_different_kinds_or_texts_are_never_combined() -> None:
    rows = [Row(number, (f"k == {number}", "m")) for number in range(20)]
    assert folded(rows, COUNT) == rows
    rows = [Row("m", ("k == " + "x" * number, "m")) for number in range(20)]
    assert folded(rows, COUNT) == rows
    assert folded([], COUNT) == []


def test_explain_shows_a_group_in_few_lines(run: Bmq, aside: Aside, bmq_queue_uri: str) -> None:
    queue = aside.do(aside.session.open_queue(bmq_queue_uri, read=True))

    async def join() -> None:
        group = await queue.group("k", buckets=64)
        await eventually(lambda: len(group.owned) == 64)

    aside.do(join())
    ran = run("explain", bmq_queue_uri, "-p", "k=20")
    assert ran.status == 0
    assert len(ran.lines) < 30
    assert "(k - 1…63) % 64 == 0" in ran.out
    assert "(63 subscriptions)" in ran.out
    assert "(k - 20) % 64 == 0" in ran.out  # in the decision
    assert "The message goes to" in ran.lines[-1]
