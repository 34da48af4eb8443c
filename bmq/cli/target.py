# SPDX-License-Identifier: Apache-2.0
"""The broker of a command line, its credentials, and the frame around a verb."""

from __future__ import annotations

import gc
import inspect
import logging
import math
import os
import ssl as ssl_module
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

import typer

from bmq.cli import context_file
from bmq.cli.messages import BadInput
from bmq.cli.options import option
from bmq.cli.output import log_to_stderr, note, write_utf8
from bmq.cli.records import JSON_FLAG, Form, form_of
from bmq.cli.status import ExitStatus

if TYPE_CHECKING:
    import bmq
    from bmq.admin import connect as AdminConnect

__all__ = [
    "DEFAULT_URI",
    "BrokerTarget",
    "complete_contexts",
    "is_broker_address",
    "offline",
    "status_of",
    "target_of",
    "verb",
]

DEFAULT_URI = "tcp://localhost:30114"
_VARIABLE = "BMQ_BROKER_URI"
_CONTEXT_VARIABLE = "BMQ_CONTEXT"
_PANEL = "Broker"


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
        context: name of the context; empty for an address.
    """

    uri: str
    name: str
    timeout: float
    ssl: ssl_module.SSLContext | None = None
    server_hostname: str | None = None
    credentials: bmq.Credentials | None = None
    named: bool = False
    domain: str = ""
    context: str = ""

    def connect(self, **options: Any) -> bmq.connect:
        """Return the connector of a session."""
        import bmq

        timeouts = ("connect_timeout", "open_timeout", "configure_timeout", "close_timeout")
        chosen: dict[str, Any] = {
            "process_name": self.name,
            **dict.fromkeys(timeouts, self.timeout),
            **options,
        }
        return bmq.connect(
            self.uri,
            credentials=self.credentials,
            ssl=self.ssl,
            server_hostname=self.server_hostname,
            options=bmq.SessionOptions(**chosen),
        )

    def admin(self) -> AdminConnect:
        """Return the connector of an admin client."""
        import bmq.admin

        return bmq.admin.connect(
            self.uri,
            credentials=self.credentials,
            ssl=self.ssl,
            server_hostname=self.server_hostname,
            timeout=self.timeout,
            process_name=self.name,
        )


# ---- the choice of the broker


def _find(broker: str | None, context: str | None = None) -> tuple[str, dict[str, str]]:
    """Return the name and the entry of the broker; an address has no name.

    The broker comes from the options, from the variables, from the contexts, or is the default.
    """
    if broker is not None and context is not None:
        raise BadInput(f"give one broker: --broker {broker} or --context {context}")
    if broker is not None and "://" in broker:
        return "", {"uri": broker}
    name, source = (broker if broker is not None else context), ""
    if name is None and os.environ.get(_CONTEXT_VARIABLE):
        name, source = os.environ[_CONTEXT_VARIABLE], f" ({_CONTEXT_VARIABLE} has this name)"
    if name is None and os.environ.get(_VARIABLE):
        return "", {"uri": os.environ[_VARIABLE]}
    contexts = context_file.read()
    if name is None:
        name = contexts.current
        if not name:
            return "", {"uri": DEFAULT_URI}
    if name not in contexts.entries:
        known = ", ".join(sorted(contexts.entries)) or "none"
        raise BadInput(
            f"no context has the name {name!r}{source} (known names: {known}); bmq contexts add adds one, "
            f"and a URI looks like {DEFAULT_URI}"
        )
    return name, contexts.entries[name]


def _target(
    verb_name: str,
    broker: str | None,
    timeout: float,
    user: str | None,
    password_file: str | None,
    ca: str | None,
    cert: str | None,
    key: str | None,
    server_name: str | None,
    context: str | None,
    *,
    keyring: bool = True,
) -> BrokerTarget:
    name, entry = _find(broker, context)
    if user is not None and user != entry.get("user"):
        # The stored password belongs to another user.
        entry = {key: value for key, value in entry.items() if key not in ("password", "password_store")}
    given = {"user": user, "password_file": password_file, "ca": ca, "cert": cert, "key": key}
    entry = entry | {key: value for key, value in given.items() if value is not None}
    if server_name is not None:
        entry["server_name"] = server_name
    ssl = _ssl(entry)
    if ssl is not None and "tcps://" not in entry["uri"]:
        raise BadInput(f"certificates are for TLS: write tcps:// instead of {entry['uri']!r}")
    return BrokerTarget(
        uri=entry["uri"],
        name=f"bmq {verb_name}",
        timeout=timeout,
        ssl=ssl,
        server_hostname=entry.get("server_name"),
        credentials=_credentials(entry, name, keyring=keyring),
        named=broker is not None or context is not None,
        domain=entry.get("domain", ""),
        context=name,
    )


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
    shared: dict[str, Any] = {name: options.get(name) for name in _SHARED}
    shared["timeout"] = timeout
    return _target(verb_name, **shared, keyring=keyring)


def is_broker_address(text: str) -> bool:
    """Whether a text is the address of a broker rather than the URI of a queue."""
    return text.startswith(("tcp://", "tcps://"))


def _refuse_broker_as_queue(name: str, arguments: dict[str, Any]) -> None:
    """Refuse the address of a broker in place of a queue.

    Raises:
        BadInput: an argument for queues is the address of a broker.
    """
    for argument in ("queue", "queues", "domain", "what", "source", "destination"):
        given: Any = arguments.get(argument)
        for each in given if isinstance(given, list) else [given]:  # pyright: ignore[reportUnknownVariableType]
            if isinstance(each, str) and is_broker_address(each):
                raise BadInput(f"{each} is a broker, not a queue: bmq {name} ... --broker {each}")


def _ssl(entry: dict[str, str]) -> ssl_module.SSLContext | None:
    if "key" in entry and "cert" not in entry:
        raise BadInput("a key needs a certificate: --cert")
    if "ca" not in entry and "cert" not in entry:
        return None
    try:
        ca = entry.get("ca")
        context = ssl_module.create_default_context(cafile=str(Path(ca).expanduser()) if ca else None)
        if cert := entry.get("cert"):
            key = entry.get("key")
            context.load_cert_chain(Path(cert).expanduser(), Path(key).expanduser() if key else None)
    except (OSError, ssl_module.SSLError) as error:
        given = ", ".join(f"{option} {entry[option]}" for option in ("ca", "cert", "key") if option in entry)
        raise BadInput(f"the certificates cannot be used ({given}): {error}") from error
    return context


def _credentials(entry: dict[str, str], name: str, *, keyring: bool) -> bmq.Credentials | None:
    import bmq

    user = entry.get("user") or os.environ.get("BMQ_USER")
    if not user:
        mechanism = entry.get("mechanism")
        return bmq.Credentials(mechanism) if mechanism else None
    return bmq.Credentials.basic(user, _password(entry, user, name, keyring=keyring))


def _password(entry: dict[str, str], user: str, name: str, *, keyring: bool) -> str:
    if file := entry.get("password_file"):
        try:
            return Path(file).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise BadInput(f"the password cannot be read: {error}") from error
    if command := entry.get("password_command"):
        import shlex

        try:
            # Windows takes a command as one text, and shlex would remove the backslashes of its paths.
            words = command if os.name == "nt" else shlex.split(command)
            done = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True, encoding="utf-8")
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise BadInput(f"password_command failed: {error}") from error
        return done.stdout.rstrip("\r\n")
    if "password" in entry:
        return entry["password"]
    if entry.get("password_store") == "keyring":
        if not keyring:
            raise BadInput("the keyring is not asked here")
        from bmq.cli.keyrings import load

        return load(name, user)
    variable = entry.get("password_env", "BMQ_PASSWORD")
    if variable in os.environ:
        return os.environ[variable]
    if sys.stdin.isatty() and sys.stderr.isatty():
        import getpass

        return getpass.getpass(f"Password of {user}: ")
    raise BadInput(
        f"no password for {user}: set {variable}, give --password-file, or set password_command in a context"
    )


# ---- running

_BROKER = Annotated[
    str | None,
    option("--broker -b NAME|URI", "URI of the broker, or the name of a context.", rich_help_panel=_PANEL),
]


def complete_contexts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return contexts that begin with the incomplete word."""
    with suppress(Exception):
        return sorted(each for each in context_file.read().entries if each.startswith(incomplete))
    return []


