# SPDX-License-Identifier: Apache-2.0
"""The entry points: :func:`connect` and :func:`run`."""

from __future__ import annotations

import asyncio
import gc
import signal
import ssl as ssl_module
from collections.abc import AsyncIterable, Callable, Coroutine, Generator, Iterable
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from bmq import _checks
from bmq._live import live
from bmq._logging import Log
from bmq._loop import check_greenlets, has_running_loop, new_event_loop, running_loop
from bmq._signals import on_interrupts, on_signals
from bmq.client.address import FROM_ENVIRONMENT, Address, find_broker
from bmq.client.health import HostHealthMonitor
from bmq.client.interceptors import Interceptor, check_interceptors
from bmq.client.keywords import ConnectOptions
from bmq.client.options import Credentials, CredentialsSource, SessionFields, SessionOptions
from bmq.client.session import Session, close_all_left_open
from bmq.errors import ConnectionFailed, InvalidURI, StateError, UsageError
from bmq.protocol.client.events import SessionEvent

__all__ = ["check_clear_text", "check_connecting", "check_options", "connect", "run", "time_to_connect"]

T = TypeVar("T")

logger = Log("bmq.client", later=True)


@live
class connect:
    """Connect to a broker.

    ``async with bmq.connect(uri) as session`` or ``session = await bmq.connect(uri)``.

    ::

        broker = "tcp://localhost:30114"
        async with bmq.connect(broker, connect_timeout=5) as session:
            uri = "bmq://bmq.test.mem.priority/orders"
            queue = await session.open_queue(uri, write=True)

    Args:
        broker: ``tcp://host:port`` (``tcps://`` for TLS); several addresses separated by commas. If None, the
            address in the environment variable BMQ_BROKER_URI, or ``tcp://localhost:30114`` if not set.
        credentials: :class:`bmq.Credentials`, or a function, sync or async, that returns them. The function
            is called at each authentication of the session.
        ssl: TLS context; if None, ``tcps://`` uses the system's defaults.
        server_hostname: host name for the verification of the broker's certificate; None for the address's
            host.
        on_event: called with each session event, in the event loop.
        host_health: source of the host's health; see :class:`bmq.health.HostHealth`.
        interceptors: called for every posted and received message; see :class:`bmq.Interceptor`.
        options: a :class:`bmq.SessionOptions`. Its fields may also be given as keyword arguments.

    Raises:
        ConnectionFailed: no address answered within ``connect_timeout``.
        NegotiationError: the broker refused the session.
        AuthenticationError: the broker refused the credentials.
        InvalidURI, UsageError: an argument is not legal.

    Cancelling the call closes the connection.
    """

    def __init__(
        self,
        broker: str | None = None,
        *,
        credentials: CredentialsSource | None = None,
        ssl: ssl_module.SSLContext | None = None,
        server_hostname: str | None = None,
        on_event: Callable[[SessionEvent], None] | None = None,
        host_health: HostHealthMonitor | None = None,
        interceptors: Iterable[Interceptor] = (),
        options: SessionOptions | None = None,
        **fields: Unpack[SessionFields],
    ) -> None:
        check_options(
            credentials=credentials,
            ssl=ssl,
            server_hostname=server_hostname,
            on_event=on_event,
            host_health=host_health,
            interceptors=(),
            options=options,
            **fields,
        )
        target = find_broker(broker)
        if credentials is not None and ssl is None:
            check_clear_text(credentials, target.addresses)
        self._broker = target._replace(credentials=credentials, ssl=ssl, server_hostname=server_hostname)
        options = options or SessionOptions()
        self._options = replace(options, **fields) if fields else options
        self._on_event = on_event
        self._host_health = host_health
        self._interceptors = check_interceptors(interceptors)
        self._session: Session | None = None

    async def _start(self) -> Session:
        running_loop()
        if self._session is not None:
            raise StateError(
                "the session was started before: call bmq.connect(...) again for another session"
            )
        self._session = session = Session(
            self._broker,
            self._options,
            on_event=self._on_event,
            host_health=self._host_health,
            interceptors=self._interceptors,
        )
        try:
            with session._hooks.operation("session.start", session):
                await session._connection.connect()
        except ConnectionFailed as error:
            if self._broker.from_environment:
                error.args = (f"{error} ({FROM_ENVIRONMENT})",)
            raise
        return session

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if not name.startswith("_") and hasattr(Session, name):
                raise UsageError(
                    f"bmq.connect(...) is not a session yet, and has no {name}: use 'async with "
                    "bmq.connect(...) as session' or 'session = await bmq.connect(...)'"
                )
            raise AttributeError(f"'connect' object has no attribute {name!r}")

    def __await__(self) -> Generator[Any, None, Session]:
        return self._start().__await__()

    async def __aenter__(self) -> Session:
        return await self._start()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()


def time_to_connect(connecting: connect) -> float | None:
    """Return the seconds after which connecting ends at the latest; None for no limit."""
    options = connecting._options
    return options.reconnect_timeout if options.retry_first_connect else options.connect_timeout


