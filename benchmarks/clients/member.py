# SPDX-License-Identifier: Apache-2.0
"""A member of a group that writes down the begin and the end of each message, until SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from common import Job, job

import bmq


async def main(job: Job) -> None:
    out = os.open(job["path"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)

    async def handle(group: bmq.groups.Group) -> None:
        async for message in group:
            async with message:
                bucket = group.bucket_of(message)
                assert bucket is not None
                what = b"%d %d %d\n" % (bucket, int(message.data), group.fence(bucket))
                os.write(out, b"B %d " % time.monotonic_ns() + what)
                await asyncio.sleep(job["work"])
                os.write(out, b"E %d " % time.monotonic_ns() + what)

    async with bmq.connect(job["broker"]) as session:
        queue = await session.open_queue(job["queue"], read=True)
        async with queue.group(
            "k", buckets=job["buckets"], lease=job["lease"], member=job["member"]
        ) as group:
            os.write(out, b"ready\n")
            handling = asyncio.create_task(handle(group))
            leave = asyncio.create_task(leaving.wait())
            await asyncio.wait((handling, leave), return_when=asyncio.FIRST_COMPLETED)
        if handling.done():
            await handling


if __name__ == "__main__":
    asyncio.run(main(job()))