_CONTEXT = Annotated[
    str | None,
    option(
        "--context NAME",
        "Name of a context (BMQ_CONTEXT), as listed by bmq contexts.",
        autocompletion=complete_contexts,
        rich_help_panel=_PANEL,
    ),
]
_TIMEOUT = Annotated[
    float,
    option(
        "--timeout SECONDS",
        "Time limit for the connection, and for each request.",
        min=0.001,
        rich_help_panel=_PANEL,
    ),
]


def _option(name: str, metavar: str, text: str) -> Any:
    return Annotated[str | None, typer.Option(name, metavar=metavar, help=text, rich_help_panel=_PANEL)]


_SHARED: dict[str, tuple[Any, Any]] = {
    "broker": (_BROKER, None),
    "timeout": (_TIMEOUT, 10.0),
    "user": (
        _option("--user", "NAME", "User name (BMQ_USER); the password comes from BMQ_PASSWORD or a prompt."),
        None,
    ),
    "password_file": (_option("--password-file", "FILE", "File that contains the password."), None),
    "ca": (_option("--ca", "FILE", "File with trusted certificates, for tcps://."), None),
    "cert": (_option("--cert", "FILE", "File with this client's certificate."), None),
    "key": (_option("--key", "FILE", "File with the key of the certificate."), None),
    "server_name": (_option("--server-name", "NAME", "Name in the broker's certificate."), None),
    "context": (_CONTEXT, None),
}

