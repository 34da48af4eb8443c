# SPDX-License-Identifier: Apache-2.0
"""``bmq broker`` that prints the number of bytes in use for each SIGUSR1.

The memory of the process is not enough: the allocators keep a megabyte for a single small object.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import tempfile

from bmq.broker.main import run


class Mallinfo(ctypes.Structure):
    """The result of glibc's ``mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
            "keepcost",
        )
    ]  # fmt: skip


def in_use() -> int:
    """Bytes in blocks of the interpreter's allocator, and of the C library's."""
    with tempfile.TemporaryFile("w+") as file:
        # The interpreter writes its statistics to the file descriptor of stderr only.
        stderr = os.dup(2)
        os.dup2(file.fileno(), 2)
        sys._debugmallocstats()
        os.dup2(stderr, 2)
        os.close(stderr)
        file.seek(0)
        small = re.search(r"bytes in allocated blocks\s*=\s*([\d,]+)", file.read())
    assert small is not None
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Mallinfo
    large = mallinfo()
    return int(small[1].replace(",", "")) + int(large.uordblks) + int(large.hblkhd)


def tell(*_: object) -> None:
    print(in_use(), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell)
    sys.exit(run(sys.argv[1:]))
