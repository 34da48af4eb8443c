# SPDX-License-Identifier: Apache-2.0
"""An embedded broker that acknowledges nothing, until it is told to end."""

import asyncio

from bmq.broker import Broker


async def main() -> None:
    async with Broker(port=0) as broker:
        broker.faults.drop_acks()
        print(f"mute broker ready on {broker.uri}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
