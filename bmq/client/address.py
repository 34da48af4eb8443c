# SPDX-License-Identifier: Apache-2.0
"""Broker addresses, ``tcp://host:port`` and ``tcps://host:port``, and attempts to connect to several."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from bmq import _checks
from bmq._logging import Log
from bmq._turn import look_at
from bmq.errors import ConnectionFailed, InvalidURI, ProtocolError, UsageError

if TYPE_CHECKING:
    from bmq.client.options import CredentialsSource
    from bmq.protocol.client.handshake import Credentials

__all__ = [
    "DEFAULT_ADDRESS",
    "DEFAULT_PORT",
    "ENVIRONMENT_VARIABLE",
    "FROM_ENVIRONMENT",
    "Address",
    "BrokerAccess",
    "find_broker",
    "parse_addresses",
    "race",
    "violation_in",
]

logger = Log("bmq.client", later=True)

DEFAULT_PORT = 30114
_NO_URL = urlsplit("")
_NO_SECRET = re.compile(r"[^?=#]*")
#: Default address, without an address in the program and without the environment variable.
DEFAULT_ADDRESS = f"tcp://localhost:{DEFAULT_PORT}"
#: Environment variable with the default broker. (In the official clients, it overrides the program's
#: address.)
ENVIRONMENT_VARIABLE = "BMQ_BROKER_URI"
#: Used in errors: without an address in the program, the origin of the address is not obvious.
FROM_ENVIRONMENT = f"the address comes from {ENVIRONMENT_VARIABLE}"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a broker.

    Attributes:
        text: the address as a URI.
    """

    host: str
    port: int
    tls: bool = False
    text: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        host = f"[{self.host}]" if ":" in self.host else self.host
        object.__setattr__(self, "text", f"{'tcps' if self.tls else 'tcp'}://{host}:{self.port}")

    def __str__(self) -> str:
        return self.text

    @property
    def is_loopback(self) -> bool:
        """Whether the address, or its usual name, always means this machine."""
        return self.host in ("localhost", "::1", "0.0.0.0", "::") or self.host.startswith("127.")


def parse_addresses(text: str) -> list[Address]:
    """Parse an address, or several separated by commas.

    Raises:
        InvalidURI: a part is not ``tcp://host[:port]`` or ``tcps://host[:port]``.
    """
    addresses: list[Address] = []
    for part in _address_text(text).split(","):
        try:
            parts = urlsplit(part.strip())
            port = parts.port or DEFAULT_PORT
        except ValueError:
            parts, port = _NO_URL, 0
        if "@" in part:
            # Do not repeat the value: the part before the @ may contain a password.
            raise InvalidURI("a broker address has no user and password; pass credentials= to bmq.connect")
        wrong_scheme = parts.scheme not in ("tcp", "tcps")
        if (
            wrong_scheme
            or not parts.hostname
            or not port
            or parts.path.strip("/")
            or parts.query
            or parts.fragment
        ):
            # A query may contain a password, too.
            shown = part.strip() if _NO_SECRET.fullmatch(part.strip()) else f"{parts.scheme}://..."
            raise InvalidURI(
                f"broker address {shown!r}: the form is tcp://HOST[:PORT], or tcps://HOST[:PORT] "
                f"for TLS; the default port is {DEFAULT_PORT}"
            )
        addresses.append(Address(parts.hostname, port, parts.scheme == "tcps"))
    return addresses


def _address_text(value: object) -> str:
    try:
        return _checks.text("a broker address", value)
    except UsageError as error:
        raise InvalidURI(str(error)) from None


