# SPDX-License-Identifier: Apache-2.0
"""Write a tick to standard output at a given rate; shares nothing with the clients that it paces.

A tick is the time of its writing: eight bytes, nanoseconds of the monotonic clock, which all processes share.
Ticks that became due during a pause of this process are written together, as requests arrive in reality.
"""

from __future__ import annotations

import os
import struct
import sys
import time

FIRST_AFTER = 0.5


def main(rate: float, count: int) -> None:
    start = time.monotonic() + FIRST_AFTER
    done = 0
    while done < count:
        time.sleep(max(0.0, start + done / rate - time.monotonic()))
        due = min(count, int((time.monotonic() - start) * rate) + 1)
        if due > done:
            ticks = struct.pack("=q", time.monotonic_ns()) * (due - done)
            os.write(1, ticks)
            done = due


main(float(sys.argv[1]), int(sys.argv[2]))
