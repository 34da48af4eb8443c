# SPDX-License-Identifier: Apache-2.0
"""A subscription whose expression has a literal of a single NUL ends the broker's process.

Run it with the port of a broker that may die: ``python nul_literal.py 30114``.
"""

import sys

import raw

port = int(sys.argv[1])
client = raw.Client(port)
client.open("bmq://bmq.test.mem.priority/nul", read=True)
try:
    client.subscribe(('x == "\0"', 10))
except ConnectionError as error:
    print(error)
print("the broker accepts connections" if raw.is_alive(port) else "the broker is gone")
