# SPDX-License-Identifier: Apache-2.0
"""Broker addresses: ``tcp://host:port`` and ``tcps://host:port``, several separated by commas."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from bmq import _checks
from bmq.errors import InvalidURI, UsageError

__all__ = [
    "DEFAULT_ADDRESS",
    "DEFAULT_PORT",
    "ENVIRONMENT_VARIABLE",
    "FROM_ENVIRONMENT",
    "Address",
    "Target",
    "find_broker",
    "parse_addresses",
]

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


class Target(NamedTuple):
    """The broker to connect to.

    Attributes:
        addresses: addresses of the broker.
        from_environment: whether the address comes from BMQ_BROKER_URI.
    """

    addresses: list[Address]
    from_environment: bool = False

    def __str__(self) -> str:
        where = ", ".join(map(str, self.addresses))
        return f"{where} ({FROM_ENVIRONMENT})" if self.from_environment else where


def find_broker(broker: str | None) -> Target:
    """Return the broker to connect to.

    An address in the program has priority: two addresses in one program are two brokers, whatever the
    environment contains. Without an address in the program, BMQ_BROKER_URI or the default is used.

    Args:
        broker: address in the program, or None.

    Raises:
        InvalidURI: the address is not legal.
    """
    if broker is not None:
        return Target(parse_addresses(broker))
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if not named:
        return Target(parse_addresses(DEFAULT_ADDRESS))
    try:
        return Target(parse_addresses(named), from_environment=True)
    except InvalidURI as error:
        raise InvalidURI(f"{ENVIRONMENT_VARIABLE}: {error}") from None
