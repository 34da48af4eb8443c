# SPDX-License-Identifier: Apache-2.0
"""The messages of a consumer that dies at a replica stop this replica, and are overtaken elsewhere.

Three consumers have an expression each, the first two at a replica, the third at the primary. The first one
ends its connection without a confirmation, and the third one subscribes to the expression of the first one.

Run it with the ports of a primary and of a replica: ``python returned_behind_replica.py 30114 30124``.
"""

import sys
import time
import uuid

import raw

primary, replica = int(sys.argv[1]), int(sys.argv[2])
raw.print = lambda *_: None  # type: ignore[attr-defined]  # a line a message
uri = f"bmq://bmq.test.persistent.priority.sc/{uuid.uuid4().hex}"
window = 1000


def post(numbers: range) -> None:
    """Post messages of all three kinds, and let them arrive."""
    for k in numbers:
        writer.post(b".%d" % k, {"k": k % 3})
    time.sleep(1)


def numbers(client: raw.Client) -> list[int]:
    """Return what has arrived since the last call."""
    return [int(payload.rpartition(b".")[2]) for payload in client.payloads(1.5)]  # behind the properties


writer, third = raw.Client(primary), raw.Client(primary)
first, second = raw.Client(replica), raw.Client(replica)
writer.open(uri, write=True)
for number, client in enumerate((first, second, third)):
    client.open(uri, read=True)
    client.subscribe((f"k == {number}", window))
post(range(9))
print("the first consumer receives", numbers(first), "and ends its connection")
print("the second receives", numbers(second))
print("the third receives", numbers(third))
first.close()
time.sleep(1)
third.subscribe(("k == 2", window), ("k == 0", window))
post(range(9, 18))
print("the third, now with the expression of the first one too, receives", numbers(third))
print("the second receives", numbers(second))
second.subscribe(("k == 1", window), ("k == 0", window), priority=0)
print("the second, with this expression too and a lower priority, receives", numbers(second))
