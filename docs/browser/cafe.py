# SPDX-License-Identifier: Apache-2.0
"""The café of the playground: a shop posts orders for a bar and a kitchen.

The programs, the broker and the network are a :class:`bmq.testing.Simulation`. The page calls
:meth:`Cafe.advance` many times a second, and :meth:`Cafe.command` for a click.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import bmq
from bmq.errors import Error
from bmq.testing import SimulatedProcess, Simulation

ORDERS = "bmq://bmq.test.persistent.priority/orders"
MENU = (("drink", "espresso"), ("drink", "tea"), ("food", "cake"), ("food", "soup"))
WINDOW = 20
SLICE = 0.05
QUICK, SLOW = 0.05, 1.0  # seconds to handle an order
KEPT_LINES = 200

_who: ContextVar[str] = ContextVar("who", default="broker")


class Consumer:
    """A consumer of the café, with the numbers of the handled orders."""

    def __init__(self, name: str, expression: str) -> None:
        self.name = name
        self.expression = expression
        self.handled: Counter[int] = Counter()
        self.seconds = QUICK
        self.wanted: str | None = None
        self.error = ""
        self.consumer: bmq.Consumer | None = None

    def wish(self, expression: str) -> None:
        """Ask for another expression; :attr:`error` describes an illegal expression."""
        try:
            bmq.Expression(expression)
        except bmq.InvalidExpression as error:
            self.error = str(error)
        else:
            self.error, self.wanted = "", expression

    async def change(self) -> None:
        """Subscribe to each requested expression."""
        while True:
            await asyncio.sleep(0.1)
            if self.wanted is None or self.consumer is None:
                continue
            expression, self.wanted = self.wanted, None
            try:
                await self.consumer.configure(expression)
            except Error as error:
                self.error = str(error)
            else:
                self.expression = expression

    def state(self) -> dict[str, Any]:
        return {
            "expression": self.expression,
            "error": self.error,
            "handled": len(self.handled),
            "held": self.consumer.stats().unconfirmed if self.consumer is not None else 0,
            "window": WINDOW,
            "slow": self.seconds == SLOW,
        }


class Cafe:
    """The shop, the broker, the bar and the kitchen.

    Args:
        seed: decides the orders and the times on the network.
    """

    def __init__(self, seed: int = 1) -> None:
        self.sim = Simulation(seed)
        self.rate = 6.0
        self.posting = True
        self.posted = 0
        self.acknowledged: set[int] = set()
        self.consumers = {
            "bar": Consumer("bar", 'kind == "drink"'),
            "kitchen": Consumer("kitchen", 'kind == "food"'),
        }
        self.sessions: dict[str, bmq.Session] = {}
        self.cut: set[str] = set()
        self.processes: dict[str, SimulatedProcess] = {}
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._handler = _Lines(self)
        logging.getLogger("bmq").addHandler(self._handler)
        self._slices = self.sim.play(self._main, every=SLICE)

    # ---- the programs

    async def _main(self) -> None:
        self.broker = self.sim.broker()
        self.processes["shop"] = self.sim.process("shop", self._shop)
        for each in self.consumers.values():
            self.processes[each.name] = self.sim.process(each.name, self._work, each)
        await asyncio.sleep(1e9)  # until the page is closed

    @asynccontextmanager
    async def _connected(self, name: str) -> AsyncGenerator[bmq.Session]:
        """Connect as a program of the café, with its name before its log lines."""
        _who.set(name)
        self.sessions.pop(name, None)
        async with bmq.connect(self.broker.uri, retry_first_connect=True) as session:
            self.sessions[name] = session
            yield session

    async def _shop(self) -> None:
        async with self._connected("shop") as session:
            queue = await session.open_queue(ORDERS, write=True)
            while True:
                if self.posting:
                    number = self.posted
                    self.posted += 1
                    kind, what = self.sim.random.choice(MENU)
                    outcome = queue.post_nowait(what.encode(), properties={"kind": kind, "number": number})
                    outcome.add_done_callback(partial(self._answered, number))
                await asyncio.sleep(1 / self.rate)

    def _answered(self, number: int, outcome: asyncio.Future[Any]) -> None:
        if not outcome.cancelled() and outcome.exception() is None:
            self.acknowledged.add(number)

    async def _work(self, each: Consumer) -> None:
        async with self._connected(each.name) as session:
            queue = await session.open_queue(ORDERS, read=True, default_subscription=False)
            each.consumer = await queue.subscribe(each.expression, max_unconfirmed_messages=WINDOW)
            changing = asyncio.create_task(each.change())
            try:
                async for message in each.consumer:
                    async with message:
                        await asyncio.sleep(each.seconds)
                    each.handled[int(message.properties["number"])] += 1
            finally:
                changing.cancel()

    # ---- the page

    def advance(self, slices: int = 1) -> str:
        """Let slices of virtual time pass; return the state, as JSON."""
        now = 0.0
        for _ in range(slices):
            now = next(self._slices)
        return json.dumps(self.state(now))

    def close(self) -> None:
        """End the simulation."""
        self._slices.close()
        logging.getLogger("bmq").removeHandler(self._handler)

    def state(self, now: float) -> dict[str, Any]:
        handled = {number for each in self.consumers.values() for number in each.handled}
        stored = self._stored()
        unseen = len(self.acknowledged - handled)
        books = {
            "posted": self.posted,
            "acknowledged": len(self.acknowledged),
            "stored": stored,
            "handled": len(handled),
            "twice": sum(sum(each.handled.values()) - len(each.handled) for each in self.consumers.values()),
            "lost": max(0, unseen - stored),
        }
        books["balanced"] = (
            not self.posting and books["posted"] == books["acknowledged"] == books["handled"] and not stored
        )
        lines = list(self.lines)
        self.lines.clear()
        return {
            "now": now,
            "posting": self.posting,
            "rate": self.rate,
            "broker": self.broker.running,
            "cut": sorted(self.cut),
            "books": books,
            "programs": {name: self._program(name) for name in self.processes},
            "consumers": {name: each.state() for name, each in self.consumers.items()},
            "lines": lines,
        }

    def command(self, verb: str, name: str = "", value: Any = None) -> None:
        """Carry out a click.

        Args:
            verb: "cut" the link of a program, "kill" a program or the broker, "post", post at a "rate", be
                "slow", subscribe to another "expression".
            name: the program.
            value: the rate, the expression, or whether to do so; False repairs a link and starts a program.
        """
        if verb == "cut":
            if value:
                self.cut.add(name)
                self.sim.network.partition(name, "broker")
            else:
                self.cut.discard(name)
                self.sim.network.mend(name, "broker")
        elif verb == "kill" and name == "broker":
            if value:
                self.broker.crash()
            elif not self.broker.running:
                self.broker.start()
        elif verb == "kill":
            process = self.processes[name]
            if value:
                process.kill()
            elif not process.running:
                process.start()
        elif verb == "post":
            self.posting = bool(value)
        elif verb == "rate":
            self.rate = max(0.5, min(50.0, float(value)))
        elif verb == "slow":
            self.consumers[name].seconds = SLOW if value else QUICK
        elif verb == "expression":
            self.consumers[name].wish(str(value))
        else:
            raise ValueError(f"no such command: {verb}")

    def _stored(self) -> int:
        return self.broker.broker.queues[ORDERS].stats().messages

    def _program(self, name: str) -> dict[str, Any]:
        session = self.sessions.get(name)
        up = self.processes[name].running
        state = "STARTING" if session is None else session.state.name
        return {"up": up, "session": state if up else "NONE"}


class _Lines(logging.Handler):
    """Keeps the log lines of all programs, with the time and the program."""

    def __init__(self, cafe: Cafe) -> None:
        super().__init__(logging.INFO)
        self._cafe = cafe

    def emit(self, record: logging.LogRecord) -> None:
        self._cafe.lines.append(f"{self._cafe.sim.now:7.2f} s  {_who.get():8} {record.getMessage()}")
