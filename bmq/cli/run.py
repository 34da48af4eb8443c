# SPDX-License-Identifier: Apache-2.0
"""``bmq run`` and ``bmq docs``: the verbs that import an app."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import bmq
from bmq._logging import Log
from bmq.cli.output import BadInput, ExitStatus, emit, log_to_stderr, note, write_utf8
from bmq.cli.processes import NUMBER, Child, Supervisor
from bmq.cli.verb import argument, option, verb
from bmq.workers.probe import HealthAddressError, address_of

_MOST: Final = 256
_LEVELS: Final = ("debug", "info", "warning", "error")
_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PROCESS_FORMAT: Final = "%(asctime)s %(levelname)s [{}] %(name)s: %(message)s"


@verb("run", broker=False, logs=False)
async def run(
    target: str = argument("MODULE[:APP]", "The bmq.App: module, and name in the module."),
    directory: Path = option("--dir -d DIR", "Directory that is searched for modules first.", Path()),
    reload: bool = option("--reload", "Restart when a Python file in DIR changes; for development."),
    processes: int = option("--processes -n N", "Number of processes.", 1, min=1, max=_MOST),
    health: str | None = option(
        "--health HOST:PORT",
        "Address for /livez, /readyz and /metrics, instead of the app's own.",
        show_default=False,
    ),
    log_level: str | None = option(
        "--log-level LEVEL",
        f"One of {', '.join(_LEVELS)}. Default: the program's own level, or info.",
        show_default=False,
    ),
) -> int | None:
    """Run an app, until SIGTERM or Ctrl-C.

    APP is a bmq.App, or a function without arguments that returns an App; the default is "app". After the
    first signal running handlers may finish; the second signal cancels the handlers.

    With --processes, a supervisor runs N processes of the app, restarts processes that fail, and answers for
    all processes at the health address; each metric has the label process. BMQ_PROCESS is the number of a
    process, from 1. SIGHUP restarts the processes one after another.

    A line on standard error reports that the handlers receive messages, for each process. The app appears in
    the broker's log and in bmq explain under the name MODULE:APP, unless the app has its own process_name.

    A program that configures logging at import keeps its configuration. Otherwise log lines go to standard
    error with time, level, the number of several processes, and logger.

    The exit status is 0 after an orderly end, 2 without an app, 3 without a broker, 4 if the broker refuses,
    and 1 if the app fails otherwise. With --processes, these failures end the run only if no process starts.
    A health address that cannot be used, for instance an address of another program, is a failure of the app
    with status 1 for any number of processes. A malformed address is wrong usage with status 2.

    [bold]Examples[/]

    $ bmq run shop.orders

    $ bmq run shop.orders:app --reload --log-level debug

    $ bmq run shop.orders:app --processes 4 --health 0.0.0.0:8080
    """
    if log_level is not None and log_level not in _LEVELS:
        raise BadInput(f"--log-level must be one of {', '.join(_LEVELS)}, not {log_level!r}")
    address = address_of(health) if health is not None else None
    child = Child.adopt() if os.name == "posix" else None
    if child is None and (reload or processes > 1):
        if os.name != "posix":
            raise BadInput("--processes and --reload need Linux, macOS or WSL")
        _configure_logging(log_level)
        arguments = ["-m", "bmq", "run", target, "--dir", str(directory)]
        if log_level is not None:
            arguments += ["--log-level", log_level]
        if health is not None:
            arguments += ["--health", health]
        watched = changes(directory) if reload else None
        supervisor = Supervisor(arguments, processes, health=address, changes=watched)
        note(f"bmq run: {target} in {processes} process{'es' if processes > 1 else ''}, until Ctrl-C")
        try:
            return await supervisor.run()
        except HealthAddressError as error:
            note(f"bmq run: {error}")
            return ExitStatus.FAILED
    try:
        app = find_app(target, directory)
    except (BadInput, bmq.Error):
        raise
    except Exception as error:
        _configure_logging(log_level)
        error.__traceback__ = _outside(error.__traceback__)
        Log("bmq").exception("%s cannot be imported", target)
        return ExitStatus.FAILED
    _configure_logging(log_level)
    if "options" not in app._options:
        app._options.setdefault("process_name", target)
    if address is not None:
        app._probe.address = address
    try:
        if child is not None:
            return await child.run(app)
        note(f"bmq run: {target}, until Ctrl-C")
        app._begun().add_done_callback(lambda _: note(f"bmq run: {target} is ready and receives messages"))
        await app.run()
    except bmq.Error:
        raise
    except HealthAddressError as error:
        note(f"bmq run: {error}")
        return ExitStatus.FAILED
    except Exception:
        Log("bmq").exception("the app has failed")
        return ExitStatus.FAILED
    return None


def _outside(traceback: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback after the frames of this module and of the import."""
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if file not in (__file__, importlib.__file__) and not file.startswith("<frozen importlib"):
            return traceback
        traceback = traceback.tb_next
    return None


