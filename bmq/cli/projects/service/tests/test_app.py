# SPDX-License-Identifier: Apache-2.0
"""The handlers, with a broker in memory: no socket, and pauses between attempts take no time."""

from __future__ import annotations

from bmq.testing import TestApp

from bmq_new_module.app import DEAD, ORDERS, Carrier, Order, get_carrier, make_app


class Fake(Carrier):
    """Fails a given number of times, and remembers what it took."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.taken: list[Order] = []

    async def take(self, order: Order) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the carrier does not answer")
        self.taken.append(order)


ORDER = Order(1, customer=7, address="1 Main Street")


async def test_an_order_is_shipped() -> None:
    carrier = Fake()
    async with TestApp(make_app(), overrides={get_carrier: lambda: carrier}) as test:
        await test.post(ORDERS, ORDER)
        await test.drained()
        test.assert_posted(DEAD, count=0)
    assert carrier.taken == [ORDER]


async def test_a_failed_order_is_tried_again() -> None:
    carrier = Fake(failures=2)
    async with TestApp(make_app(), overrides={get_carrier: lambda: carrier}) as test:
        await test.post(ORDERS, ORDER)
        await test.drained()
        assert [failure.attempt for failure in test.retried] == [1, 2]
    assert carrier.taken == [ORDER]


async def test_an_order_that_always_fails_becomes_a_dead_letter() -> None:
    carrier = Fake(failures=100)
    async with TestApp(make_app(), overrides={get_carrier: lambda: carrier}) as test:
        await test.post(ORDERS, ORDER)
        await test.drained()
        test.assert_posted(DEAD, ORDER, count=1, properties={"CustomerId": 7, "bmq_dead_attempts": 4})


async def test_an_order_without_an_address_and_other_data_become_dead_letters_at_once() -> None:
    carrier = Fake()
    async with TestApp(make_app(), overrides={get_carrier: lambda: carrier}) as test:
        await test.post(ORDERS, Order(2, customer=7))
        await test.post(ORDERS, b"no order")
        await test.drained()
        test.assert_posted(DEAD, count=2)
        assert not test.retried
    assert carrier.taken == []