Async = Callable[..., Coroutine[Any, Any, int | None]]
Plain = Callable[..., int | Coroutine[Any, Any, int | None] | None]


OnError = Callable[[dict[str, Any], ExitStatus], ExitStatus]


def verb(
    name: str, *, on_error: OnError | None = None, service: bool = False
) -> Callable[[Async], Callable[..., None]]:
    """Make a command of a coroutine function: its first parameter is the :class:`BrokerTarget`.

    The function returns the exit status; None means OK. The command has the broker's options besides its own.
    ``on_error`` changes the exit status of an error, by the command's own arguments. For a service, SIGTERM
    is the orderly end, with status 0.
    """

    def decorate(function: Async) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        own = list(inspect.signature(function).parameters.values())[1:]
        parameters = _with_json([parameter.replace(annotation=hints[parameter.name]) for parameter in own])
        in_domain = [each.name for each in parameters if _is_queue(each)]
        parameters += [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for key, (annotation, default) in _SHARED.items()
        ]

        @wraps(function)
        def command(**arguments: Any) -> None:
            shared = {key: arguments.pop(key) for key in _SHARED}

            def run() -> int | None:
                _refuse_infinite(arguments | shared)
                _choose_form(arguments)
                if name != "doctor":  # takes either
                    _refuse_broker_as_queue(name, arguments)
                elif isinstance(given := arguments.get("queue"), str) and is_broker_address(given):
                    _take_address(shared, given)
                    arguments["queue"] = None
                target = _target(name, **shared)
                if target.domain:
                    _complete_queues(arguments, in_domain, target.domain)
                return _run(partial(function, target, **arguments))

            changed = partial(on_error, arguments) if on_error is not None else None
            _guarded(name, run, on_error=changed, service=service)

        return _with_signature(command, parameters)

    return decorate


def offline(name: str, *, logs: bool = True) -> Callable[[Plain], Callable[..., None]]:
    """Make a command of a function without a broker; the function returns the exit status.

    With ``logs=False`` the function configures logging itself.
    """

    def decorate(function: Plain) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        own = inspect.signature(function).parameters.values()
        parameters = _with_json([parameter.replace(annotation=hints[parameter.name]) for parameter in own])

        @wraps(function)
        def command(**arguments: Any) -> None:
            def run() -> int | None:
                _refuse_infinite(arguments)
                _choose_form(arguments)
                if inspect.iscoroutinefunction(function):
                    return _run(partial(function, **arguments))
                _collect_garbage()
                return cast("int | None", function(**arguments))

            _guarded(name, run, logs=logs)

        return _with_signature(command, parameters)

    return decorate


