# SPDX-License-Identifier: Apache-2.0
"""Messages on their way to a replica, when their consumer closes its queue, reach no other consumer there.

Run it with the ports of a primary and of a replica or proxy: ``python closed_behind_replica.py 30114 30124``.
"""

import random
import sys
import threading
import time
import uuid

import raw

MESSAGES = 1500
primary, replica = int(sys.argv[1]), int(sys.argv[2])
raw.print = lambda *_: None  # type: ignore[attr-defined]  # a line a message

for number in range(1, 11):
    uri = f"bmq://bmq.test.mem.priority/{uuid.uuid4().hex}"
    writer, first, second = raw.Client(primary), raw.Client(replica), raw.Client(replica)
    writer.open(uri, write=True)
    first.open(uri, read=True)
    second.open(uri, read=True)
    first.subscribe(("k >= 0", 100_000))

    def post(writer: raw.Client = writer) -> None:
        """Post all messages."""
        for k in range(MESSAGES):
            writer.post(b"%d" % k, {"k": k})

    posting = threading.Thread(target=post)
    posting.start()
    time.sleep(random.uniform(0.01, 0.06))
    if "--full" in sys.argv:
        first.subscribe(("k >= 0", 0))
    first.ask(
        closeQueue={
            "handleParameters": {
                "uri": uri,
                "qId": 0,
                "flags": 2,
                "readCount": 1,
                "writeCount": 0,
                "adminCount": 0,
            },
            "isFinal": True,
        }
    )
    second.subscribe(("k >= 0", 100_000))
    posting.join()
    received = len(set(second.payloads(1.5)))
    second.close()
    third = raw.Client(primary)
    third.open(uri, read=True)
    third.subscribe(("k >= 0", 100_000))
    stored = len(set(third.payloads(1.5)))
    print(f"round {number}: {received} of {MESSAGES}; at the primary afterwards {stored}")
    for each in (writer, first, third):
        each.close()
