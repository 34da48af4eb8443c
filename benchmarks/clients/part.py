# SPDX-License-Identifier: Apache-2.0
"""One process of a bare client that posts a part of the rows of ``spark_floors.py``, or receives all of them.

Takes a JSON object as its argument: the broker's address, the queue, the case, the number of rows, and for
posts a file with the rows, which have equal sizes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bmq

SIZE = 10_000


async def post_many(queue: bmq.Queue, job: dict[str, Any]) -> None:
    data, size, properties = Path(job["file"]).read_bytes(), job["size"], job["properties"]  # noqa: ASYNC240

    def messages() -> Iterator[bmq.PutMessage]:
        for start in range(0, len(data), size):
            yield bmq.PutMessage(data[start : start + size], properties)

    report = await queue.post_many(messages())
    assert report.acknowledged == job["count"], report


async def post_table(queue: bmq.Queue, job: dict[str, Any]) -> None:
    import pyarrow as pa

    with pa.memory_map(job["file"]) as file:
        report = await queue.post_table(pa.ipc.open_file(file).read_all(), properties=list(job["properties"]))
    assert report.acknowledged == job["count"], report


async def tables(queue: bmq.Queue, job: dict[str, Any]) -> None:
    import pyarrow as pa

    kinds = {"CustomerId": pa.int64(), "OrderType": pa.string()}
    found = queue.tables(properties=kinds, max_unconfirmed_messages=1_000_000)
    left = job["count"]
    async for batch in found:
        found.confirm()
        left -= batch.num_rows
        if left <= 0:
            return


async def main(job: dict[str, Any]) -> None:
    case = {"post_many": post_many, "post_table": post_table, "tables": tables}[job["case"]]
    async with bmq.connect(job["broker"]) as session:
        reads = job["case"] == "tables"
        queue = await session.open_queue(job["queue"], write=not reads, read=reads)
        await case(queue, job)


if __name__ == "__main__":
    bmq.run(main(json.loads(sys.argv[1])))