def _with_json(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """Add --json behind --output, for verbs with data."""
    made: list[inspect.Parameter] = []
    for each in parameters:
        made.append(each)
        if each.name == "output":
            kind = inspect.Parameter.KEYWORD_ONLY
            made.append(inspect.Parameter("json", kind, default=False, annotation=JSON_FLAG))
    return [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in made]


def _refuse_infinite(arguments: dict[str, Any]) -> None:
    """Refuse infinity and NaN, which the limits of an option let through.

    Raises:
        BadInput: an option has no finite number.
    """
    for name, value in arguments.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise BadInput(
                f"--{name.replace('_', '-')} must be a finite number, not {value}: leave the option out, or "
                "give a large number"
            )


def _choose_form(arguments: dict[str, Any]) -> None:
    if "output" in arguments:
        arguments["output"] = form_of(arguments["output"], json=arguments.pop("json"))
        if arguments["output"] is not Form.TABLE:
            write_utf8()


def _take_address(shared: dict[str, Any], address: str) -> None:
    """Use an argument in place of --broker. Credentials of another broker are never sent to the address."""
    for name in ("broker", "context"):
        if shared[name] is not None:
            raise BadInput(f"give one broker: {address} or --{name} {shared[name]}")
    shared["broker"] = address


def _is_queue(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is the URI of a queue, and never a domain."""
    for each in getattr(parameter.annotation, "__metadata__", ()):
        metavar = str(getattr(each, "metavar", None) or "").strip("[].")
        if metavar.partition("|")[0] in ("QUEUE", "SOURCE", "DESTINATION") and "DOMAIN" not in metavar:
            return True
    return False


def _complete_queues(arguments: dict[str, Any], names: list[str], domain: str) -> None:
    """Put the default domain in front of queues that are given by name alone."""

    def whole(text: Any) -> Any:
        bare = isinstance(text, str) and text and "://" not in text and not text.startswith("-")
        return f"bmq://{domain}/{text}" if bare else text

    for name in names:
        given: Any = arguments.get(name)
        if isinstance(given, list):
            arguments[name] = [whole(each) for each in given]  # pyright: ignore[reportUnknownVariableType]
        else:
            arguments[name] = whole(given)


def _with_signature(command: Callable[..., None], parameters: list[inspect.Parameter]) -> Callable[..., None]:
    signed: Any = command
    signed.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _run(begin: Callable[[], Coroutine[Any, Any, int | None]]) -> int | None:
    """Run a verb. Ctrl-C and SIGTERM cancel the verb, so that the verb closes its connections."""
    import bmq

    async def main() -> int | None:
        return await begin()

    run = bmq.run  # imports the client
    _collect_garbage()
    return run(main())


def _collect_garbage() -> None:
    """Start the garbage collector if :func:`bmq.cli.script` has stopped it; never scan the modules so far."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _guarded(
    name: str,
    run: Callable[[], int | None],
    *,
    logs: bool = True,
    on_error: Callable[[ExitStatus], ExitStatus] | None = None,
    service: bool = False,
) -> None:
    """Run a verb, and turn its result or its error into an exit status.

    Raises:
        typer.Exit: always.
    """
    import bmq

    if logs:
        log_to_stderr(logging.WARNING, f"bmq {name}: %(message)s")
    try:
        status = run() or ExitStatus.OK
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = ExitStatus.INTERRUPTED
    except SystemExit as end:  # SIGTERM: see bmq.run
        if not service or end.code != ExitStatus.TERMINATED:
            raise
        status = ExitStatus.OK
    except BrokenPipeError:
        status = ExitStatus.NO_READER  # main() sees to the buffered output
    except UnicodeEncodeError as error:
        note(
            f"bmq {name}: {error.object[:40]!r} is not UTF-8: give such data in a file (--file), or as "
            "base64 in a line of --ndjson"
        )
        status = ExitStatus.USAGE
    except (BadInput, bmq.Error, OSError, UnicodeError) as error:
        note(f"bmq {name}: {error}")
        status = status_of(error)
        if on_error is not None:
            status = on_error(status)
    raise typer.Exit(int(status))


def status_of(error: BaseException) -> ExitStatus:
    """Return the exit status of an error."""
    import bmq

    match error:
        case (
            bmq.NegotiationError() | bmq.AuthenticationError() | bmq.RequestError() | bmq.errors.AdminError()
        ):
            return ExitStatus.REFUSED
        case bmq.ConnectionFailed() | bmq.RequestTimeout() | bmq.SessionClosed() | bmq.QueueClosed():
            return ExitStatus.UNREACHABLE
        case bmq.PostError() | bmq.ProtocolError():
            return ExitStatus.FAILED
        case _:
            return ExitStatus.USAGE
