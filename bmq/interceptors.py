# SPDX-License-Identifier: Apache-2.0
"""The arguments of an interceptor's methods; see :class:`bmq.Interceptor`::

class Stamp(bmq.Interceptor):
    def on_post(self, queue: bmq.Queue, posts: Sequence[bmq.interceptors.OutgoingMessage]) -> None:
        for message in posts:
            message.properties["host"] = HOST
"""

from bmq.client.interceptors import Interceptor, Operation, PostOutcome
from bmq.client.posts import OutgoingMessage

__all__ = [
    "Interceptor",
    "Operation",
    "OutgoingMessage",
    "PostOutcome",
]
