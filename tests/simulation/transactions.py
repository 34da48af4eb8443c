# SPDX-License-Identifier: Apache-2.0
"""A handler whose effect is the commit of a dependency. Annotations here name local variables."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Annotated, Any

import bmq
from bmq.testing import Simulation

__all__ = ["Desk"]


class Desk:
    """The dependencies of one run of a worker, with counts.

    Attributes:
        open: open transactions.
        connected: whether the connection is open.
    """

    def __init__(self, sim: Simulation, committed: set[int]) -> None:
        self._sim = sim
        self._committed = committed
        self.open = 0
        self.connected = False

    async def connection(self) -> AsyncIterator["Desk"]:
        assert not self.connected
        await asyncio.sleep(self._sim.random.uniform(0, 0.1))
        self.connected = True
        yield self
        assert not self.open, "the connection is closed before its transactions"
        self.connected = False

    def handler(self) -> Callable[..., Awaitable[Any]]:
        """Return a handler that stages its effect in a separate transaction."""
        random = self._sim.random

        def label(message: bmq.Message) -> Iterator[int]:
            try:
                yield int(message.data)
            except BaseException:
                pass  # a dependency cannot suppress an exception

        async def transaction(
            number: Annotated[int, bmq.Depends(label)],
            desk: Annotated[Desk, bmq.Depends(self.connection, scope="app")],
        ) -> AsyncIterator[list[int]]:
            assert desk.connected
            desk.open += 1
            try:
                staged: list[int] = []
                yield staged
                await asyncio.sleep(random.uniform(0, 0.05))
                if random.random() < 0.1:
                    raise ConnectionError("a drawn failure of a commit")
                assert staged == [number], "an attempt has its own transaction"
                self._committed.update(staged)
            finally:
                desk.open -= 1

        async def handle(
            message: bmq.Message,
            staged: Annotated[list[int], bmq.Depends(transaction)],
            number: Annotated[int, bmq.Depends(label)],
            attempt: bmq.Attempt,
        ) -> int:
            assert not staged
            staged.append(number)
            assert attempt.message is message
            assert attempt.number >= 1
            await asyncio.sleep(random.uniform(0, 0.2))
            if number % 7 == 0 or random.random() < 0.2:
                raise RuntimeError("a drawn failure")
            return number

        return handle

    def middlewares(self, kinds: str) -> list[Any]:
        """Return middlewares by letters: p passes, r repeats once, t translates errors, s hides errors."""

        async def passes(attempt: bmq.Attempt, call_next: Callable[[], Awaitable[Any]]) -> Any:
            result = await call_next()
            assert result in (int(attempt.message.data), "suppressed")
            return result

        async def repeats(attempt: bmq.Attempt, call_next: Callable[[], Awaitable[Any]]) -> Any:
            try:
                return await call_next()
            except (ConnectionError, RuntimeError):
                await asyncio.sleep(self._sim.random.uniform(0, 0.1))
                return await call_next()

        async def translates(attempt: bmq.Attempt, call_next: Callable[[], Awaitable[Any]]) -> Any:
            try:
                return await call_next()
            except RuntimeError as error:
                raise OSError("translated") from error

        async def suppresses(attempt: bmq.Attempt, call_next: Callable[[], Awaitable[Any]]) -> Any:
            try:
                return await call_next()
            except ConnectionError:
                self._committed.add(int(attempt.message.data))
                return "suppressed"

        made = {"p": passes, "r": repeats, "t": translates, "s": suppresses}
        return [made[kind] for kind in kinds]
