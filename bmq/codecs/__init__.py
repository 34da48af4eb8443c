# SPDX-License-Identifier: Apache-2.0
"""How values of a type become messages, and messages values again.

:meth:`bmq.Queue.typed` and handlers with an annotated value use this: a :class:`Codec` turns a value into a
payload, and :class:`Property` says which of its fields are also properties, for subscriptions to select by.
"""

from typing import TYPE_CHECKING

from bmq.codecs._cloudevents import CloudEvent
from bmq.codecs._codec import Codec, codec_for, register
from bmq.codecs._fields import Property
from bmq.codecs._shape import Shape

if TYPE_CHECKING:
    from bmq.codecs._msgspec import MsgspecJson
else:

    def __getattr__(name):
        """Import what needs an extra when it is asked for."""
        if name == "MsgspecJson":
            from bmq.codecs._msgspec import MsgspecJson

            return MsgspecJson
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["CloudEvent", "Codec", "MsgspecJson", "Property", "Shape", "codec_for", "register"]
