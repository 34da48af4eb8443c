"""Connecting and reconnecting."""

from __future__ import annotations

import asyncio
import inspect
import logging
import ssl as ssl_module
from typing import TYPE_CHECKING

from bmq.client.address import Address
from bmq.client.channel import Channel
from bmq.client.options import CredentialsSource
from bmq.errors import ConnectionFailed, Error
from bmq.protocol.events import Connected, Reconnected, Reconnecting, SessionEvent
from bmq.protocol.handshake import Credentials
from bmq.protocol.tables import SessionState

if TYPE_CHECKING:
    from bmq.client.driver import Driver

__all__ = ["Dialer"]

logger = logging.getLogger("bmq.client")


class Dialer:
    """Brings a session's connection up, the first time and after every loss.

    Attributes:
        reconnects: how often the connection was restored.
        close_reason: why the session itself closed the connection, if it did.
        failure: the error that made it do so.
    """

    def __init__(
        self,
        driver: Driver,
        addresses: list[Address],
        credentials: CredentialsSource | None,
        ssl: ssl_module.SSLContext | None,
        server_hostname: str | None,
    ) -> None:
        self._driver = driver
        self._addresses = addresses
        self._credentials = credentials
        self._ssl = ssl
        self._server_hostname = server_hostname
        self._next_address = 0
        self._task: asyncio.Task[None] | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._handshake: asyncio.Future[None] | None = None
        self._stopped = False
        self.reconnects = 0
        self.close_reason = ""
        self.failure: Error | None = None

    @property
    def target(self) -> str:
        """The addresses, for people."""
        return ", ".join(map(str, self._addresses))

    async def first_connect(self) -> None:
        """Connect for the first time.

        Raises:
            ConnectionFailed: as :meth:`bmq.Session.start` says.
        """
        options = self._driver.options
        delays = options.reconnect_delays()
        next(delays, None)
        try:
            async with asyncio.timeout(options.reconnect_timeout if options.retry_first_connect else None):
                while True:
                    try:
                        await self._try_all()
                        return
                    except ConnectionFailed as error:
                        if not options.retry_first_connect or not options.is_retryable(error):
                            raise
                        logger.info("%s; trying again", error)
                    await asyncio.sleep(next(delays, 1.0))
        except TimeoutError:
            raise ConnectionFailed(
                f"could not connect to {self.target} within {options.reconnect_timeout} s"
            ) from None

    def channel_lost(self) -> None:
        """The connection is gone: reconnect unless the session does not want to."""
        if self._handshake is not None and not self._handshake.done():
            self._handshake.set_exception(
                self.failure or ConnectionFailed("the broker closed the connection during the handshake")
            )
        if self._driver.core.state is SessionState.RECONNECTING and self._task is None and not self._stopped:
            if self._driver.options.reconnect:
                self._task = asyncio.ensure_future(self._reconnect())
            else:
                self._driver.core.give_up("the connection was lost", self._driver.now())
                self._driver.wake()

    def note(self, event: SessionEvent) -> None:
        """The session is connected."""
        if (
            isinstance(event, Connected | Reconnected)
            and self._handshake is not None
            and not self._handshake.done()
        ):
            self._handshake.set_result(None)

    def stop(self) -> None:
        """Try no more."""
        self._stopped = True
        for task in (self._task, self._renewal):
            if task is not None:
                task.cancel()

    def renew_credentials(self) -> None:
        """Authenticate again on the live connection."""
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.ensure_future(self._renew())

    async def _renew(self) -> None:
        try:
            credentials = await self._get_credentials()
        except Exception:
            logger.exception("no credentials to renew the authentication with")
            return
        if credentials is not None:
            self._driver.core.reauthenticate(credentials, self._driver.now())
            self._driver.wake()

    async def _get_credentials(self) -> Credentials | None:
        source = self._credentials
        if source is None or isinstance(source, Credentials):
            return source
        credentials = source()
        if inspect.isawaitable(credentials):
            credentials = await credentials
        return credentials

    async def _reconnect(self) -> None:
        driver = self._driver
        options = driver.options
        try:
            async with asyncio.timeout(options.reconnect_timeout):
                await self._reconnect_attempts()
        except TimeoutError:
            driver.core.give_up(f"not reconnected within {options.reconnect_timeout} s", driver.now())
            driver.pump()
        except Error as error:
            driver.core.give_up(str(error), driver.now())
            driver.pump()
        finally:
            self._task = None
            # The connection may have been lost again in the moment it was restored.
            if driver.core.state is SessionState.RECONNECTING and not self._stopped:
                self.channel_lost()

    async def _reconnect_attempts(self) -> None:
        driver = self._driver
        for attempt, delay in enumerate(driver.options.reconnect_delays(), 1):
            address = self._addresses[self._next_address % len(self._addresses)]
            driver.publish(Reconnecting(attempt, delay, str(address)))
            await asyncio.sleep(delay)
            try:
                await self._try_all()
            except ConnectionFailed as error:
                if not driver.options.is_retryable(error):
                    raise
                logger.info("attempt %d to reconnect failed: %s", attempt, error)
            else:
                self.reconnects += 1
                return
        raise ConnectionFailed(f"could not reconnect to {self.target}: no more attempts")

    async def _try_all(self) -> None:
        """Try every address once, beginning behind the one that was tried last."""
        failures: list[str] = []
        count = len(self._addresses)
        for _ in range(count):
            address = self._addresses[self._next_address % count]
            try:
                await self._try(address)
                return
            except ConnectionFailed as error:
                if count == 1 or not error.retryable:
                    raise
                failures.append(str(error))
                self._next_address += 1
        raise ConnectionFailed("; ".join(failures))

    async def _try(self, address: Address) -> None:
        driver = self._driver
        timeout = driver.options.connect_timeout
        self._handshake = driver.loop.create_future()
        self.failure = None
        channel: Channel | None = None
        try:
            async with asyncio.timeout(timeout):
                credentials = await self._get_credentials()
                channel = await self._open(address)
                driver.attach_channel(channel)
                driver.core.channel_opened(credentials, driver.now())
                driver.pump()
                await self._handshake
        except TimeoutError:
            self._drop(channel)
            raise ConnectionFailed(f"{address} did not answer within {timeout:g} s") from None
        except OSError as error:
            if isinstance(error, Error):
                raise type(error)(f"{address}: {error}") from error
            raise ConnectionFailed(f"could not connect to {address}: {error.strerror or error}") from error
        except asyncio.CancelledError:
            self._drop(channel)
            raise
        finally:
            self._handshake = None

    async def _open(self, address: Address) -> Channel:
        driver = self._driver
        ssl = self._ssl
        if ssl is None and address.tls:
            ssl = ssl_module.create_default_context()
        _, channel = await driver.loop.create_connection(
            lambda: Channel(driver),
            address.host,
            address.port,
            ssl=ssl,
            server_hostname=(self._server_hostname or address.host) if ssl is not None else None,
        )
        return channel

    def _drop(self, channel: Channel | None) -> None:
        if channel is not None:
            channel.abort()
