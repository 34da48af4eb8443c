# SPDX-License-Identifier: Apache-2.0
"""``bmq console``."""

from __future__ import annotations

import asyncio
import os

from bmq._version import install
from bmq.cli.messages import BadInput
from bmq.cli.options import option
from bmq.cli.output import emit
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import verb

__all__ = ["command"]


@verb("console", service=True)
async def command(
    target: BrokerTarget,
    host: str = option("--host", "Address to listen on.", "127.0.0.1"),
    port: int = option("--port", "Port to listen on; 0 selects a free port.", 30180, min=0, max=65535),
    allow_host: list[str] | None = option(
        "--allow-host NAME", "A host name under which browsers may open the page. Repeatable.", None
    ),
    read_only: bool = option(
        "--read-only", "Refuse to post, to purge, and to take messages for display.", False
    ),
    dead_letters: list[str] | None = option(
        "--dead-letters PATTERN",
        "Queues with dead letters, as bmq://DOMAIN/*.failed. Repeatable. Default: *.dead.",
        None,
    ),
    interval: float = option("--interval -i SECONDS", "Time between two queries.", 1.0, min=0.1),
) -> None:
    """Serve a web page: queues over time, one queue with its consumers and subscriptions, messages.

    The command prints the page's address. The page is for this machine only, unless --host has another
    address. With --host, the address contains a token: BMQ_CONSOLE_TOKEN, or a new token.

    [bold]Examples[/]

    $ bmq console
    $ bmq console --broker prod --read-only
    $ bmq broker --console
    """
    try:
        from bmq import console
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        raise BadInput(f"the page needs an extra: {install('console')}") from None
    page = console.Console(
        console.RemoteBroker(target.uri, **target.access, timeout=target.timeout),
        host=host,
        port=port,
        names=allow_host or (),
        token=os.environ.get("BMQ_CONSOLE_TOKEN") or None,
        read_only=read_only,
        interval=interval,
        dead_letters=dead_letters or ("*.dead",),
    )
    async with page:
        emit(page.url, flush=True)
        await asyncio.Event().wait()
