# SPDX-License-Identifier: Apache-2.0
"""The broker of a command line and its credentials; and the contexts: named brokers in ``contexts.json``.

The file may hold passwords, so only its owner may read it: the mode is 0600, and a file that others can read
or write is refused. An edit holds a lock and replaces the whole file at once. Two edits at the same time
therefore lose no entry, and a reader sees the file before or after an edit, never a part.
"""

from __future__ import annotations

import os
import ssl as ssl_module
import stat
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import structs

import bmq
from bmq.cli.files import replace_file
from bmq.cli.output import BadInput, has_terminal, needing

_DEFAULT_URI: Final = "tcp://localhost:30114"
_VERSION: Final = 1
#: Seconds to wait for another edit of the contexts.
PATIENCE = 10.0


# ---- the file of the contexts


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
        """Return the context of a name; ``source`` tells in the error where the name comes from.

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


def read_contexts() -> Contexts:
    """Return the contexts; none if the file does not exist.

    Raises:
        BadInput: the file cannot be read, has another form, or is open to others.
    """
    path = contexts_file()
    try:
        with path.open("rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            found = msgspec.json.decode(file.read(), type=Contexts)
    except FileNotFoundError:
        return Contexts(_VERSION)
    except OSError as error:
        raise BadInput(f"the contexts cannot be read: {error}") from error
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


def _check_private(path: Path, status: os.stat_result) -> None:
    """Refuse a file that others can read or write. Windows has no such modes."""
    if os.name == "nt":
        return
    if status.st_uid != os.getuid():
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


@contextmanager
def edit_contexts() -> Generator[Contexts]:
    """Yield the contexts for an edit, and write them at the end; an error in between writes nothing.

    Raises:
        BadInput: the file cannot be read or written, or another edit does not end.
    """
    from filelock import FileLock, Timeout  # loaded by few programs

    path = contexts_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=PATIENCE, mode=0o600):
            contexts = read_contexts()
            yield contexts
            replace_file(path, msgspec.json.format(msgspec.json.encode(contexts), indent=1) + b"\n")
    except Timeout:
        raise BadInput(
            f"another bmq contexts has held {path}.lock for {PATIENCE:g} seconds: wait for its end, and "
            "repeat the command"
        ) from None
    except OSError as error:
        raise BadInput(f"the contexts cannot be written: {error}") from error


# ---- passwords


def _keyring() -> Any:
    """Import the library on first use: the import and the search for a keyring take a tenth of a second."""
    with needing("keyring", "the keyring needs", "keyring"):
        import keyring
    return keyring


def call_keyring(method: str, context: str, *values: str) -> Any:
    """Call a method of the library ``keyring`` for the password of a context.

    Raises:
        BadInput: the extra is missing, or the keyring refuses. Each kind of keyring has other exceptions.
    """
    library = _keyring()
    try:
        return getattr(library, method)(f"bmq:{context}", *values)
    except Exception as error:
        why = (str(error) or type(error).__name__)[:200]
        raise BadInput(
            f"the keyring of this system refuses: {why}. Unlock the keyring, or store the password again: "
            f"bmq contexts add {context} ... --replace, with --store file for the private file"
        ) from None


def why_no_keyring() -> str:
    """Return the reason why the keyring is unusable; empty for a usable keyring."""
    try:
        usable = float(_keyring().get_keyring().priority) > 0
    except BadInput as error:
        return str(error)
    except Exception as error:
        return f"the keyring of this system does not work: {str(error)[:200]}"
    return "" if usable else "this system has no keyring"


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
        found = call_keyring("get_password", name, user)
        if not isinstance(found, str):
            raise BadInput(
                f"the keyring has no password of {user} for the context {name}: bmq contexts add {name} ... "
                "--replace stores the password again"
            )
        return found
    instead = "give --password-file, or set password_command in a context"
    return given_password(user, entry.password_env or "BMQ_PASSWORD", instead)


def given_password(user: str, variable: str, instead: str) -> str:
    """Return a password from a variable or from a prompt.

    Raises:
        BadInput: the variable is not set, and there is no terminal; the error has the alternatives.
    """
    if variable in os.environ:
        return os.environ[variable]
    if has_terminal():
        import getpass  # loaded by few programs

        return getpass.getpass(f"Password of {user}: ")
    raise BadInput(f"no password for {user}: set {variable}, {instead}")


# ---- the broker


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
        return {"credentials": self.credentials, "ssl": self.ssl, "server_hostname": self.server_hostname}

    def admin(self) -> bmq.admin.connect:
        """Return the connector of an admin client."""
        return bmq.admin.connect(self.uri, **self.access, timeout=self.timeout, process_name=self.name)


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
    if options.get("user") not in (None, entry.user):
        # The stored password belongs to another user.
        entry = structs.replace(entry, password=None, password_store=None)
    members = ("user", "password_file", "ca", "cert", "key", "server_name")
    given = {key: options[key] for key in members if options.get(key) is not None}
    entry = structs.replace(entry, **given)
    credentials = bmq.Credentials(entry.mechanism) if entry.mechanism else None
    if user := entry.user or os.environ.get("BMQ_USER"):
        credentials = bmq.Credentials.basic(user, _password(entry, user, name, keyring=keyring))
    return BrokerTarget(
        uri=entry.uri,
        name=f"bmq {verb_name}",
        timeout=timeout,
        ssl=tls_of(entry),
        server_hostname=entry.server_name,
        credentials=credentials,
        named=broker is not None or context is not None,
        domain=entry.domain or "",
    )


def _find(broker: str | None, context: str | None) -> tuple[str, Context]:
    """Return the name and the context of the broker; an address has no name.

    The broker comes from the options, from the variables, from the contexts, or is the default.
    """
    if broker is not None and context is not None:
        raise BadInput(f"give one broker: --broker {broker} or --context {context}")
    if broker is not None and "://" in broker:
        return "", Context(broker)
    name, source = (broker if broker is not None else context), ""
    if name is None and os.environ.get("BMQ_CONTEXT"):
        name, source = os.environ["BMQ_CONTEXT"], " (BMQ_CONTEXT has this name)"
    if name is None and os.environ.get("BMQ_BROKER_URI"):
        return "", Context(os.environ["BMQ_BROKER_URI"])
    contexts = read_contexts()
    if name is None and not contexts.current:
        return "", Context(_DEFAULT_URI)
    name = contexts.current if name is None else name
    return name, contexts.find(name, source)


def tls_of(entry: Context) -> ssl_module.SSLContext | None:
    """Return the context with the certificates; None without certificates.

    Raises:
        BadInput: the certificates cannot be used.
    """
    if entry.key is not None and entry.cert is None:
        raise BadInput("a key needs a certificate: --cert")
    files = {"ca": entry.ca, "cert": entry.cert, "key": entry.key}
    paths = {name: str(Path(file).expanduser()) for name, file in files.items() if file is not None}
    if not paths:
        return None
    try:
        context = ssl_module.create_default_context(cafile=paths.get("ca"))
        if "cert" in paths:
            context.load_cert_chain(paths["cert"], paths.get("key"))
    except (OSError, ssl_module.SSLError) as error:
        given = ", ".join(f"{name} {path}" for name, path in paths.items())
        raise BadInput(f"the certificates cannot be used ({given}): {error}") from error
    if "tcps://" not in entry.uri:
        raise BadInput(f"certificates are for TLS: write tcps:// instead of {entry.uri!r}")
    return context
