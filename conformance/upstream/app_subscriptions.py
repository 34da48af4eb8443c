# SPDX-License-Identifier: Apache-2.0
"""A domain in priority mode with two application subscriptions ends the broker's process.

Run it with the port of a broker that may die, and the folder of its domain files:
``python app_subscriptions.py 30114 etc/domains``. The script writes the file of a new domain, a copy of
``bmq.test.mem.priority.json`` with two subscriptions, and opens a queue there.
"""

import json
import pathlib
import sys

import raw

port, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
name = "bmq.test.two.subscriptions"
domain = json.loads((folder / "bmq.test.mem.priority.json").read_text())
domain["definition"]["parameters"] |= {
    "name": name,
    "subscriptions": [
        {"appId": "", "expression": {"version": "E_VERSION_1", "text": text}} for text in ("x > 0", "x > 1")
    ],
}
(folder / f"{name}.json").write_text(json.dumps(domain))
client = raw.Client(port)
try:
    client.open(f"bmq://{name}/queue", write=True)
except ConnectionError as error:
    print(error)
print("the broker accepts connections" if raw.is_alive(port) else "the broker is gone")
