# SPDX-License-Identifier: Apache-2.0
"""Input from files and from standard input, without blocking the event loop; and files replaced at once."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path

STDIN = "-"
_CHUNK = 64 * 1024
#: Maximum number of waiting chunks.
_AHEAD = 16


async def _chunks(name: str) -> AsyncIterator[bytes]:
    """Iterate over the bytes of a file or of standard input.

    Raises:
        OSError: the file cannot be read.
    """
    if name != STDIN:
        with Path(name).open("rb") as file:  # noqa: ASYNC230 - a file is there, it is not waited for
            while data := file.read(_CHUNK):
                yield data
        return
    # A separate thread without a buffered reader: neither Ctrl-C nor the end of the interpreter may wait for
    # input.
    loop = asyncio.get_running_loop()
    came: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(_AHEAD)
    descriptor = sys.stdin.fileno()

    def read() -> None:
        data: bytes | OSError = b"-"
        while isinstance(data, bytes) and data:
            room.acquire()
            try:
                data = os.read(descriptor, _CHUNK)
            except OSError as error:
                data = error
            try:
                loop.call_soon_threadsafe(came.put_nowait, data)
            except RuntimeError:
                return  # the loop is closed

    threading.Thread(target=read, daemon=True, name="bmq-stdin").start()
    while True:
        received = await came.get()
        room.release()
        if isinstance(received, OSError):
            raise received
        if not received:
            return
        yield received


async def lines(name: str) -> AsyncIterator[bytes]:
    """Iterate over the lines of a file or of standard input, with their line ends, if any."""
    left = b""
    async for data in _chunks(name):
        *complete, left = (left + data).split(b"\n")
        for line in complete:
            yield line + b"\n"
    if left:
        yield left


async def whole(name: str) -> bytes:
    """Return the whole content of a file or of standard input."""
    return b"".join([data async for data in _chunks(name)])


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file at once: a reader sees the old content or the new, and an interruption leaves the old.

    Raises:
        OSError: the file cannot be written.
    """
    whole = Path(os.path.realpath(path))  # a link stays a link
    descriptor, name = tempfile.mkstemp(prefix=f".{whole.name}.", suffix=".new", dir=whole.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(mode)
        Path(name).replace(whole)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
