# SPDX-License-Identifier: Apache-2.0
"""Certificates for TLS tests, generated on demand."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Certificates", "make_certificate", "make_certificates"]


@dataclass
class Certificates:
    directory: Path

    def context(self, purpose: ssl.Purpose, name: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(purpose, cafile=str(self.directory / "ca.pem"))
        if name is not None:
            context.load_cert_chain(self.directory / f"{name}.pem", self.directory / f"{name}.key")
        return context


def make_certificates(directory: Path) -> Certificates:
    """A certificate authority, and certificates of a broker and of a client."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    # What Python 3.13 and later insist on (VERIFY_X509_STRICT): keys that say what for and whose they are.
    authority = ("-addext", "keyUsage=critical,keyCertSign,cRLSign", "-subj", "/CN=test CA", "-days", "2")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", *authority)
    for name, alternative in (
        ("broker", "DNS:broker.example,IP:127.0.0.1"),
        ("client", "DNS:client.example"),
    ):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}.example")
        (directory / "extensions").write_text(
            f"subjectAltName={alternative}\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
        )
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions")
        openssl("x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.pem", "-days", "2")
    return Certificates(directory)


def make_certificate(key: Path, certificate: Path) -> None:
    """A certificate of localhost, signed with its own key."""
    subprocess.run(
        (
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 "
            f"-keyout {key} -out {certificate} -subj /CN=localhost "
            "-addext subjectAltName=DNS:localhost,IP:127.0.0.1"
        ).split(),
        check=True,
        capture_output=True,
    )
