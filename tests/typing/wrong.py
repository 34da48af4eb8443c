# SPDX-License-Identifier: Apache-2.0
"""Programs that type checkers must reject: each marked line, and no other."""

from __future__ import annotations

import bmq
from bmq.testing import BackgroundBroker


async def misuse(queue: bmq.Queue, session: bmq.Session, app: bmq.App) -> None:
    bmq.connect("tcp://h", max_unackd=3)  # wrong
    bmq.connect("tcp://h", connect_timeout="x")  # wrong
    bmq.connect("tcp://h", compression="zlib")  # wrong
    bmq.connect("tcp://h", reconnect_delays=1.0)  # wrong
    bmq.App("tcp://h", gracee=3)  # wrong
    bmq.App("tcp://h", max_unacked_messages="3")  # wrong
    bmq.broker.Broker(prt=0)  # wrong
    bmq.conect("tcp://h")  # wrong
    bmq.testing.FaultProxi("tcp://h")  # wrong
    BackgroundBroker(prt=1)  # wrong
    await session.open_queue(b"bmq://d.e/q", read=True)  # wrong
    await session.open_queue("bmq://d.e/q", reads=True)  # wrong
    await queue.post("text")  # wrong
    await queue.post(b"x", properties=["a"])  # wrong
    queue.subscribe(5)  # wrong
    queue.subscribe("x == 1", prioriti=1)  # wrong
    texts = queue.typed(dict[str, int])
    await texts.post(["a"])  # wrong
    await texts.post({"a": "b"})  # wrong
    (await texts.receive()).value["a"].upper()  # wrong
    queue.typed(str, codec=Backwards())  # wrong
    await texts.request({"a": "b"}, reply=Shared)  # wrong
    print((await texts.request({"a": 1}, reply=Shared)).shiped)  # wrong
    bmq.RequestFailed("x", kind="ValueError")  # wrong

    @app.consumer("bmq://d.e/q")  # wrong
    async def handle() -> None: ...

    app.consumer("bmq://d.e/q", middlewares=[one_argument])  # wrong
    app.middleware(not_async)  # wrong
    bmq.Depends(of_numbers, scope="session")  # wrong
    app.overrides["of_numbers"] = of_numbers  # wrong

    @app.consumer("bmq://d.e/q")
    async def ship(order: dict[str, int], state: Shared, attempt: bmq.Attempt) -> None:
        print(state.shiped)  # wrong
        attempt.number = "one"  # wrong

    app.publish_to("bmq://d.e/q", key=7)  # wrong
    app.publish_to("bmq://d.e/q", properties=["a"])  # wrong
    app.consumer("bmq://d.e/q", undecodable=no_error)  # wrong
    router = bmq.Router(prefix=b"bmq://d.e/")  # wrong
    router.include(app)  # wrong
    app.include("orders")  # wrong
    router.consumer("q", concurency=2)  # wrong
    own = bmq.App(state=Shared())
    print(own.state.shiped)  # wrong
    own.state.shipped = "three"  # wrong
    await bmq.consume(texts, of_numbers)  # wrong
    await bmq.consume(texts.subscribe(), of_numbers)  # wrong


class Shared:
    shipped: int = 0


async def one_argument(attempt: bmq.Attempt) -> object: ...


def not_async(attempt: bmq.Attempt, call_next: bmq.workers.CallNext) -> int:
    return 1


async def of_numbers(number: int) -> None: ...


async def no_error(message: bmq.Message) -> None: ...


class Backwards:
    content_type = "text/x-backwards"

    def encode(self, value: str) -> str:
        return value[::-1]

    def decode(self, data: bytes) -> str:
        return data.decode()
