# SPDX-License-Identifier: Apache-2.0
"""Receive flight records that match an expression, and confirm each one.

    python examples/consumer.py --expression 'origin == "JFK" && dep_delay > 60'

Runs until interrupted, or until ``--count`` messages were handled.
"""

from __future__ import annotations

import argparse
import json
import sys

import bmq

QUEUE = "bmq://bmq.test.mem.priority/departures"


async def main() -> None:
    parser = argparse.ArgumentParser(description="Receive flight records from a queue.")
    parser.add_argument("--broker", help="default: BMQ_BROKER_URI, or tcp://localhost:30114")
    parser.add_argument(
        "--queue", default="bmq://bmq.test.mem.priority/departures", help="default: %(default)s"
    )
    parser.add_argument(
        "--expression", default="", help="an expression over the properties; default: everything"
    )
    parser.add_argument("--count", type=int, default=0, help="stop after this many messages; default: never")
    options = parser.parse_args()

    async with bmq.connect(options.broker) as session:
        queue = await session.open_queue(options.queue, read=True, default_subscription=False)
        handled = 0
        async with queue.subscribe(options.expression) as consumer:
            print(f"waiting for messages of {queue.uri}; Ctrl-C ends", flush=True)
            async for message in consumer:
                async with message:  # confirms on a clean exit, leaves the message unconfirmed on an error
                    record = json.loads(message.data)
                    delay = record.get("dep_delay", "?")
                    flight = f"{record['carrier']}{record['flight']}"
                    print(f"{flight} {record['origin']}-{record['dest']} {delay} min late")
                handled += 1
                if handled == options.count:
                    break


if __name__ == "__main__":
    try:
        bmq.run(main())
    except KeyboardInterrupt:
        pass
    except bmq.Error as error:
        sys.exit(f"{type(error).__name__}: {error}")
