# SPDX-License-Identifier: Apache-2.0
"""After one of two subscriptions had a full window, its later messages are not delivered.

Run it with the port of a broker: ``python full_window.py 30114``.
"""

import struct
import sys
import uuid

import raw

port = int(sys.argv[1])
subscriptions = ("x == 1", 2), ("x == 2", 100)
client = raw.Client(port)
client.open(f"bmq://bmq.test.mem.priority/{uuid.uuid4().hex}", read=True, write=True)
client.subscribe(*subscriptions)
guids = [client.post(b"%02d" % number, {"x": 1 + number % 2}) for number in range(20)]
print("20 messages: even numbers for a subscription with a window of 2, odd numbers for one with 100")
received = 0
while arrived := client.payloads(2):
    received += len(arrived)
    numbers = [int(payload[-2:]) for payload in arrived]
    print("received", numbers, "- and confirmed")
    for number in numbers:
        client.send(raw.event(raw.CONFIRM, b"\x16\0\0\0" + struct.pack(">i16si", 0, guids[number], 0)))
print(f"received {received} of 20; all received messages are confirmed, and nothing more arrives")
client.subscribe(*subscriptions)
print("after the same subscriptions again:", len(client.payloads(2)), "messages")
