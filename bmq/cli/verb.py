# SPDX-License-Identifier: Apache-2.0
"""The frame around a verb: options and arguments, the broker, the form of the data, exit statuses."""

from __future__ import annotations

import gc
import inspect
import logging
import math
import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.models import ParameterInfo

import bmq
from bmq.cli.completion import complete_contexts, names_of
from bmq.cli.output import BadInput, ExitStatus, log_to_stderr, note, write_utf8
from bmq.cli.records import Form, form_of
from bmq.cli.target import BrokerTarget, target_of

_QUEUES = ("QUEUE", "SOURCE", "DESTINATION")


# ---- declarations


def option(form: str, text: str, default: Any = ..., **more: Any) -> Any:
    """Return the declaration of an option, as the default of a parameter or in ``Annotated``.

    Args:
        form: the names and the name of the value, as in the help: ``--interval -i SECONDS``.
        text: the help.
        default: the value without the option; by default False for a flag, and otherwise None.
        more: further arguments of ``typer.Option``.
    """
    words = form.split()
    names = [each for each in words if each.startswith("-")]
    return typer.Option(default, *names, metavar=" ".join(words[len(names) :]) or None, help=text, **more)


def argument(form: str, text: str, default: Any = ..., **more: Any) -> Any:
    """Return the declaration of an argument, as the default of a parameter or in ``Annotated``.

    Args:
        form: the name of the value, as in the help; names of queues and domains have candidates.
        text: the help.
        default: the value without the argument; by default None if the type permits it.
        more: further arguments of ``typer.Argument``.
    """
    words = form.strip("[].").split("|")
    queues, domains = any(word in _QUEUES for word in words), "DOMAIN" in words
    if queues or domains:
        more["autocompletion"] = names_of(queues=queues, domains=domains)
    return typer.Argument(default, metavar=form, help=text, show_default=False, **more)


OUTPUT = Annotated[
    Form, option("--output -o", "Form of the data: a table for people, a JSON object a line, or CSV.")
]
_JSON_FLAG = Annotated[bool, option("--json -j", "The same as --output json.")]
_PANEL = "Broker"


def _text(form: str, text: str, **more: Any) -> tuple[Any, Any]:
    return Annotated[str | None, option(form, text, rich_help_panel=_PANEL, **more)], None


_TIMEOUT = "Time limit for the connection, and for each request."
# The options of verbs with a broker: annotation and default, by parameter.
_BROKER_OPTIONS: dict[str, tuple[Any, Any]] = {
    "broker": _text("--broker -b NAME|URI", "URI of the broker, or the name of a context."),
    "timeout": (
        Annotated[float, option("--timeout SECONDS", _TIMEOUT, min=0.001, rich_help_panel=_PANEL)],
        10.0,
    ),
    "user": _text("--user NAME", "User name (BMQ_USER); the password comes from BMQ_PASSWORD or a prompt."),
    "password_file": _text("--password-file FILE", "File that contains the password."),
    "ca": _text("--ca FILE", "File with trusted certificates, for tcps://."),
    "cert": _text("--cert FILE", "File with this client's certificate."),
    "key": _text("--key FILE", "File with the key of the certificate."),
    "server_name": _text("--server-name NAME", "Name in the broker's certificate."),
    "context": _text(
        "--context NAME",
        "Name of a context (BMQ_CONTEXT), as listed by bmq contexts.",
        autocompletion=complete_contexts,
    ),
}


# ---- verbs

Function = Callable[..., int | Coroutine[Any, Any, int | None] | None]


