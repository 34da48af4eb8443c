# SPDX-License-Identifier: Apache-2.0
"""The frame around a verb: the broker and its options, the form of the data, errors and exit statuses."""

from __future__ import annotations

import gc
import inspect
import logging
import math
import sys
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Annotated, Any, cast, get_type_hints

import typer
from typer.models import ParameterInfo

import bmq
from bmq.cli.options import BROKER_OPTIONS, is_queue
from bmq.cli.output import BadInput, ExitStatus, log_to_stderr, note, write_utf8
from bmq.cli.records import JSON_FLAG, Form, form_of
from bmq.cli.target import BrokerTarget, target_of

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
                parameters.append(_keyword("json", JSON_FLAG, default=False))
        queues = [each.name for each in parameters if _is_queue(each)]
        if broker:
            parameters += [_keyword(key, hint, default) for key, (hint, default) in BROKER_OPTIONS.items()]

        @wraps(function)
        def command(**arguments: Any) -> None:
            def run() -> int | None:
                _check_finite(arguments)
                if "output" in arguments:
                    arguments["output"] = form_of(arguments["output"], json=arguments.pop("json"))
                    if arguments["output"] is not Form.TABLE:
                        write_utf8()
                target = [_take_broker(name, arguments, queues)] if broker else []
                if inspect.iscoroutinefunction(function):
                    return _run(partial(function, *target, **arguments))
                _collect_garbage()
                return cast("int | None", function(*target, **arguments))

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
        hint = Annotated[hint, declaration]
    return _keyword(parameter.name, hint, parameter.empty if default is ... else default)


def _is_queue(parameter: inspect.Parameter) -> bool:
    declarations = getattr(parameter.annotation, "__metadata__", ())
    return any(is_queue(getattr(each, "metavar", None)) for each in declarations)


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
    shared = {key: arguments.pop(key) for key in BROKER_OPTIONS}
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


def _run(begin: Callable[[], Coroutine[Any, Any, int | None]]) -> int | None:
    """Run a verb. Ctrl-C and SIGTERM cancel the verb, so that the verb closes its connections."""
    run = bmq.run  # imports the client
    _collect_garbage()
    return run(begin())


def _collect_garbage() -> None:
    """Start the garbage collector if :func:`bmq.cli.script` has stopped it; never scan the modules so far."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


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
