# SPDX-License-Identifier: Apache-2.0
"""A local web page over the admin client: ``bmq console``, and ``bmq broker --console``.

::

    console = bmq.console.Console(bmq.console.RemoteBroker(uri))
    async with console:
        print(console.url)

The extra ``console`` is required.
"""

from bmq.console.server import Console, beside
from bmq.console.source import Embedded, NotNow, RemoteBroker

__all__ = ["Console", "Embedded", "NotNow", "RemoteBroker", "beside"]
