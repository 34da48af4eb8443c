# SPDX-License-Identifier: Apache-2.0
"""A worker that a message kills; arguments: address, queue, quarantine, queue for results, kind."""

from __future__ import annotations

import asyncio
import os
import sys

import bmq


async def main(address: str, uri: str, letters: str, results: str, kind: str) -> None:
    app = bmq.App(address)

    async def handle(message: bmq.Message) -> None:
        if message.data == b"kill":
            os._exit(9)
        await (await app.queue(results)).post(message.data)

    if kind == "batches":

        @app.batch_consumer(uri, max_messages=7, max_wait=0.01, quarantine=bmq.DeadLetter(letters), after=3)
        async def batch(messages: list[bmq.Message]) -> None:
            for message in messages:
                await handle(message)

    else:
        concurrency = 4 if kind == "four" else 1
        app.consumer(uri, quarantine=bmq.DeadLetter(letters), after=3, concurrency=concurrency)(handle)
    await app.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