def _configure_logging(level: str | None) -> None:
    """Log to standard error, unless the imported program has configured logging."""
    root = logging.getLogger()
    if not root.handlers:
        number = os.environ.get(NUMBER)
        log_to_stderr(logging.INFO, _PROCESS_FORMAT.format(number) if number else _LOG_FORMAT)
    if level is not None:
        root.setLevel(level.upper())


def find_app(target: str, directory: Path) -> bmq.App[Any]:
    """Import a module and return its app.

    Raises:
        BadInput: the module does not exist, or has no app.
    """
    name, _, attribute = target.partition(":")
    if not all(part.isidentifier() for part in (*name.split("."), attribute or "app")):
        raise BadInput(f"the app is MODULE or MODULE:APP, for example shop.orders:app, not {target!r}")
    sys.path.insert(0, str(directory.resolve()))
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise BadInput(f"cannot import {name}: {error}; looked in {directory.resolve()} first") from None
    app = getattr(module, attribute or "app", None)
    if inspect.isfunction(app) and all(
        each.default is not each.empty or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        for each in inspect.signature(app).parameters.values()
    ):
        app = app()
    if not isinstance(app, bmq.App):
        there = [each for each, value in vars(module).items() if isinstance(value, bmq.App)]
        hint = f"; known apps: {', '.join(f'{name}:{each}' for each in there)}" if there else ""
        raise BadInput(f"{name} has no bmq.App with the name {attribute or 'app'!r}{hint}")
    return app  # pyright: ignore[reportUnknownVariableType]


async def changes(directory: Path) -> AsyncIterator[Path]:
    """Yield a new, deleted or changed Python file below a directory, after each change."""
    # The type of its events is unknown without trio.
    from watchfiles import PythonFilter, awatch  # pyright: ignore[reportUnknownVariableType]

    async for found in awatch(directory, watch_filter=PythonFilter()):
        yield Path(min(path for _, path in found))


# ---- docs


@verb("docs", broker=False)
async def docs(
    target: str = argument("MODULE[:APP]", "The bmq.App: module, and name in the module."),
    yaml: bool = option("--yaml", "Print YAML instead of JSON."),
    title: str | None = option("--title", "Title of the document; by default MODULE.", show_default=False),
    release: str | None = option(
        "--release VERSION",
        "Version of the application; by default __version__ of the module, or 0.1.0.",
        show_default=False,
    ),
    directory: Path = option("--dir -d DIR", "Directory that is searched for modules first.", Path()),
) -> None:
    """Print the AsyncAPI 3 document of an app: queues, messages, schemas, expressions, retries, dead letters.

    APP is a bmq.App, or a function without arguments that returns an App; the default is "app". The command
    imports the module, reads the registered handlers, and connects to no broker. The description of the
    document is the docstring of the module.

    [bold]Examples[/]

    $ bmq docs shop.orders > asyncapi.json

    $ bmq docs shop.orders:app --yaml
    """
    from bmq import asyncapi

    app = find_app(target, directory)
    name = target.partition(":")[0]
    module = sys.modules[name]
    document = asyncapi.document(
        app,
        title=name if title is None else title,
        version=str(getattr(module, "__version__", "0.1.0")) if release is None else release,
        description=inspect.getdoc(module),
    )
    write_utf8()
    emit(*(_as_yaml(document) if yaml else json.dumps(document, indent=2)).splitlines())


def _as_yaml(document: dict[str, Any]) -> str:
    yaml: Any = importlib.import_module("yaml")  # some releases of its type stubs have unknown types
    # Values that occur twice would become anchors and aliases.
    plain = json.loads(json.dumps(document))
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100))
