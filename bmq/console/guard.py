# SPDX-License-Identifier: Apache-2.0
"""Which requests are answered: none that another page made a browser send.

A page of another origin can have a browser send requests here, and with a domain name of its own that
resolves to this machine (DNS rebinding) it can even read the answers. So Host has to be a name of this
console, Origin has to be the console's own, and what changes something has to be JSON, which another page's
form cannot send. Where other machines can connect, a token is asked for. The page reads it from the fragment
of its address, which no server and no log sees, and sends it as a header, which no browser adds by itself.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

__all__ = ["Guard", "is_loopback"]

_CHANGING = {"POST", "PUT", "PATCH", "DELETE"}
_LOCAL = "localhost"


def is_loopback(host: str) -> bool:
    """Return whether a host's name or address stands for this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == _LOCAL


def _name(host: str) -> str | None:
    """Return the name or address in a Host header, in lower case; None when it is not one."""
    try:
        found = urlsplit(f"//{host}")
        _ = found.port
    except ValueError:
        return None
    if "@" in host or found.path or found.query or found.fragment:
        return None
    return found.hostname


def _netloc(origin: str) -> str | None:
    """Return host and port of an Origin header, in lower case; None when it is not one."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


class Guard:
    """Decides whether a request is answered.

    Args:
        host: where the console listens.
        names: further names that it may be asked for by.
        token: the token that every request needs; empty for none.
        read_only: whether everything that changes something is refused.
    """

    def __init__(
        self, host: str, *, names: Collection[str] = (), token: str = "", read_only: bool = False
    ) -> None:
        self._open = not is_loopback(host)
        self._names = {host.lower(), *(name.lower() for name in names)}
        self._token = token
        self.read_only = read_only

    def refuse(
        self,
        method: str,
        *,
        api: bool,
        changes: bool,
        host: str | None,
        origin: str | None,
        site: str | None,
        content_type: str,
        authorization: str | None,
    ) -> tuple[int, str] | None:
        """Return why a request is not answered, as a status and in words; None when it is.

        Args:
            method: the request's.
            api: whether it asks for more than the page itself.
            changes: whether it changes something.
            host: the header Host; None without one, as the others.
            origin: Origin.
            site: Sec-Fetch-Site.
            content_type: Content-Type without its parameters.
            authorization: Authorization.
        """
        if not self._known(host):
            return 403, f"this console is not {host!r}; --allow-host makes it be"
        if origin is not None and _netloc(origin) != (host or "").lower():
            return 403, f"{origin!r} is another origin: only the console's own page may ask"
        if not api:
            return None
        if site is not None and site not in ("same-origin", "none"):
            return 403, "another page asked for this: only the console's own page may"
        if self._token and not self._shown(authorization):
            return 401, "a token is needed: open the address that the console printed"
        if method in _CHANGING and content_type != "application/json":
            return 415, "a request is application/json"
        if changes and self.read_only:
            return 403, "the console is for looking only (--read-only)"
        return None

    def _known(self, host: str | None) -> bool:
        name = _name(host or "")
        if name is None:
            return False
        if is_loopback(name) or name in self._names:
            return True
        if not self._open:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # DNS rebinding needs a name, and this is an address

    def _shown(self, authorization: str | None) -> bool:
        scheme, _, shown = (authorization or "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            shown.strip().encode("utf-8", "replace"), self._token.encode()
        )
