# SPDX-License-Identifier: Apache-2.0
"""The file of the contexts: named brokers that ``bmq contexts`` adds, in ``contexts.json``.

The file may hold passwords, so only its owner may read it: the mode is 0600, and a file that others can read
or write is refused. An edit holds a lock and replaces the whole file at once. Two edits at the same time
therefore lose no entry, and a reader sees the file before or after an edit, never a part.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from bmq._version import install
from bmq.cli.files import replace_file
from bmq.cli.messages import BadInput

__all__ = ["Context", "Contexts", "check_name", "contexts_file", "edit", "read"]

_VERSION: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
#: Seconds to wait for another edit.
PATIENCE = 10.0


class Context(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A named broker.

    Attributes:
        uri: addresses of the broker.
        domain: domain of queues that are given by name alone.
        user: user name.
        password: password in clear text.
        password_store: "keyring" for a password in the keyring of the system.
        password_file: file that has the password.
        password_env: environment variable that has the password.
        password_command: command that prints the password.
        ca: file with trusted certificates.
        cert: file with the client's certificate.
        key: file with the key of the certificate.
        server_name: name in the broker's certificate.
        mechanism: mechanism of authentication without a user.
    """

    uri: str
    domain: str | None = None
    user: str | None = None
    password: str | None = None
    password_store: str | None = None
    password_file: str | None = None
    password_env: str | None = None
    password_command: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None
    mechanism: str | None = None

    def __repr__(self) -> str:
        return f"Context({self.uri!r})"  # without a password


class Contexts(msgspec.Struct):
    """The content of the file.

    Attributes:
        version: version of the form.
        current: name of the context that is used without an option; empty for none.
        entries: contexts by name.
    """

    version: int
    current: str = ""
    entries: dict[str, Context] = msgspec.field(name="contexts", default_factory=dict[str, Context])

    def find(self, name: str, source: str = "") -> Context:
        """Return the context of a name.

        Args:
            name: the name.
            source: where the name comes from, for the error.

        Raises:
            BadInput: no context has the name.
        """
        if name in self.entries:
            return self.entries[name]
        known = ", ".join(sorted(self.entries)) or "none"
        raise BadInput(
            f"no context has the name {name!r}{source} (known names: {known}); bmq contexts add adds one, "
            "and a URI looks like tcp://localhost:30114"
        )


def contexts_file() -> Path:
    """Return the path of the file, in the user's folder for the configuration of bmq.

    The folder is ``bmq`` in XDG_CONFIG_HOME, on Windows otherwise in APPDATA, elsewhere in ``~/.config``.
    """
    home = os.environ.get("XDG_CONFIG_HOME")
    if not home and os.name == "nt":
        home = os.environ.get("APPDATA")
    return (Path(home or "~/.config") / "bmq" / "contexts.json").expanduser()


def check_name(name: str) -> str:
    """Return the name of a context.

    Raises:
        BadInput: the name is not legal.
    """
    if not _NAME.fullmatch(name):
        raise BadInput(
            "the name of a context has up to 64 letters, digits, '.', '_' and '-', and begins with a letter, "
            f"a digit or '_'; {name!r} does not"
        )
    return name


def read() -> Contexts:
    """Return the contexts; none if the file does not exist.

    Raises:
        BadInput: the file cannot be read, has another form, or is open to others.
    """
    path = contexts_file()
    try:
        with path.open("rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            content = file.read()
    except FileNotFoundError:
        return Contexts(_VERSION)
    except OSError as error:
        raise BadInput(f"the contexts cannot be read: {error}") from error
    return _parse(path, content)


def _check_private(path: Path, status: os.stat_result) -> None:
    """Refuse a file that others can read or write. Windows has no such modes."""
    if os.name == "nt":
        return
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        raise BadInput(
            f"{path} must belong to you, because it may contain passwords; its owner is user "
            f"{status.st_uid}. Move the file away, or make it yours: chown {os.getuid()} {path}"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise BadInput(
            f"{path} may contain passwords, and its mode {mode:04o} lets others read or write it. If nobody "
            f"else has changed the file: chmod 600 {path}"
        )


def _parse(path: Path, content: bytes) -> Contexts:
    try:
        found = msgspec.json.decode(content, type=Contexts)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The text of the error has names of members at most, and no values.
        raise BadInput(f"{path}: {error}: correct the file or move it away") from None
    if found.version != _VERSION:
        raise BadInput(
            f"{path} has version {found.version}, and this bmq reads version {_VERSION}: upgrade bmq, or "
            "move the file away"
        )
    if found.current not in ("", *found.entries):
        raise BadInput(f"{path}: current is {found.current!r}, which is not a context: bmq contexts use NAME")
    return found


@contextmanager
def edit() -> Generator[Contexts]:
    """Yield the contexts for an edit, and write them at the end; an error in between writes nothing.

    Raises:
        BadInput: the file cannot be read or written, or another edit does not end.
    """
    try:
        from filelock import FileLock, Timeout
    except ModuleNotFoundError:
        raise BadInput(f"editing contexts needs filelock: {install('cli')}") from None
    path = contexts_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = FileLock(f"{path}.lock", timeout=PATIENCE, mode=0o600)
        lock.acquire()
    except Timeout:
        raise BadInput(
            f"another bmq contexts has held {path}.lock for {PATIENCE:g} seconds: wait for its end, and "
            "repeat the command"
        ) from None
    except OSError as error:
        raise BadInput(f"the contexts cannot be written: {error}") from error
    try:
        contexts = read()
        yield contexts
        try:
            replace_file(path, msgspec.json.format(msgspec.json.encode(contexts), indent=1) + b"\n")
        except OSError as error:
            raise BadInput(f"the contexts cannot be written: {error}") from error
    finally:
        lock.release()
