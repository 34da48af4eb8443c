# SPDX-License-Identifier: Apache-2.0
"""Bundles: subscriptions for many buckets at once.

A broker evaluates the expressions of a queue in turn until an expression matches. With a subscription for
each of 128 buckets, the broker evaluates 64 expressions on average. A bundle has the messages of a whole
class of buckets, and a priority above all buckets but raised ones. The
subscriptions of the buckets remain: they keep newer owners waiting, see :mod:`bmq.groups._protocol`.

A class is the set of all buckets with an equal remainder modulo a divisor of the number of buckets. The
expression of a class is as short as the expression of a bucket: with 128 buckets, ``bmq_bucket % 4 == 3``
matches the messages of the buckets 3, 7, 11 and so on up to 127. Any set of buckets is a union of classes.
The union has few classes if the leader assigns buckets in the order of :func:`bmq.groups._protocol.nested`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from bmq._logging import Log
from bmq.conventions import BUCKET
from bmq.errors import Error
from bmq.groups._expressions import bucket_expression
from bmq.groups._lanes import WIDEST, ignoring_errors
from bmq.groups._protocol import divisors

if TYPE_CHECKING:
    from bmq.client.consumer import Consumer
    from bmq.client.queue import Queue
    from bmq.groups._lanes import Dispatcher
    from bmq.subscriptions import ExpressionInput
    from bmq.wire.properties import Properties

logger = Log("bmq.groups")

#: The highest priority.
TOP: Final = 2**30
#: Bundles come directly below. Raised buckets are above, and other buckets below zero.
BUNDLES: Final = 16


#: Divisor of the number of buckets, and remainder.
Class = tuple[int, int]


class Bundles:
    """The bundles of a member of an exclusive group.

    A bundle is a consumer that hands messages over to the consumers of the buckets. A bundle that the
    broker refuses is left out: the subscriptions of the buckets serve its messages.

    Args:
        queue: the data queue.
        member: runs the tasks of the bundles.
        buckets: the consumers of all buckets, in order.
        key: the property with the key; None for the property ``bmq_bucket``.
        expression: the expression of the group.
    """

    def __init__(
        self,
        queue: Queue,
        member: Dispatcher,
        buckets: Sequence[Consumer],
        key: str | None,
        expression: ExpressionInput,
    ) -> None:
        self._queue = queue
        self._member = member
        self._buckets = list(buckets)
        self._key = key
        self._expression = expression
        self._open: dict[Class, Consumer] = {}
        self._closing: dict[asyncio.Task[None], Class] = {}

    def change(self, wanted: Iterable[int]) -> None:
        """Ask for bundles with the wanted buckets instead of the present bundles."""
        count = len(self._buckets)
        # A very low integer key overflows unless the number of buckets is a power of two, and would be in
        # another bucket of a class.
        possible = self._key is None or not count & (count - 1)
        new = dict.fromkeys(classes(wanted, count)) if possible else {}
        for each in new:
            if each not in self._open:
                self._begin(each)
        for each in [each for each in self._open if each not in new]:
            self._end(each)

    async def without(self, bucket: int) -> None:
        """Wait until the broker has answered the withdrawal of the bundles with a bucket.

        Cancelling the call does not stop the withdrawal.
        """
        count = len(self._buckets)
        closing = [task for task, each in self._closing.items() if bucket in members(each, count)]
        if closing:
            await asyncio.wait(closing)

    def _begin(self, each: Class) -> None:
        divisor, remainder = each
        consumer = self._queue.subscribe(
            bucket_expression(self._key, divisor, remainder, self._expression),
            # The largest classes first: most messages match early.
            priority=BUNDLES - divisor.bit_length(),
            **WIDEST,
        )
        self._open[each] = consumer
        self._member.spawn(self._serve(each, consumer))

    def _end(self, each: Class) -> None:
        task = self._member.spawn(ignoring_errors(self._open.pop(each).close()))
        self._closing[task] = each
        task.add_done_callback(self._closing.pop)

    async def _serve(self, each: Class, consumer: Consumer) -> None:
        """Hand over the messages of a bundle until the bundle is closed."""
        try:
            await consumer.open()
            while True:
                await consumer.wait()
                consumer._buffer.hand_over(self._bucket_of)
        except Error as error:
            if self._open.get(each) is consumer:
                logger.debug("a bundle of %s has ended: %s", self._queue.uri, error)
                self._end(each)

    def _bucket_of(self, properties: Properties | None) -> Consumer | None:
        """Return the consumer of the bucket; None for a negative ``bmq_bucket``, which is in no bucket."""
        key = None if properties is None else properties.get(self._key or BUCKET)
        if type(key) is not int or (self._key is None and key < 0):
            return None
        return self._buckets[key % len(self._buckets)]


def members(each: Class, buckets: int) -> range:
    """Return the buckets of a class."""
    divisor, remainder = each
    return range(remainder, buckets, divisor)


def classes(wanted: Iterable[int], buckets: int) -> list[Class]:
    """Return disjoint classes with exactly the wanted buckets, the largest classes first."""
    left = set(wanted)
    found: list[Class] = []
    for divisor in divisors(buckets):
        if not left:
            break
        for remainder in sorted({bucket % divisor for bucket in left}):
            whole = members((divisor, remainder), buckets)
            if left.issuperset(whole):
                found.append((divisor, remainder))
                left.difference_update(whole)
    return found