class BrokerAccess(NamedTuple):
    """The broker to connect to, and the proofs of identity of both sides.

    Attributes:
        addresses: addresses of the broker.
        from_environment: whether the address comes from BMQ_BROKER_URI.
        credentials: client's credentials, or a function returning credentials.
        ssl: TLS context for all addresses; if None, only ``tcps://`` uses TLS, with the defaults.
        server_hostname: name in the broker's certificate, if different from the address.
    """

    addresses: list[Address]
    from_environment: bool = False
    credentials: CredentialsSource | None = None
    ssl: SSLContext | None = None
    server_hostname: str | None = None

    async def get_credentials(self) -> Credentials | None:
        """Return the client's credentials, from the application's function if it gave one.

        Raises:
            ConnectionFailed: the function failed.
            UsageError: the function returned something else.
        """
        # A process that plans a write of Spark parses addresses, and needs no protocol.
        from bmq.protocol.client.handshake import Credentials

        source = self.credentials
        if source is None or isinstance(source, Credentials):
            return source
        try:
            try:
                credentials = source()
            except asyncio.CancelledError as error:
                # This task was not cancelled: the callable awaited a cancelled future or task.
                raise ConnectionFailed("the credentials callable failed with CancelledError") from error
            if inspect.isawaitable(credentials):
                credentials = await credentials
        except ConnectionFailed:
            raise
        except Exception as error:
            raise ConnectionFailed(f"the credentials callable failed with {type(error).__name__}") from error
        if not isinstance(credentials, Credentials):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"the credentials callable returned {type(credentials).__name__}, not bmq.Credentials"
            )
        return credentials

    def __str__(self) -> str:
        where = ", ".join(map(str, self.addresses))
        return f"{where} ({FROM_ENVIRONMENT})" if self.from_environment else where


def find_broker(broker: str | None) -> BrokerAccess:
    """Return the broker to connect to.

    An address in the program has priority: two addresses in one program are two brokers, whatever the
    environment contains. Without an address in the program, BMQ_BROKER_URI or the default is used.

    Args:
        broker: address in the program, or None.

    Raises:
        InvalidURI: the address is not legal.
    """
    if broker is not None:
        return BrokerAccess(parse_addresses(broker))
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if not named:
        return BrokerAccess(parse_addresses(DEFAULT_ADDRESS))
    try:
        return BrokerAccess(parse_addresses(named), from_environment=True)
    except InvalidURI as error:
        raise InvalidURI(f"{ENVIRONMENT_VARIABLE}: {error}") from None


def violation_in(error: BaseException | None) -> ProtocolError | None:
    """Return the peer's violation behind an error, or None."""
    while error is not None:
        if isinstance(error, ProtocolError):
            return error
        error = error.__cause__
    return None


async def race(
    runners: Sequence[Callable[[], Awaitable[None]]],
    head_start: float,
    racing: dict[asyncio.Task[None], None],
) -> None:
    """Run coroutines concurrently until the first success ("happy eyeballs", RFC 8305); cancel the others.

    The first coroutine starts at once. The next coroutine starts after a failure, or after ``head_start``
    seconds without a result.

    Args:
        runners: functions returning the coroutines, in order.
        head_start: seconds between two starts.
        racing: holds the running tasks, for a caller cancelling them from outside.

    Raises:
        ConnectionFailed: all coroutines failed; the message joins all error messages. An error with
            ``retryable`` False ends the race at once.

    Cancelling the race cancels the coroutines, and waits for their end.
    """
    waiting = deque(runners)
    running: dict[asyncio.Task[None], None] = {}
    failures: list[ConnectionFailed] = []
    try:
        while waiting or running:
            if waiting:
                task = asyncio.ensure_future(_run(waiting.popleft()))
                running[task] = racing[task] = None
                task.add_done_callback(racing.pop)
            await asyncio.wait(
                running, timeout=head_start if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in [task for task in running if task.done()]:
                del running[task]
                try:
                    task.result()
                    return
                except ConnectionFailed as error:
                    if len(runners) == 1 or not error.retryable:
                        raise
                    failures.append(error)
                    if waiting:
                        logger.info("%s; trying the next address", error)
    except GeneratorExit:
        running.clear()  # The coroutine is collected without its event loop: awaiting is impossible.
        raise
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
            for task in running:
                look_at(task)  # another coroutine was faster
    # A peer's violation explains more than a refused connection.
    cause = next((each for each in failures if violation_in(each) is not None), failures[-1])
    raise ConnectionFailed("; ".join(map(str, failures))) from cause


async def _run(runner: Callable[[], Awaitable[None]]) -> None:
    await runner()
