"""A local web page over the admin client: ``bmq console``, and ``bmq broker --console``.

::

    console = bmq.console.Console(bmq.console.Broker(uri))
    async with console:
        print(console.url)

It needs the extra ``console``.
"""

from bmq.console.server import Console, beside
from bmq.console.source import Broker, Embedded, NotNow

__all__ = ["Broker", "Console", "Embedded", "NotNow", "beside"]
