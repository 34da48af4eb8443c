# SPDX-License-Identifier: Apache-2.0
"""``bmq broker``: the embedded broker as a process."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bmq._loop import new_event_loop
from bmq._signals import on_signals
from bmq._version import install
from bmq.broker._server import Broker
from bmq.errors import Error, UsageError

__all__ = ["run"]

_GC_ALLOCATIONS = 50_000
_AUTH_VARIABLE = "BMQ_BROKER_AUTH"
_CONSOLE = "30180"
_NEEDS_EXTRA = f"bmq broker: --console needs an extra: {install('console')}\n"
_READY = "bmq broker ready on {uri}"


#: Makes the web page from the broker, its [HOST:]PORT, and users' passwords (None for no authentication).
MakeConsole = Callable[[Broker, str, Mapping[str, str] | None], AbstractAsyncContextManager[Any]]


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bmq broker",
        description="An embedded BlazingMQ broker for development and tests: one node, everything in memory. "
        "For production, use a real BlazingMQ cluster.",
        epilog="Prints 'bmq broker ready on tcp://HOST:PORT' on stdout when clients can connect; logs on "
        "stderr; SIGTERM and SIGINT end the broker.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=30114, help="port; 0 selects a free port (default: %(default)s)"
    )
    parser.add_argument(
        "--config",
        metavar="DIR",
        help="configuration directory of a real broker, with domains/*.json; without this option the "
        "built-in bmq.test.* domains exist",
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain, for TLS")
    parser.add_argument("--tls-key", metavar="FILE", help="private key, for TLS")
    parser.add_argument(
        "--auth",
        metavar="USER:PASSWORD",
        action="append",
        default=[],
        help="admit only this user; repeatable. All users of this machine see the password: use --auth-file",
    )
    parser.add_argument(
        "--auth-file",
        metavar="FILE",
        help="admit only these users: USER:PASSWORD on each line; the environment variable "
        f"{_AUTH_VARIABLE} does the same",
    )
    parser.add_argument(
        "--console",
        metavar="[HOST:]PORT",
        nargs="?",
        const=_CONSOLE,
        help=f"also serve the console, by default on port {_CONSOLE} of this machine",
    )
    parser.add_argument("--verbose", action="store_true", help="log every connection and request")
    return parser


def run(argv: Sequence[str] | None = None, *, console: MakeConsole | None = None) -> int:
    """Run the broker until a signal.

    Args:
        argv: the arguments; by default the arguments of the process.
        console: makes the page of ``--console``.

    Returns:
        The exit status: 0 after a signal, 1 if the broker could not start.
    """
    parser = _arguments()
    options = parser.parse_args(argv)
    if bool(options.tls_cert) is not bool(options.tls_key):
        parser.error("give both --tls-cert and --tls-key, or neither")
    try:
        users = _users(options.auth, options.auth_file, os.environ.get(_AUTH_VARIABLE))
    except OSError as error:
        sys.stderr.write(f"bmq broker: {error}\n")
        return 1
    except ValueError as error:
        parser.error(str(error))
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO if options.verbose else logging.WARNING,
        format="%(asctime)s %(levelname)-7s %(message)s",
    )
    # A broker allocates hardly any cycles, and a search through a million stored messages takes long.
    gc.set_threshold(_GC_ALLOCATIONS, 20, 100)
    try:
        context = None
        if options.tls_cert:
            context = _tls_context(options.tls_cert, options.tls_key)
        broker = Broker(
            host=options.host, port=options.port, config_dir=options.config, ssl=context, auth=users
        )
        make = None
        if options.console is not None and console is not None:
            make = partial(console, broker, options.console, users)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(broker, make))
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        sys.stderr.write(_NEEDS_EXTRA)
        return 1
    except (Error, OSError) as error:
        sys.stderr.write(f"bmq broker: {error}\n")
        return 1
    return 0


def _tls_context(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for name in (certificate, key):
        Path(name).read_bytes()  # an error here names the file, unlike the next call
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise UsageError(
            f"{certificate} and {key} are not a certificate and its key: {error.reason}"
        ) from error
    return context


def _users(arguments: Sequence[str], file: str | None, variable: str | None) -> dict[str, str] | None:
    """Return the passwords of the users of all sources; None without a source.

    Raises:
        ValueError: a source has no users, or an entry is malformed. The error contains only the position of
            the entry, which may hold a password.
        OSError: the file cannot be read.
    """
    sources: list[tuple[str, Sequence[str]]] = []
    if variable is not None:
        sources.append((_AUTH_VARIABLE, variable.splitlines()))
    if file is not None:
        sources.append((f"--auth-file {file}", Path(file).read_text(encoding="utf-8").splitlines()))
    if arguments:
        sources.append(("--auth", arguments))
    if not sources:
        return None
    users: dict[str, str] = {}
    for source, entries in sources:
        named = 0
        for number, entry in enumerate(entries, 1):
            if not entry.strip() or entry.startswith("#"):
                continue
            name, colon, password = entry.partition(":")
            if not colon or not name:
                raise ValueError(f"{source} needs USER:PASSWORD; entry {number} has another form")
            users[name] = password
            named += 1
        if not named:
            raise ValueError(f"{source} names no user: omit it to admit all clients")
    return users


async def _serve(broker: Broker, console: Callable[[], AbstractAsyncContextManager[Any]] | None) -> None:
    ended = asyncio.Event()
    with on_signals(ended.set):
        async with broker, AsyncExitStack() as beside:
            page = await beside.enter_async_context(console()) if console is not None else None
            sys.stdout.write(_READY.format(uri=broker.uri) + "\n")
            if page is not None:
                sys.stdout.write(f"bmq console on {page.url}\n")
            sys.stdout.flush()
            await ended.wait()
