# SPDX-License-Identifier: Apache-2.0
"""Sends the letters, those of a customer in order: ``python mailer.py``.

Any number of mailers may run.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from access import credentials
from messages import LETTERS, Letter

import bmq


async def send(letter: Letter) -> None:
    print(f"to customer {letter.customer}: {letter.text}", flush=True)


async def deliver(
    session: bmq.Session, send: Callable[[Letter], Awaitable[None]]
) -> None:
    """Send letters until cancelled.

    A group gives each customer to one process at a time.
    """
    letters = (await session.open_queue(LETTERS, read=True)).typed(Letter)
    async with letters.group("CustomerId") as group:
        async for message in group:
            async with message:
                try:
                    letter = message.value
                except bmq.Undecodable:
                    logging.exception(
                        "letter %s is discarded", message.guid
                    )
                else:
                    await send(letter)


async def report(session: bmq.Session, file: Path) -> None:
    """Touch a file while the session is ready, until cancelled.

    An old file means an unhealthy mailer.
    """
    while True:
        if session.health().ready:
            await asyncio.to_thread(file.touch)
        await asyncio.sleep(5)


async def main() -> None:
    logging.basicConfig(level=logging.INFO)
    async with bmq.connect(
        credentials=credentials, retry_first_connect=True
    ) as session:
        file = os.environ.get("MAILER_READY_FILE")
        reporting = (
            asyncio.create_task(report(session, Path(file)))
            if file
            else None
        )
        try:
            await deliver(session, send)
        finally:
            if reporting is not None:
                reporting.cancel()


if __name__ == "__main__":
    bmq.run(main())
