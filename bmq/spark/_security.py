# SPDX-License-Identifier: Apache-2.0
"""Who connects, and how it is kept private: credentials and TLS of Spark's drivers and workers.

Only names travel with a job: of environment variables, files and functions. They are looked up where and
whenever a connection is made, so that what is behind them may change. (A password in clear travels too.)
"""

from __future__ import annotations

import importlib
import os
import socket
import ssl
from dataclasses import dataclass, field
from typing import Any

from bmq.engine.options import Credentials, CredentialsSource
from bmq.errors import UsageError

__all__ = ["Security"]

_BASIC = "BASIC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Credentials and TLS of a connection.

    Attributes:
        user: user name, for the mechanism BASIC.
        password: its password, or what another mechanism wants. It is in no representation of this object.
        password_env: the environment variable that has it instead.
        mechanism: the mechanism, if it is not BASIC.
        credentials: ``MODULE:NAME`` of a function or class that makes :class:`bmq.Credentials`, instead of
            the above.
        tls_ca_file: authorities to trust instead of the system's, as PEM.
        tls_cert_file: a certificate to show, as PEM.
        tls_key_file: its key, where it is not in the same file.
        tls_server_name: the name that the broker's certificate has, where it is not the address's.

    Raises:
        UsageError: two of them exclude each other, or one is useless without another.
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
            raise UsageError("password and passwordEnv: give one of them")
        if self.credentials:
            if self.user or self.password or self.password_env or self.mechanism:
                raise UsageError("credentials makes all of it: give no user, password or mechanism")
            module, _, name = self.credentials.partition(":")
            if not module or not name:
                raise UsageError(f"credentials is MODULE:NAME, not {self.credentials!r}")
        if self.tls_key_file and not self.tls_cert_file:
            raise UsageError("tlsKeyFile is the key of tlsCertFile, which is missing")

    def source(self) -> CredentialsSource | None:
        """Return what to authenticate with; None for nothing.

        Raises:
            UsageError: the environment variable or the function is not there.
        """
        if self.credentials:
            return self._imported()
        if not self.user and not self.mechanism:
            return None
        now = self._made()  # what is missing is said at once, and not as an attempt to connect that failed
        return self._made if self.password_env else now

    def _made(self) -> Credentials:
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
        """Return how to do TLS; None for the system's way, where the address asks for it.

        Raises:
            UsageError: a file is not there, or not what it should be.
        """
        if not self.tls_ca_file and not self.tls_cert_file:
            return None
        for option, path in (
            ("tlsCaFile", self.tls_ca_file),
            ("tlsCertFile", self.tls_cert_file),
            ("tlsKeyFile", self.tls_key_file),
        ):
            if path and not os.path.isfile(path):
                raise UsageError(f"{option}: there is no file {path!r} on {socket.gethostname()}")
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
