"""``bmq broker``: the embedded broker as a process."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import logging
import os
import signal
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Protocol, Self

import orjson

from bmq.broker.server import Broker
from bmq.errors import Error, UsageError
from bmq.wire.codec import CODECS
from bmq.wire.control.schema import Structure, selection_name

__all__ = ["run"]

_GC_ALLOCATIONS = 50_000
_MANY = 10_000
_MANY_CONNECTIONS = 50
_AUTH_VARIABLE = "BMQ_BROKER_AUTH"
_CONSOLE = "30180"
_NEEDS_EXTRA = "bmq broker: --console needs an extra: pip install 'bmq[console]'\n"
_READY = "bmq broker ready on {uri}"


class Console(Protocol):
    """The page of a broker, served while it is entered."""

    @property
    def url(self) -> str:
        """Where it is."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None: ...


#: Makes the page of a broker, at [HOST:]PORT, for the passwords of those it lets in.
MakeConsole = Callable[[Broker, str, Mapping[str, str] | None], Console]


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bmq broker",
        description="An embedded BlazingMQ broker for development and tests: one node, everything in memory. "
        "Production is a real BlazingMQ cluster.",
        epilog="Prints 'bmq broker ready on tcp://HOST:PORT' on stdout when clients can connect; logs on "
        "stderr; SIGTERM or SIGINT end it.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=30114, help="port; 0 takes a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--config",
        metavar="DIR",
        help="configuration directory with domains/*.json, as of a real broker; without it the built-in "
        "bmq.test.* domains exist",
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain, for TLS")
    parser.add_argument("--tls-key", metavar="FILE", help="private key, for TLS")
    parser.add_argument(
        "--auth",
        metavar="USER:PASSWORD",
        action="append",
        default=[],
        help="let in only this user; repeatable. Everybody on this machine can read it: see --auth-file",
    )
    parser.add_argument(
        "--auth-file",
        metavar="FILE",
        help="let in only these users: USER:PASSWORD on each line; so does the environment's "
        f"{_AUTH_VARIABLE}",
    )
    parser.add_argument(
        "--console",
        metavar="[HOST:]PORT",
        nargs="?",
        const=_CONSOLE,
        help=f"serve a web page about it too, on port {_CONSOLE} of this machine unless said otherwise",
    )
    parser.add_argument("--verbose", action="store_true", help="log every connection and request")
    return parser


def run(argv: Sequence[str] | None = None, *, console: MakeConsole | None = None) -> int:
    """Run the broker until it is told to end.

    Args:
        argv: the arguments; those of the process by default.
        console: what makes the page of ``--console``.

    Returns:
        The process's exit status: 0 after a signal, 1 when it could not start.
    """
    parser = _arguments()
    options = parser.parse_args(argv)
    if bool(options.tls_cert) is not bool(options.tls_key):
        parser.error("--tls-cert and --tls-key go together")
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
    # Almost nothing a broker allocates is cyclic, and a million stored messages take long to look through.
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
        with asyncio.Runner(loop_factory=_fastest_loop()) as runner:
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
        Path(name).read_bytes()  # its error names the file, what comes next does not
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise UsageError(f"{certificate} and {key} are no certificate and its key: {error.reason}") from error
    return context


def _users(arguments: Sequence[str], file: str | None, variable: str | None) -> dict[str, str] | None:
    """Return the passwords of users, wherever they are given; None when there is nothing to be let in by.

    Raises:
        ValueError: one of the sources is there and names nobody, or an entry is malformed. Of what is wrong
            only the place is told: it may be a password.
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
                raise ValueError(f"{source} takes USER:PASSWORD; number {number} is something else")
            users[name] = password
            named += 1
        if not named:
            raise ValueError(f"{source} names no user: leave it out to let everybody in")
    return users


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes a uvloop loop where that is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(broker: Broker, console: Callable[[], Console] | None) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def end(_: int, __: FrameType | None) -> None:
        loop.call_soon_threadsafe(ended.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, ended.set)
        except NotImplementedError:  # on Windows
            signal.signal(number, end)
    _warm_up()
    async with broker, AsyncExitStack() as beside:
        page = await beside.enter_async_context(console()) if console is not None else None
        sys.stdout.write(_READY.format(uri=broker.uri) + "\n")
        if page is not None:
            sys.stdout.write(f"bmq console on {page.url}\n")
        sys.stdout.flush()
        tidying = loop.create_task(_tidy(broker))
        await ended.wait()
        tidying.cancel()


async def _tidy(broker: Broker) -> None:
    """Give memory back when most of the messages, remembered GUIDs or clients are gone and things are quiet.

    The interpreter keeps thousands of free tuples and the like for later, all over the memory that messages
    had; only a full collection lets go of them. With few messages left it takes no time. For this process
    only: what becomes of the memory of a program with a broker inside is that program's business.
    """
    trim = _glibc_trim()
    most, before = [0, 0, 0], [0, 0, 0]
    while True:
        await asyncio.sleep(1)
        stores = [queue.store for queue in broker._node.queues.values()]
        present = [
            sum(map(len, stores)),
            sum(len(store.history) for store in stores),
            len(broker._connections) * _MANY // _MANY_CONNECTIONS,
        ]
        most = list(map(max, most, present))
        gone = [peak >= _MANY and now * 10 <= peak for peak, now in zip(most, present, strict=True)]
        if any(gone) and present == before:
            gc.collect()
            # glibc keeps what was freed up to the highest address in use, unless it is asked.
            trim(0)
            most = present
        before = present


def _glibc_trim() -> Callable[[int], object]:
    """Return glibc's ``malloc_trim``; something that does nothing where there is another C library."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return lambda _: None


def _warm_up() -> None:
    """Make what is made once, and stays, before messages come.

    Memory is given back in pieces of a megabyte: one small object that is made among a million messages, and
    stays, keeps all of such a piece.
    """
    for codec in CODECS.values():
        _ = codec.pack, codec.unpack_from
    structures = Structure.__subclasses__()
    keys = {member.name for each in structures for member in each.MEMBERS}
    keys.update(map(selection_name, structures))
    orjson.loads(orjson.dumps(dict.fromkeys(keys)))  # which keeps the keys it has seen
