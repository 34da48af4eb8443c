# SPDX-License-Identifier: Apache-2.0
"""Ends with status 0 if a broker answers a negotiation in time: ``healthy.py tcp://HOST:PORT [SECONDS]``."""

from __future__ import annotations

import asyncio
import os
import sys

import bmq


async def check(broker: str, seconds: float = 5) -> None:
    """Connect, and disconnect again."""
    try:
        async with bmq.connect(
            broker,
            credentials=bmq.Credentials.anonymous(),  # so that who is not let in is told so
            connect_timeout=seconds,
            process_name="health check",
        ):
            pass
    except bmq.AuthenticationError:
        pass  # it answers; it wants a user whose password is none of this program's business


def main() -> int:
    """Say what is wrong, if something is."""
    os.environ.pop("BMQ_BROKER_URI", None)  # the address to ask is the argument
    try:
        asyncio.run(check(sys.argv[1], *map(float, sys.argv[2:])))
    except bmq.Error as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
