# SPDX-License-Identifier: Apache-2.0
"""Types of arguments, for annotations in programs that wrap bmq.

The options of a call are a ``TypedDict``, so a wrapper passes them on with their types::

    async def opened(
        broker: str, **options: Unpack[bmq.types.ConnectOptions]
    ) -> bmq.Session:
        return await bmq.connect(broker, **options)

    def labels(order: Order) -> dict[str, bmq.types.PropertyInput]:
        return {"Region": order.region, "Amount": order.amount}
"""

from bmq.client.keywords import ConnectOptions, TablesOptions
from bmq.client.options import CredentialsSource, SessionFields
from bmq.groups import GroupOptions
from bmq.subscriptions import ExpressionInput
from bmq.wire.keys import Key
from bmq.wire.properties import PlainValue, PropertyInput

__all__ = [
    "ConnectOptions",
    "CredentialsSource",
    "ExpressionInput",
    "GroupOptions",
    "Key",
    "PlainValue",
    "PropertyInput",
    "SessionFields",
    "TablesOptions",
]
