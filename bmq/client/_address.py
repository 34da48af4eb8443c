# SPDX-License-Identifier: Apache-2.0
"""Broker addresses: ``tcp://host:port`` and ``tcps://host:port``, several separated by commas."""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import urlsplit

from bmq._local import listens_here
from bmq.errors import InvalidURI, UsageError

__all__ = ["DEFAULT_PORT", "ENVIRONMENT_VARIABLE", "Address", "Target", "find_broker", "parse_addresses"]

DEFAULT_PORT = 30114
#: Overrides the broker addresses given in code, as it does for the official clients.
ENVIRONMENT_VARIABLE = "BMQ_BROKER_URI"


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


class Target(NamedTuple):
    """The broker to connect to.

    Attributes:
        addresses: where it listens.
        note: that BMQ_BROKER_URI names it, and what the program says; "" if the program's address is used.
    """

    addresses: list[Address]
    note: str = ""

    def __str__(self) -> str:
        where = ", ".join(map(str, self.addresses))
        return f"{where} ({self.note})" if self.note else where


def find_broker(broker: str, *, tls: bool = False) -> Target:
    """Return the broker to connect to: the one that BMQ_BROKER_URI names if it is set, else the program's.

    The variable does not replace a broker or proxy in this process: a program that names one means it.

    Args:
        broker: the address in the program.
        tls: TLS is used whatever the addresses say.

    Raises:
        InvalidURI: one of the two is not an address.
        UsageError: the program asks for TLS, and the variable names a broker without.
    """
    wanted = parse_addresses(broker)
    text = os.environ.get(ENVIRONMENT_VARIABLE)
    if not text or any(listens_here(address.host, address.port) for address in wanted):
        return Target(wanted)
    try:
        named = parse_addresses(text)
    except InvalidURI as error:
        raise InvalidURI(f"{ENVIRONMENT_VARIABLE}: {error}") from None
    if named == wanted:
        return Target(wanted)
    instead = ", ".join(map(str, wanted))
    if not tls and any(a.tls for a in wanted) and not all(a.tls for a in named):
        raise UsageError(
            f"{ENVIRONMENT_VARIABLE} names {', '.join(map(str, named))}, where the program asks for TLS with "
            f"{instead}: name a tcps:// address there, or unset it"
        )
    return Target(named, f"{ENVIRONMENT_VARIABLE} names it; the program says {instead}")
