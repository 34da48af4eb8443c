# SPDX-License-Identifier: Apache-2.0
"""A message that no subscription matches any more stops the delivery of later messages that do match.

Run it with the port of a broker: ``python stopped_delivery.py 30114``.
"""

import sys
import time
import uuid

import raw

port = int(sys.argv[1])
uri = f"bmq://bmq.test.mem.priority/{uuid.uuid4().hex}"
first, second = raw.Client(port), raw.Client(port)
second.open(uri, read=True, write=True)
second.subscribe(("x == 2", 10))
first.open(uri, read=True)
first.subscribe(("x == 1", 10))
second.post(b"for the first consumer", {"x": 1})
print("the first consumer receives", len(first.payloads(1)), "message, and leaves without a confirmation")
first.close()
time.sleep(1)
for _ in range(3):
    second.post(b"for the second consumer", {"x": 2})
print("the second consumer receives", len(second.payloads(3)), "of 3 messages that match its expression")
second.subscribe(("x == 2", 10))
print("after the same subscription again:", len(second.payloads(3)), "messages")
