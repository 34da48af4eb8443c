# SPDX-License-Identifier: Apache-2.0
"""Reading from a connection makes no system calls for memory."""

from __future__ import annotations

import subprocess
import sys

# The blocks that the C library has mapped one by one, before and after an allocation as asyncio makes it for
# each read. Other C libraries than glibc count nothing.
PROGRAM = """
import ctypes
import bmq.client.channel

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks".split()]
    _fields_ += [(f"rest{n}", ctypes.c_size_t) for n in range(6)]

libc = ctypes.CDLL(None)
count = getattr(libc, "mallinfo2", None)
if count is None:
    print(0)
else:
    count.restype = Info
    before = count().hblks
    block = bytes(256 * 1024)
    print(count().hblks - before)
"""


def test_a_receive_buffer_is_not_mapped_for_each_read() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert ran.stdout == "0\n"
