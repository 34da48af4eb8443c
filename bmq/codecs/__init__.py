# SPDX-License-Identifier: Apache-2.0
"""Codecs: the conversion between values of a type and messages.

:meth:`bmq.Queue.typed` and handlers with an annotated value use this package. A :class:`Codec` converts a
value to a payload and back; :class:`Property` marks the fields that are also properties, for use in
subscriptions.
"""

from typing import TYPE_CHECKING

from bmq.codecs._cloudevents import CloudEvent
from bmq.codecs._codec import Codec, codec_for, register
from bmq.codecs._shape import Shape
from bmq.codecs.fields import Property

if TYPE_CHECKING:
    from bmq.codecs._msgspec import MsgspecJson
else:

    def __getattr__(name):
        """Import names that need an extra on first access."""
        if name == "MsgspecJson":
            from bmq.codecs._msgspec import MsgspecJson

            return MsgspecJson
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["CloudEvent", "Codec", "MsgspecJson", "Property", "Shape", "codec_for", "register"]
