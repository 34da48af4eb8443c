# SPDX-License-Identifier: Apache-2.0
"""The definition of a subscription, and messages with delivery numbers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from bmq.errors import ProtocolError
from bmq.protocol.client.ports import Arrival, Sink
from bmq.protocol.client.subscription import SubscriptionCore, SubscriptionOptions
from bmq.wire.constants import PushFlags
from bmq.wire.message import properties_size, read_properties
from bmq.wire.properties import Properties
from bmq.wire.push import Push

if TYPE_CHECKING:
    from bmq.client.buffer import ReceiveBuffer
    from bmq.subscriptions import Complement, Expression, ExpressionInput

__all__ = [
    "Definition",
    "Numbered",
    "Unread",
    "check_expression_input",
    "properties_of",
]

# Maximum number of property bytes decompressed to route a message. Real properties take less than a kilobyte,
# and compress to a fifth. A broker's megabyte must not become a gigabyte here.
_MOST_INFLATED = 64 * 1024
_ALWAYS_INFLATED = 4 * 1024
_MOST_INFLATED_RATIO = 32


class Unread(Enum):
    """Placeholder for the properties of a message not decompressed for routing."""

    UNREAD = "not inflated"


_UNREAD = Unread.UNREAD

#: A delivery number and its message: the messages of a session are numbered in the order of arrival.
Numbered = tuple[int, Push]


class Definition:
    """The definition of a consumer's subscription.

    Args:
        buffer: buffer of the consumer.
        expression: expression given by the application.
        options: limits and priority of all expressions together.
        discard: whether to discard unmatched messages.
        strict: if False, an expression that does not compile is sent unchanged.

    Attributes:
        buffer: buffer of the consumer.
        everything: whether the consumer takes all messages.
        expression: expression given by the application.
        expressions: compiled form of all expressions; None for all messages.
        options: limits and priority of all expressions together.
        discard: complement of the expression, if unmatched messages are to be discarded; otherwise None.
        subscriptions: one subscription for each expression, with the limits divided among the expressions,
            and the discarding subscriptions.

    Raises:
        InvalidExpression: the expression is not legal.
    """

    __slots__ = ("buffer", "discard", "everything", "expression", "expressions", "options", "subscriptions")

    def __init__(
        self,
        buffer: ReceiveBuffer,
        expression: ExpressionInput,
        options: SubscriptionOptions,
        *,
        discard: bool = False,
        strict: bool = True,
    ) -> None:
        self.buffer = buffer
        self.expression, self.expressions, complement = _compile(expression, discard=discard, strict=strict)
        self.everything = None in self.expressions
        self.options = options
        self.discard = complement
        parts = len(self.expressions)
        divided = options._replace(
            max_unconfirmed_messages=_share(options.max_unconfirmed_messages, parts),
            max_unconfirmed_bytes=_share(options.max_unconfirmed_bytes, parts),
        )
        self.subscriptions = [
            SubscriptionCore(str(each or ""), divided, buffer, self) for each in self.expressions
        ]
        if complement is not None:
            # A catch-all also matches the wanted messages: the priority must be below the filter's.
            limits = divided._replace(priority=options.priority - 1) if complement.catch_all else divided
            sink = _DiscardingSink(buffer, complement)
            self.subscriptions += [
                SubscriptionCore(str(each or ""), limits, sink, self) for each in complement.subscriptions()
            ]

    def takes(self, properties: Properties | Unread | None) -> bool:
        """Whether a message with some properties matches the consumer; False if unknown."""
        if self.everything:
            return True
        return properties is not _UNREAD and any(
            each is None or each.matches(properties) for each in self.expressions
        )

    def discards(self, properties: Properties | Unread | None) -> bool:
        """Whether a message with some properties is to be discarded; False if unknown."""
        return self.discard is not None and properties is not _UNREAD and self.discard.may_discard(properties)


class _DiscardingSink(Sink):
    """Confirms exactly the messages not matched by a filter.

    Some other brokers drop messages not matched by a subscriber's filter; this class has the same effect.
    Each message is evaluated again before the confirmation, and a matching message goes to the consumer.
    """

    __slots__ = ("_buffer", "_complement")

    def __init__(self, buffer: ReceiveBuffer, complement: Complement) -> None:
        self._buffer = buffer
        self._complement = complement

    def deliver(self, pushes: list[Push], numbers: Sequence[int], arrival: Arrival) -> None:
        """Accept newly arrived messages."""
        unwanted: list[Push] = []
        wanted: list[Numbered] = []
        for number, push in zip(numbers, pushes, strict=True):
            properties = properties_of(push)
            if properties is not _UNREAD and self._complement.may_discard(properties):
                unwanted.append(push)
            else:
                wanted.append((number, push))
        if wanted:
            self._buffer.deliver([push for _, push in wanted], [number for number, _ in wanted], arrival)
        if unwanted:
            self._buffer.queue._discard(unwanted, arrival)

    def again(self, count: int) -> None:
        """Count redelivered confirmed messages."""
        self._buffer.again(count)


def _compile(
    expression: ExpressionInput, *, discard: bool, strict: bool
) -> tuple[ExpressionInput, list[Expression | None], Complement | None]:
    """Return an expression, the compiled form, and the complement (None without discarding)."""
    if isinstance(expression, str):
        expression = str.__str__(expression) or None
    if expression is None and not discard:
        return None, [None], None
    # Imported with the first filter: programs that only post never need the module.
    from bmq.subscriptions import Expression, complement, plan, subscriptions_for

    if isinstance(expression, str):
        parts = plan(expression) if strict else [Expression(expression, strict=False)]
        # A text beyond the broker's limits stays text: no single expression has its meaning.
        expression = parts[0] if len(parts) == 1 else expression
    return expression, subscriptions_for(expression), complement(expression) if discard else None


def check_expression_input(expression: object) -> None:
    """Check the type of an expression; compiling checks the syntax.

    Raises:
        UsageError: the value is not an expression.
    """
    if expression is not None and not isinstance(expression, str):
        from bmq.subscriptions import check_expression_type

        check_expression_type(expression)


def properties_of(message: Push) -> Properties | Unread | None:
    """Return the properties of a message for routing.

    Returns:
        The properties. None for absent or malformed properties (brokers treat both alike). Unread if the
        decompressed size exceeds the limit.
    """
    _, _, _, flags, schema_id, compression, data = message
    if not flags & PushFlags.MESSAGE_PROPERTIES:
        return None
    try:
        if compression and not schema_id:
            size = properties_size(data)
            if size > min(_MOST_INFLATED, max(_ALWAYS_INFLATED, _MOST_INFLATED_RATIO * len(data))):
                return _UNREAD
        properties = read_properties(data, schema_id, compression)
        len(properties)  # decodes the properties
    except ProtocolError:
        return None
    return properties


def _share(limit: int, parts: int) -> int:
    return max(1, limit // parts) if limit else 0
