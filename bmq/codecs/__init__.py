# SPDX-License-Identifier: Apache-2.0
"""Codecs: the conversion between values of a type and messages.

:meth:`bmq.Queue.typed` and handlers with an annotated value use this package. A :class:`Codec` converts a
value to a payload and back; :class:`Property` marks the fields that are also properties, for use in
subscriptions.
"""

from bmq.codecs._cloudevents import CloudEvent
from bmq.codecs._codec import Codec, MsgspecJson, codec_for, register
from bmq.codecs._shape import Shape
from bmq.codecs.fields import Property

__all__ = ["CloudEvent", "Codec", "MsgspecJson", "Property", "Shape", "codec_for", "register"]
