# SPDX-License-Identifier: Apache-2.0
"""A broker's admin commands as typed calls.

::

    async with bmq.admin.connect("tcp://localhost:30114") as admin:
        depth = await admin.queue("bmq://bmq.test.mem.priority/orders").depth()

The usual commands have methods. :meth:`Admin.command` sends any other line, and :meth:`Admin.query` returns
the answer decoded. :func:`danger_of` returns the danger of a line.
"""

from bmq.admin import results
from bmq.admin.client import Admin, QueueAdmin, connect
from bmq.admin.commands import Danger, danger_of
from bmq.admin.results import *  # noqa: F403 - each answer is public

__all__ = ["Admin", "Danger", "QueueAdmin", "connect", "danger_of"]
__all__ += results.__all__