def verb(
    name: str,
    *,
    broker: bool = True,
    logs: bool = True,
    service: bool = False,
    failed: ExitStatus | None = None,
) -> Callable[[Function], Callable[..., None]]:
    """Make a command of a function or a coroutine function, which returns the exit status; None means OK.

    Args:
        name: the name of the verb.
        broker: whether the first parameter is the :class:`bmq.cli.target.BrokerTarget`: the command then has
            the broker's options besides its own.
        logs: whether log lines go to stderr; otherwise the function configures logging itself.
        service: whether SIGTERM is the orderly end, with status 0.
        failed: exit status of every error; None for the status of :func:`status_of`.
    """

    def decorate(function: Function) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        own = list(inspect.signature(function).parameters.values())[1 if broker else 0 :]
        parameters: list[inspect.Parameter] = []
        for each in own:
            parameters.append(_declared(each, hints[each.name]))
            if each.name == "output":
                parameters.append(_keyword("json", _JSON_FLAG, default=False))
        queues = [each.name for each in parameters if _is_queue(each)]
        if broker:
            parameters += [_keyword(key, hint, default) for key, (hint, default) in _BROKER_OPTIONS.items()]

        @wraps(function)
        def command(**arguments: Any) -> None:
            def run() -> Any:
                _check_finite(arguments)
                if "output" in arguments:
                    arguments["output"] = form_of(arguments["output"], json=arguments.pop("json"))
                    if arguments["output"] is not Form.TABLE:
                        write_utf8()
                target = [_take_broker(name, arguments, queues)] if broker else []
                # Ctrl-C and SIGTERM cancel a coroutine, so that the verb closes its connections.
                finish: Any = bmq.run if inspect.iscoroutinefunction(function) else None  # imports the client
                if not gc.isenabled():  # see bmq.cli.script: the modules so far are never scanned
                    gc.freeze()
                    gc.enable()
                result: Any = function(*target, **arguments)
                return result if finish is None else finish(result)

            _guarded(name, run, logs=logs, failed=failed, service=service)

        signed: Any = command
        signed.__signature__ = inspect.Signature(parameters)
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _declared(parameter: inspect.Parameter, hint: Any) -> inspect.Parameter:
    """Return a parameter whose declaration is a part of its annotation."""
    declaration = default = parameter.default
    if isinstance(declaration, ParameterInfo):
        default, declaration.default = declaration.default, ...
        if default is ... and (hint is bool or type(None) in get_args(hint)):
            default = False if hint is bool else None
        hint = Annotated[hint, declaration]
    return _keyword(parameter.name, hint, parameter.empty if default is ... else default)


def _is_queue(parameter: inspect.Parameter) -> bool:
    """Whether a value is the URI of a queue, and never a domain."""
    declarations = getattr(parameter.annotation, "__metadata__", ())
    words = [(getattr(each, "metavar", None) or "").strip("[].").split("|") for each in declarations]
    return any(each[0] in _QUEUES and "DOMAIN" not in each for each in words)


def _check_finite(arguments: dict[str, Any]) -> None:
    """Refuse infinity and NaN, which the limits of an option let through."""
    for name, value in arguments.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise BadInput(
                f"--{name.replace('_', '-')} must be a finite number, not {value}: leave the option out, or "
                "give a large number"
            )


def _take_broker(name: str, arguments: dict[str, Any], queues: list[str]) -> BrokerTarget:
    """Take the broker's options out of the arguments, and put its default domain in front of queues."""
    shared = {key: arguments.pop(key) for key in _BROKER_OPTIONS}
    if name == "doctor" and _is_broker(arguments["queue"]):  # takes either
        for given in ("broker", "context"):
            if shared[given] is not None:
                raise BadInput(f"give one broker: {arguments['queue']} or --{given} {shared[given]}")
        shared["broker"] = arguments["queue"]
        arguments["queue"] = None
    for argument in dict.fromkeys([*queues, "queue", "domain", "what"]):
        for each in _listed(arguments.get(argument)):
            if _is_broker(each):
                raise BadInput(f"{each} is a broker, not a queue: bmq {name} ... --broker {each}")
    target = target_of(name, shared, timeout=shared["timeout"])

    def whole(text: Any) -> Any:
        bare = isinstance(text, str) and text and "://" not in text and not text.startswith("-")
        return f"bmq://{target.domain}/{text}" if bare else text

    for queue in queues if target.domain else ():
        uris = [whole(each) for each in _listed(arguments[queue])]
        arguments[queue] = uris if type(arguments[queue]) is list else uris[0]
    return target


def _is_broker(text: object) -> bool:
    """Whether a text is the address of a broker rather than the URI of a queue."""
    return isinstance(text, str) and text.startswith(("tcp://", "tcps://"))


def _listed(given: Any) -> list[Any]:
    return given if type(given) is list else [given]  # pyright: ignore[reportUnknownVariableType]


def _guarded(
    name: str, run: Callable[[], int | None], *, logs: bool, failed: ExitStatus | None, service: bool
) -> None:
    """Run a verb, and turn its result or its error into an exit status.

    Raises:
        typer.Exit: always.
    """
    if logs:
        log_to_stderr(logging.WARNING, f"bmq {name}: %(message)s")
    try:
        try:
            status = run() or ExitStatus.OK
        except ExceptionGroup as group:  # of tasks side by side: one line gives the reason
            raise group.exceptions[0] from None
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
        status = status_of(error) if failed is None else failed
    raise typer.Exit(int(status))


def status_of(error: BaseException) -> ExitStatus:
    """Return the exit status of an error."""
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
