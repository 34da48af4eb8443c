# SPDX-License-Identifier: Apache-2.0
"""The broker of a command line, and its credentials."""

from __future__ import annotations

import os
import ssl as ssl_module
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from bmq.cli import context_file
from bmq.cli.context_file import Context
from bmq.cli.messages import BadInput

if TYPE_CHECKING:
    import bmq
    from bmq.admin import connect as AdminConnect

__all__ = ["DEFAULT_URI", "BrokerTarget", "given_password", "target_of"]

DEFAULT_URI = "tcp://localhost:30114"
_VARIABLE = "BMQ_BROKER_URI"
_CONTEXT_VARIABLE = "BMQ_CONTEXT"
# Options that take the place of a context's members.
_FILES = ("ca", "cert", "key")
_GIVEN = ("user", "password_file", "ca", "cert", "key", "server_name")


@dataclass(frozen=True, slots=True)
class BrokerTarget:
    """A broker, and the options of connections to the broker.

    Attributes:
        uri: address of the broker.
        name: name of this process in the broker's log.
        timeout: seconds to connect, and for each request.
        ssl: context for TLS; None for no certificates.
        server_hostname: name in the broker's certificate.
        credentials: credentials; None to connect without.
        named: whether --broker or --context names the broker.
        domain: domain of queues that are given without one; empty for none.
    """

    uri: str
    name: str
    timeout: float
    ssl: ssl_module.SSLContext | None = None
    server_hostname: str | None = None
    credentials: bmq.Credentials | None = None
    named: bool = False
    domain: str = ""

    def connect(self, **options: Any) -> bmq.connect:
        """Return the connector of a session."""
        import bmq

        timeouts = ("connect_timeout", "open_timeout", "configure_timeout", "close_timeout")
        chosen: dict[str, Any] = {
            "process_name": self.name,
            **dict.fromkeys(timeouts, self.timeout),
            **options,
        }
        return bmq.connect(self.uri, **self.access, options=bmq.SessionOptions(**chosen))

    @property
    def access(self) -> dict[str, Any]:
        """The arguments of every connection that prove the identity of both sides."""
        return {
            "credentials": self.credentials,
            "ssl": self.ssl,
            "server_hostname": self.server_hostname,
        }

    def admin(self) -> AdminConnect:
        """Return the connector of an admin client."""
        import bmq.admin

        return bmq.admin.connect(self.uri, **self.access, timeout=self.timeout, process_name=self.name)


# ---- the choice of the broker


def _find(broker: str | None, context: str | None = None) -> tuple[str, Context]:
    """Return the name and the context of the broker; an address has no name.

    The broker comes from the options, from the variables, from the contexts, or is the default.
    """
    if broker is not None and context is not None:
        raise BadInput(f"give one broker: --broker {broker} or --context {context}")
    if broker is not None and "://" in broker:
        return "", Context(broker)
    name, source = (broker if broker is not None else context), ""
    if name is None and os.environ.get(_CONTEXT_VARIABLE):
        name, source = os.environ[_CONTEXT_VARIABLE], f" ({_CONTEXT_VARIABLE} has this name)"
    if name is None and os.environ.get(_VARIABLE):
        return "", Context(os.environ[_VARIABLE])
    contexts = context_file.read()
    if name is None:
        name = contexts.current
        if not name:
            return "", Context(DEFAULT_URI)
    return name, contexts.find(name, source)


def target_of(
    verb_name: str, options: dict[str, Any], *, timeout: float, keyring: bool = True
) -> BrokerTarget:
    """Return the broker of a command line's options.

    Args:
        verb_name: name of the process for the broker's log.
        options: the command's parameters by name; missing parameters have their defaults.
        timeout: seconds to connect, and for each request.
        keyring: whether the keyring may be asked, which may open a window.

    Raises:
        BadInput: no broker has this name, or the credentials cannot be read.
    """
    broker, context = options.get("broker"), options.get("context")
    name, entry = _find(broker, context)
    user = options.get("user")
    if user is not None and user != entry.user:
        # The stored password belongs to another user.
        entry = structs.replace(entry, password=None, password_store=None)
    given = {key: options[key] for key in _GIVEN if options.get(key) is not None}
    entry = structs.replace(entry, **given)
    ssl = _ssl(entry)
    if ssl is not None and "tcps://" not in entry.uri:
        raise BadInput(f"certificates are for TLS: write tcps:// instead of {entry.uri!r}")
    return BrokerTarget(
        uri=entry.uri,
        name=f"bmq {verb_name}",
        timeout=timeout,
        ssl=ssl,
        server_hostname=entry.server_name,
        credentials=_credentials(entry, name, keyring=keyring),
        named=broker is not None or context is not None,
        domain=entry.domain or "",
    )


def _ssl(entry: Context) -> ssl_module.SSLContext | None:
    if entry.key is not None and entry.cert is None:
        raise BadInput("a key needs a certificate: --cert")
    files = {name: value for name in _FILES if (value := getattr(entry, name)) is not None}
    if not files:
        return None
    ca, cert, key = (str(Path(files[name]).expanduser()) if name in files else None for name in _FILES)
    try:
        context = ssl_module.create_default_context(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except (OSError, ssl_module.SSLError) as error:
        given = ", ".join(f"{option} {file}" for option, file in files.items())
        raise BadInput(f"the certificates cannot be used ({given}): {error}") from error
    return context


def _credentials(entry: Context, name: str, *, keyring: bool) -> bmq.Credentials | None:
    import bmq

    user = entry.user or os.environ.get("BMQ_USER")
    if not user:
        return bmq.Credentials(entry.mechanism) if entry.mechanism else None
    return bmq.Credentials.basic(user, _password(entry, user, name, keyring=keyring))


def _password(entry: Context, user: str, name: str, *, keyring: bool) -> str:
    if entry.password_file:
        try:
            return Path(entry.password_file).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise BadInput(f"the password cannot be read: {error}") from error
    if command := entry.password_command:
        try:
            # Windows takes a command as one text, and shlex would remove the backslashes of its paths.
            import shlex  # loaded by few programs

            words = command if os.name == "nt" else shlex.split(command)
            done = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True, encoding="utf-8")
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise BadInput(f"password_command failed: {error}") from error
        return done.stdout.rstrip("\r\n")
    if entry.password is not None:
        return entry.password
    if entry.password_store == "keyring":
        if not keyring:
            raise BadInput("the keyring is not asked here")
        from bmq.cli.keyrings import load

        return load(name, user)
    instead = "give --password-file, or set password_command in a context"
    return given_password(user, entry.password_env or "BMQ_PASSWORD", instead)


def given_password(user: str, variable: str, instead: str) -> str:
    """Return a password from a variable or from a prompt.

    Raises:
        BadInput: the variable is not set, and there is no terminal; the error has the alternatives.
    """
    if variable in os.environ:
        return os.environ[variable]
    if sys.stdin.isatty() and sys.stderr.isatty():
        import getpass  # loaded by few programs

        return getpass.getpass(f"Password of {user}: ")
    raise BadInput(f"no password for {user}: set {variable}, {instead}")
