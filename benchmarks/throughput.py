# SPDX-License-Identifier: Apache-2.0
"""Messages a second, and processor time a message, of each way to post and to receive.

Payloads have 256 bytes. Posting includes all acknowledgements, and receiving includes sending all
confirmations. The official client has one way to post and one way to receive, so all paths are compared with
the same figure; its processor time includes all of its threads. The floor of a rate is the broker's limit:
encoded events on a bare socket, whose answers are only counted. The floor of a processor time is the path
without the addition of the row: without properties, or without the worker.
"""

from __future__ import annotations

from harness import Bench, Row, Step

MESSAGES = 30_000
OFFICIAL = ("official post", "official consume")
RAW = ("raw post", "raw consume")


def _paths() -> list[Row]:
    """Return two rows for each path: the rate, and the processor time."""
    rows: list[Row] = []
    for path, side, more, rate, floor, cpu in (
        ("post_many", 0, "", "official >= 3.5", "", ""),
        ("post_nowait, a future each", 0, "", "official >= 2", "", ""),
        ("200 tasks awaiting post", 0, "", "official >= 1.8", "", ""),
        ("post_many, two properties", 0, ", two properties", "official >= 4", "post_many", "floor <= 1.6"),
        ("async for + confirm", 1, "", "official >= 2.5", "", ""),
        ("batches + confirm", 1, "", "official >= 4", "", ""),
        (
            "async for, two properties read",
            1,
            ", two properties",
            "official >= 3",
            "async for + confirm",
            "floor <= 1.6",
        ),
        ("consume, concurrency=100", 1, "", "", "async for + confirm", "floor <= 1.43"),
        ("post_many, plain asyncio", 0, "", "", "", ""),
        ("batches, plain asyncio", 1, "", "", "", ""),
    ):
        official = OFFICIAL[side] + more
        rows.append(Row(path, path, "rate", official, RAW[side] + more, rate))
        rows.append(Row(path, path, "cpu_us", official, floor, cpu))
    return rows


ROWS = _paths()


def _chain(
    client: str, post: tuple[str, str], consume: tuple[str, str], *, properties: bool = False, **options: str
) -> Step:
    """Return a step that posts messages and consumes them: names and cases."""

    def step(bench: Bench) -> dict[str, dict[str, float]]:
        jobs = [(name, client, case) for name, case in (post, consume)]
        return bench.chain(*jobs, count=bench.count(MESSAGES), properties=properties, **options)

    return step


OURS = [
    _chain("ours", ("post_many", "post_many"), ("async for + confirm", "consume")),
    _chain("ours", ("post_nowait, a future each", "post_nowait"), ("batches + confirm", "consume_batches")),
    _chain("ours", ("200 tasks awaiting post", "post_tasks"), ("consume, concurrency=100", "handle")),
    _chain(
        "ours",
        ("post_many, two properties", "post_many"),
        ("async for, two properties read", "consume"),
        properties=True,
    ),
    _chain(
        "ours",
        ("post_many, plain asyncio", "post_many"),
        ("batches, plain asyncio", "consume_batches"),
        loop="asyncio",
    ),
]
OTHERS = [
    _chain(
        client,
        (f"{client} post{more}", "post"),
        (f"{client} consume{more}", "consume"),
        properties=bool(more),
    )
    for client in ("official", "raw")
    for more in ("", ", two properties")
]
