# SPDX-License-Identifier: Apache-2.0
"""A node other than the primary drops posts to a queue that has a reader without a subscription.

Run it with the ports of all nodes of a cluster: ``python no_subscription.py 41420 41430 41440``.
"""

import sys
import uuid

import raw

for port in map(int, sys.argv[1:]):
    uri = f"bmq://bmq.test.persistent.priority/{uuid.uuid4().hex}"
    client = raw.Client(port)
    client.open(uri, read=True, write=True)
    client.post(b"hello")
    acknowledged = False
    while (found := client.read(3)) is not None:
        acknowledged |= found[0] == raw.ACK
    client.subscribe(("", 10))
    delivered = len(client.payloads(3))
    print(f"node {port}: acknowledged {acknowledged}, delivered after a subscription: {delivered} of 1")
    client.close()
