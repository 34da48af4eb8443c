# SPDX-License-Identifier: Apache-2.0
"""Decides about the acceptance of requests, and refuses requests forged by foreign web pages.

A page of another origin can make a browser send requests to the console. With a domain name that resolves to
this machine (DNS rebinding), the page can even read the answers. Therefore Host must be a name of the
console, Origin must be the console's own, and changes must be JSON, which a form of another page cannot send.
If other machines can connect, a token is required. The page reads the token from the fragment of its address,
which reaches no server and no log, and sends the token as a header, which no browser adds by itself.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

__all__ = ["Guard", "is_loopback"]

_CHANGING = {"POST", "PUT", "PATCH", "DELETE"}


def is_loopback(host: str) -> bool:
    """Return whether a host's name or address is reachable from the local machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def _name(host: str) -> str | None:
    """Return the name or address in a Host header, in lower case; None if the header is malformed."""
    try:
        found = urlsplit(f"//{host}")
        _ = found.port
    except ValueError:
        return None
    if "@" in host or found.path or found.query or found.fragment:
        return None
    return found.hostname


def _netloc(origin: str) -> str | None:
    """Return host and port of an Origin header, in lower case; None if the header is malformed."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


class Guard:
    """Decides whether a request is answered.

    Args:
        host: the console's listening address.
        names: further names for the console.
        token: the token required of every request; empty for no token.
        read_only: whether every change is refused.
    """

    def __init__(
        self, host: str, *, names: Collection[str] = (), token: str = "", read_only: bool = False
    ) -> None:
        self._open = not is_loopback(host)
        self._names = {host.lower(), *(name.lower() for name in names)}
        self._token = token
        self.read_only = read_only

    def refuse(
        self, method: str, headers: Mapping[str, str], *, api: bool, changes: bool
    ) -> tuple[int, str] | None:
        """Return the reason for a refusal, as status and text; None if the request is answered.

        Args:
            method: the request's method.
            headers: the request's headers, by names in any case.
            api: whether the request is for more than the page itself.
            changes: whether the request makes a change.
        """
        host, origin, site = map(headers.get, ("Host", "Origin", "Sec-Fetch-Site"))
        if not self._known(host):
            return 403, f"the console does not answer for host {host!r}; --allow-host permits the name"
        if origin is not None and _netloc(origin) != (host or "").lower():
            return 403, f"{origin!r} is another origin: only the console's own page may send requests"
        if "Content-Encoding" in headers:  # the page never uses one
            return 415, "a request must have no content encoding"
        if not api:
            return None
        if site is not None and site not in ("same-origin", "none"):
            return 403, "the request came from another page: only the console's own page may send requests"
        if self._token and not self._shown(headers.get("Authorization")):
            return 401, "the request needs a token: open the address that the console printed"
        kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if method in _CHANGING and kind != "application/json":
            return 415, "the content type of a request must be application/json"
        if changes and self.read_only:
            return 403, "the console permits no changes (--read-only)"
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
        return True  # DNS rebinding needs a name; an address is safe

    def _shown(self, authorization: str | None) -> bool:
        scheme, _, shown = (authorization or "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            shown.strip().encode("utf-8", "replace"), self._token.encode()
        )
