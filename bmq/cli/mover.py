# SPDX-License-Identifier: Apache-2.0
"""``bmq mover``."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from bmq.admin.words import number, several
from bmq.cli.completion import queues
from bmq.cli.options import argument, option
from bmq.cli.output import note
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import verb

__all__ = ["command"]


@verb("mover", service=True)
async def command(
    target: BrokerTarget,
    queues: list[str] = argument(
        "QUEUE...", "The delay queue: bmq://DOMAIN/NAME.delayed", autocompletion=queues
    ),
    longest: float | None = option(
        "--longest SECONDS", "Warn if the broker does not keep messages for this long.", None, min=0
    ),
    lookahead: float = option(
        "--lookahead SECONDS",
        "Maximum time before the due time at which the mover takes a message from the broker and holds it.",
        3600.0,
        min=0.5,
    ),
    max_held: int = option("--max-held", "Maximum number of held messages of a queue.", 10_000, min=1),
    allow: list[str] | None = option(
        "--allow PATTERN",
        "Permitted destination queues, as bmq://DOMAIN/*. Default: the queue's own domain.",
        None,
        show_default=False,
    ),
    dead_letters: str | None = option(
        "--dead-letters QUEUE",
        "Queue for messages without a possible destination. Default: such messages stay in the delay queue.",
        None,
    ),
    wait: bool = option("--wait", "Wait for an unreachable broker, instead of ending with status 3.", False),
    quiet: bool = option("--quiet -q", "Print no summary.", False),
) -> None:
    """Pass delayed messages on at the due time, until interrupted.

    Any number of movers may share the work of a queue, and the remaining movers continue if a mover dies. The
    command prints problems of a queue, such as messages with an expiry before the due time, or a nearly
    exhausted quota.

    [bold]Examples[/]

    $ bmq mover bmq://bmq.test.mem.priority/orders.delayed
    $ bmq mover bmq://bmq.test.mem.priority/orders.delayed --longest 86400
    $ bmq mover QUEUE --wait --dead-letters bmq://bmq.test.mem.priority/orders.dead
    """
    from bmq.delays import Mover

    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(target.connect(retry_first_connect=wait))
        admin = await stack.enter_async_context(target.admin())
        letters = await session.open_queue(dead_letters, write=True) if dead_letters is not None else None
        movers: list[Mover] = []
        for uri in queues:
            queue = await session.open_queue(uri, read=True, default_subscription=False)
            movers.append(
                Mover(
                    queue,
                    allow=allow or None,
                    dead_letters=letters,
                    admin=admin,
                    longest=longest,
                    lookahead=lookahead,
                    tick=min(0.5, lookahead),
                    max_held=max_held,
                )
            )
        try:
            async with asyncio.TaskGroup() as group:
                for mover in movers:
                    group.create_task(mover.run())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None  # one line gives the reason; the other movers end, too
        finally:
            if not quiet:
                moved = sum(mover.moved for mover in movers)
                aside = sum(mover.put_aside for mover in movers)
                lost = "" if not aside else f", {number(aside)} not"
                note(f"{several(moved, 'message')} passed on{lost}")
