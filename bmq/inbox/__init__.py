# SPDX-License-Identifier: Apache-2.0
"""Handlers whose effects on a database happen once, although messages are delivered at least once.

An inbox writes the GUID of a message into a table, in the transaction of the handler's own writes. A message
that arrives again finds its GUID, and is confirmed without a second effect::

    inbox = bmq.inbox.SqlAlchemyInbox(engine, keep=7 * 86400)

    async with message, inbox.once(message) as transaction:
        if transaction is not None:  # None: handled before
            await transaction.connection.execute(insert(payments).values(...))

:class:`SqlAlchemyInbox` needs the extra ``bmq[inbox]`` and an asynchronous driver for SQLite or PostgreSQL;
:class:`AsyncpgInbox` needs asyncpg alone. The page *Effects exactly once* of the documentation has the
guarantees.
"""

from typing import TYPE_CHECKING

from bmq.inbox._inbox import Inbox, Transaction

if TYPE_CHECKING:
    from bmq.inbox._asyncpg import AsyncpgInbox
    from bmq.inbox._sqlalchemy import SqlAlchemyInbox

__all__ = ["AsyncpgInbox", "Inbox", "SqlAlchemyInbox", "Transaction"]

# Each database library is imported with its class: a program has one of the two.
_MODULES = {"AsyncpgInbox": "_asyncpg", "SqlAlchemyInbox": "_sqlalchemy"}

if not TYPE_CHECKING:

    def __getattr__(name):
        from importlib import import_module

        if name in _MODULES:
            value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
            return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
