# SPDX-License-Identifier: Apache-2.0
"""A subscription whose expression is ``false`` receives every message; so does one that does not compile.

Run it with the port of a broker: ``python uncompiled_expression.py 30114``.
"""

import sys
import uuid

import raw

port = int(sys.argv[1])
for text in ("false", "x ==", "1 == 2"):
    client = raw.Client(port)
    client.open(f"bmq://bmq.test.mem.priority/{uuid.uuid4().hex}", read=True, write=True)
    client.subscribe((text, 10))
    client.post(b"hello", {"x": 1})
    print(f"expression {text!r}: {len(client.payloads(1))} of 1 messages delivered")
    client.close()
