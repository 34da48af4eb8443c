"""How values of a type become messages, and messages values again.

:meth:`bmq.Queue.typed` and handlers with an annotated value use this: a :class:`Codec` turns a value into a
payload, and :class:`Property` says which of its fields are also properties, for subscriptions to select by.
"""

from bmq.codecs._cloudevents import CloudEvent
from bmq.codecs._codec import Codec, codec_for, register
from bmq.codecs._fields import Property
from bmq.codecs._shape import Shape

__all__ = ["CloudEvent", "Codec", "Property", "Shape", "codec_for", "register"]
