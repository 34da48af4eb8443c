# SPDX-License-Identifier: Apache-2.0
"""Every verb that streams, with more messages than one batch and one window."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import bmq
from tests.cli.conftest import Aside, Bmq

COUNT = 5000
DEAD = {"bmq_dead_queue": "bmq://bmq.test.mem.priority/origin", "bmq_dead_guid": "0" * 32}

#: Command lines, how many lines they print, and how many messages are left in QUEUE.
STREAMS: list[tuple[str, int | None, int]] = [
    ("tail QUEUE --confirm", COUNT, 0),
    ("tail QUEUE --confirm --json", COUNT, 0),
    ("tail QUEUE --confirm --json --follow --idle 2", COUNT, 0),
    ("tail QUEUE --confirm --output csv", COUNT + 1, 0),
    ("tail QUEUE --confirm --fields guid,size --count 4500", 4500, COUNT - 4500),
    ("tail QUEUE --max-unconfirmed 10000", COUNT, COUNT),
    ("tail QUEUE --max-unconfirmed 10000 --since 1h --count 4500", 4500, COUNT),
    ("peek QUEUE --count 10000 --json", COUNT, COUNT),
    ("dead QUEUE --json", COUNT, COUNT),
    ("dead QUEUE --all --back --to OTHER", COUNT, 0),
    ("move QUEUE OTHER --json", 1, 0),
    ("post OTHER --lines --file LINES --guids", COUNT, COUNT),
    ("post OTHER --ndjson --file LINES --guids --json", COUNT, COUNT),
    ("purge QUEUE --yes --json", 1, 0),
]


@pytest.mark.parametrize(("line", "printed", "left"), STREAMS, ids=[each[0] for each in STREAMS])
def test_five_thousand_messages(
    run: Bmq,
    aside: Aside,
    uri: str,
    bmq_new_queue_uri: Callable[[], str],
    tmp_path: Path,
    line: str,
    printed: int,
    left: int,
) -> None:
    names = {"QUEUE": bmq_new_queue_uri(), "OTHER": bmq_new_queue_uri(), "LINES": str(tmp_path / "lines")}
    (tmp_path / "lines").write_text('{"data": "x"}\n' * COUNT)
    queue = aside.do(aside.session.open_queue(names["QUEUE"], write=True))
    aside.do(queue.post_many([bmq.PutMessage(b"x", dict(DEAD)) for _ in range(COUNT)]))
    ran = run(*(names.get(word, word) for word in line.split()))
    assert ran.status == 0, ran.err[-300:]
    assert len(ran.lines) == printed
    if "json" in line.split()[-1]:
        assert all(json.loads(each) for each in ran.lines)

    async def depth() -> int:
        async with bmq.admin.connect(uri) as admin:
            return (await admin.queue(names["QUEUE"]).depth()).messages

    assert aside.do(depth()) == left
    for name in ("QUEUE", "OTHER"):
        run("purge", names[name], "--yes")
