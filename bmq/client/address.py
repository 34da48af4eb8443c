"""Broker addresses: ``tcp://host:port`` and ``tcps://host:port``, several separated by commas."""

from __future__ import annotations

import logging
import os
from typing import NamedTuple
from urllib.parse import urlsplit

from bmq.errors import InvalidURI

__all__ = ["DEFAULT_PORT", "ENVIRONMENT_VARIABLE", "Address", "parse_addresses", "resolve_broker"]

DEFAULT_PORT = 30114
#: Overrides every broker address given in code, as it does for the official clients.
ENVIRONMENT_VARIABLE = "BMQ_BROKER_URI"

logger = logging.getLogger("bmq.client")


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tcps' if self.tls else 'tcp'}://{host}:{self.port}"


def parse_addresses(text: str) -> list[Address]:
    """Parse one address or several separated by commas.

    Raises:
        InvalidURI: a part is not ``tcp://host[:port]`` or ``tcps://host[:port]``.
    """
    addresses: list[Address] = []
    for part in text.split(","):
        parts = urlsplit(part.strip())
        if "@" in part:
            # Not repeated in the message: what is in front of it may be a password.
            raise InvalidURI("a broker address has no user and password; pass credentials= to bmq.connect")
        try:
            port = parts.port or DEFAULT_PORT
        except ValueError:
            port = 0
        wrong_scheme = parts.scheme not in ("tcp", "tcps")
        if wrong_scheme or not parts.hostname or not port or parts.path.strip("/") or parts.query:
            raise InvalidURI(
                f"broker address {part.strip()!r}: the form is tcp://HOST[:PORT], or tcps://HOST[:PORT] "
                f"for TLS; the port is {DEFAULT_PORT} unless given"
            )
        addresses.append(Address(parts.hostname, port, parts.scheme == "tcps"))
    return addresses


def resolve_broker(broker: str) -> str:
    """Return the broker to connect to: the environment variable, if set, wins."""
    override = os.environ.get(ENVIRONMENT_VARIABLE)
    if override and override != broker:
        logger.info("%s is set: connecting to %s instead of %s", ENVIRONMENT_VARIABLE, override, broker)
        return override
    return broker
