# SPDX-License-Identifier: Apache-2.0
"""From before the first import to the first acknowledgement, in milliseconds.

Takes one JSON object as its argument (see ``harness.Job``), prints one as its result.
"""

import time
from typing import Any


def ours(job: dict[str, Any]) -> None:
    import bmq

    async def main() -> None:
        async with bmq.connect(job["broker"]) as session:
            queue = await session.open_queue(job["queue"], write=True)
            await queue.post(b"first")
            report()

    bmq.run(main())


def official(job: dict[str, Any]) -> None:
    import threading

    import blazingmq

    acked = threading.Event()
    session = blazingmq.Session(lambda _: None, broker=job["broker"])
    session.open_queue(job["queue"], write=True)
    session.post(job["queue"], b"first", on_ack=lambda _: acked.set())
    acked.wait(60)
    report()
    session.stop()


def report() -> None:
    print(f'{{"ms": {(time.perf_counter() - begin) * 1000}}}')


if __name__ == "__main__":
    begin = time.perf_counter()
    import json
    import sys

    job = json.loads(sys.argv[1])
    {"ours": ours, "official": official}[job["case"]](job)