def check_options(**given: Unpack[ConnectOptions]) -> None:
    """Check the options of :class:`connect` for a later connection.

    Raises:
        UsageError: an option is unknown, has the wrong type, or is out of range.
    """
    known = ("broker", *(connect.__init__.__kwdefaults__ or ()), *SessionOptions.__dataclass_fields__)
    _checks.keywords("bmq.connect()", given, known)
    check_connecting(given.get("credentials"), given.get("ssl"), given.get("server_hostname"))
    if (on_event := given.get("on_event")) is not None:
        _checks.function("on_event", on_event, 1, plain=True)
    host_health: object = given.get("host_health")
    if host_health is not None and not isinstance(host_health, AsyncIterable):
        raise UsageError(
            "host_health must be a bmq.health.HostHealth or another async iterable, not "
            f"{_checks.shown(host_health)}"
        )
    check_interceptors(given.get("interceptors", ()))
    options = _checks.optional(_checks.choice, "options", given.get("options"), SessionOptions)
    fields: dict[str, Any] = {
        name: value for name, value in given.items() if name in SessionOptions.__dataclass_fields__
    }
    if fields:
        replace(options or SessionOptions(), **fields)


def check_connecting(
    credentials: CredentialsSource | None, ssl: ssl_module.SSLContext | None, server_hostname: str | None
) -> None:
    """Check the arguments shared by all connecting functions.

    Raises:
        UsageError: an argument has the wrong type.
    """
    if credentials is not None and not isinstance(credentials, Credentials):
        if not callable(credentials):
            # Do not repeat the value: the string may be a password.
            raise UsageError(
                "credentials must be a bmq.Credentials or a function that returns one, not "
                f"{type(credentials).__name__}"
            )
        _checks.function("credentials", credentials, 0)
    if ssl is not None:
        _checks.instance("ssl", ssl, ssl_module.SSLContext, "an ssl.SSLContext")
    if server_hostname is not None:
        _checks.text("server_hostname", server_hostname, empty=False)


def check_clear_text(credentials: CredentialsSource, addresses: list[Address]) -> None:
    """Warn of credentials that would be sent unencrypted.

    Raises:
        InvalidURI: only some of the addresses have TLS.
    """
    if isinstance(credentials, Credentials) and credentials.data is None:
        return
    if len({address.tls for address in addresses}) > 1:
        # Whoever blocks the port with TLS would receive the password from the next address.
        raise InvalidURI(
            "with credentials, the addresses must all be tcps://, or all tcp://, not "
            + ", ".join(map(str, addresses))
        )
    for address in addresses:
        if not address.tls and not address.is_loopback:
            logger.warning(
                "credentials are sent to %s unencrypted: use a tcps:// address",
                address,
                extra={"broker": address.text},
            )


async def _until_signalled(main: Coroutine[Any, Any, T], *, interrupts: bool) -> T:
    """Await a coroutine; cancel it at a signal that the application does not handle itself."""
    task = asyncio.current_task()
    assert task is not None
    end: BaseException | None = None

    def cancel(why: BaseException) -> None:
        nonlocal end
        end = end or why
        task.cancel()

    with ExitStack() as handled:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            status = SystemExit(128 + signal.SIGTERM)
            handled.enter_context(on_signals(lambda: cancel(status), [signal.SIGTERM]))
        if interrupts:
            handled.enter_context(on_interrupts(lambda: cancel(KeyboardInterrupt())))
        try:
            try:
                return await main
            finally:
                await close_all_left_open()
        except asyncio.CancelledError:
            if end is not None:
                raise end from None
            raise


def run(main: Coroutine[Any, Any, T], *, debug: bool | None = None) -> T:
    """Run a coroutine like ``asyncio.run``, on uvloop if installed.

    For applications: the library itself never sets an event loop policy. While the coroutine runs, the
    garbage collector ignores all earlier objects (``gc.freeze``: modules, functions, classes), unless the
    application has already called ``gc.freeze``. Otherwise repeated scans of these objects take a tenth of a
    busy consumer's time.

    Sessions that the coroutine leaves open are closed after its end, with a ``ResourceWarning``. Their posts
    have five seconds for their outcomes; the log has the number of posts without an outcome.

    If the application has no SIGTERM handler, SIGTERM cancels the coroutine, so that open resources are
    closed properly, and the process ends with status 143. SIGINT works as in ``asyncio.run``: the coroutine
    is cancelled, and KeyboardInterrupt is raised. A second SIGINT within half a second counts as the same
    request. A later SIGINT cancels the coroutine again, and raises KeyboardInterrupt at once if the event
    loop is blocked.

    ::

        async def main() -> None:
            async with bmq.connect("tcp://localhost:30114") as session:
                ...

        bmq.run(main())

    Raises:
        UsageError: ``main`` is not a coroutine, ``debug`` is neither a boolean nor None, or an event loop is
            running in this thread already, as in a notebook.
    """
    if not isinstance(main, Coroutine):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"run needs a coroutine, as in bmq.run(main()), not {_checks.shown(main)}")
    if has_running_loop() and not hasattr(asyncio, "_nest_patched"):  # nest_asyncio allows the call
        main.close()
        check_greenlets()
        raise UsageError(
            "an event loop is running in this thread already, as in a notebook: use 'await main()' instead "
            "of bmq.run(main())"
        )
    debug = _checks.optional(_checks.boolean, "debug", debug)
    freezes = not gc.get_freeze_count()
    if freezes:
        gc.freeze()
    try:
        with asyncio.Runner(debug=debug, loop_factory=new_event_loop) as runner:
            # If the application handles or ignores SIGINT, leave the setting unchanged.
            interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            return runner.run(_until_signalled(main, interrupts=interrupts))
    finally:
        if freezes:
            gc.unfreeze()
