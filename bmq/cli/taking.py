# SPDX-License-Identifier: Apache-2.0
"""The question before a verb receives messages that it will return: does a consumer suffer?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bmq.cli.messages import BadInput

if TYPE_CHECKING:
    from bmq.cli.target import BrokerTarget

__all__ = ["FORCE", "check_application", "refuse_to_take"]

FORCE = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Receive and return messages also if the queue has readers. The broker may then deliver nothing "
        "to these readers.",
    ),
]


async def refuse_to_take(target: BrokerTarget, queue: str, instead: str) -> None:
    """Refuse to receive messages and return them while other clients read the queue.

    Args:
        target: the broker.
        queue: the queue, with its application.
        instead: what the user may do without messages.

    Raises:
        BadInput: the queue has readers, the broker does not say, or the application does not exist.
        ConnectionFailed: no broker.
    """
    import bmq
    from bmq.admin.taking import objection

    try:
        async with target.admin() as admin:
            asked = admin.queue(queue)
            reason = await objection(asked, may_be_new=True)
            if not reason and asked.app_id:
                check_application(queue, asked.app_id, (await admin.domain(asked.domain)).app_ids)
    except (bmq.AuthenticationError, bmq.UsageError):
        raise
    except bmq.errors.AdminError:
        return  # of the domain, which the broker refuses by itself
    except bmq.Error as error:
        if isinstance(error, bmq.ConnectionFailed) and not isinstance(error, bmq.NegotiationError):
            raise
        reason = f"who reads the queue is unknown: {error}"
    if reason:
        raise BadInput(f"nothing was received: {reason}. {instead}; --force receives messages all the same")


def check_application(queue: str, app_id: str, known: tuple[str, ...]) -> None:
    """Refuse an application that the domain does not have: a broker opens the queue, and delivers nothing.

    Raises:
        BadInput: the application is unknown.
    """
    if known and app_id not in known:
        raise BadInput(f"{queue} has no application {app_id!r}; its applications: {', '.join(known)}")
