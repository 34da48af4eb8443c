# SPDX-License-Identifier: Apache-2.0
"""Credentials and TLS of Spark's drivers and workers.

A job contains only names: of environment variables, files and functions. They are resolved at each
connection, on the connecting machine, so that their values may change. A plain password is the exception: it
travels with the job.
"""

from __future__ import annotations

import importlib
import os
import socket
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bmq.errors import UsageError

if TYPE_CHECKING:
    from bmq.client.options import Credentials, CredentialsSource

__all__ = ["Security"]

_BASIC = "BASIC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Credentials and TLS of a connection.

    Attributes:
        user: user name, for the mechanism BASIC.
        password: password, or the data of another mechanism. Omitted from the object's representation.
        password_env: environment variable with the password.
        mechanism: authentication mechanism, if not BASIC.
        credentials: ``MODULE:NAME`` of a function or class that returns :class:`bmq.Credentials`, in place of
            the fields above.
        tls_ca_file: trusted authorities in place of the system's, as PEM.
        tls_cert_file: client certificate, as PEM.
        tls_key_file: key of the client certificate, if in a separate file.
        tls_server_name: name in the broker's certificate, if different from the address.

    Raises:
        UsageError: two fields exclude each other, or a field requires another one.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    password_env: str = ""
    mechanism: str = ""
    credentials: str = ""
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_server_name: str = ""

    def __post_init__(self) -> None:
        if self.password and self.password_env:
            raise UsageError("password and passwordEnv exclude each other: give one of the two")
        if self.credentials:
            if self.user or self.password or self.password_env or self.mechanism:
                raise UsageError("credentials supplies user, password and mechanism: omit these options")
            module, _, name = self.credentials.partition(":")
            if not module or not name:
                raise UsageError(f"credentials must be MODULE:NAME, not {self.credentials!r}")
        if self.tls_key_file and not self.tls_cert_file:
            raise UsageError("tlsKeyFile is the key of tlsCertFile, which is missing")

    def source(self) -> CredentialsSource | None:
        """Return the source of the credentials; None without authentication.

        Raises:
            UsageError: the environment variable or the function does not exist.
        """
        if self.credentials:
            return self._imported()
        if not self.user and not self.mechanism:
            return None
        now = self._made()  # a missing value is an immediate error, and not a failed attempt to connect
        return self._made if self.password_env else now

    def _made(self) -> Credentials:
        from bmq.client.options import Credentials

        secret = self.password
        if self.password_env:
            found = os.environ.get(self.password_env)
            if found is None:
                where = socket.gethostname()
                raise UsageError(f"passwordEnv: no environment variable {self.password_env!r} on {where}")
            secret = found
        if self.mechanism and self.mechanism.upper() != _BASIC:
            return Credentials(self.mechanism, secret.encode())
        return Credentials(_BASIC, f"{self.user}:{secret}".encode())

    def _imported(self) -> CredentialsSource:
        module, _, name = self.credentials.partition(":")
        try:
            found: Any = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise UsageError(f"credentials {self.credentials!r} on {socket.gethostname()}: {error}") from None
        made: CredentialsSource = found() if isinstance(found, type) else found
        return made

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context; None for the system's defaults, if the address requires TLS.

        Raises:
            UsageError: a file is missing or malformed.
        """
        if not self.tls_ca_file and not self.tls_cert_file:
            return None
        for option, path in (
            ("tlsCaFile", self.tls_ca_file),
            ("tlsCertFile", self.tls_cert_file),
            ("tlsKeyFile", self.tls_key_file),
        ):
            if path and not os.path.isfile(path):
                raise UsageError(f"{option}: {socket.gethostname()} has no file {path!r}")
        try:
            context = ssl.create_default_context(cafile=self.tls_ca_file or None)
        except ssl.SSLError as error:
            raise UsageError(f"tlsCaFile {self.tls_ca_file!r}: {error}") from None
        if self.tls_cert_file:
            try:
                context.load_cert_chain(self.tls_cert_file, self.tls_key_file or None)
            except ssl.SSLError as error:
                raise UsageError(f"tlsCertFile {self.tls_cert_file!r}: {error}") from None
        return context
