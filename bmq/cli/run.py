# SPDX-License-Identifier: Apache-2.0
"""``bmq run``."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import bmq
from bmq.cli.messages import BadInput
from bmq.cli.output import log_to_stderr, note
from bmq.cli.status import ExitStatus
from bmq.cli.target import offline

__all__ = ["changes", "command", "find_app"]

# Seconds between two checks of the files.
_LOOK_EVERY: Final = 0.3
_LEVELS: Final = ("debug", "info", "warning", "error")
_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


@offline("run", logs=False)
async def command(
    target: Annotated[
        str, typer.Argument(metavar="MODULE[:APP]", help="The bmq.App: module, and name in the module.")
    ],
    directory: Annotated[
        Path, typer.Option("--dir", "-d", metavar="DIR", help="Directory that is searched for modules first.")
    ] = Path(),
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when a Python file in DIR changes; for development.")
    ] = False,
    log_level: Annotated[
        str | None,
        typer.Option(
            "--log-level",
            metavar="LEVEL",
            help=f"One of {', '.join(_LEVELS)}. Default: the program's own level, or info.",
            show_default=False,
        ),
    ] = None,
) -> int | None:
    """Run an app, until SIGTERM or Ctrl-C.

    APP is a bmq.App, or a function without arguments that returns an App; the default is "app". After the
    first signal running handlers may finish; the second signal cancels the handlers.

    A program that configures logging at import keeps its configuration. Otherwise log lines go to standard
    error with time, level and logger.

    The exit status is 0 after an orderly end, 2 without an app, 3 without a broker, 4 if the broker refuses,
    and 1 if the app fails otherwise.

    [bold]Examples[/]

    $ bmq run shop.orders

    $ bmq run shop.orders:app --reload --log-level debug
    """
    if log_level is not None and log_level not in _LEVELS:
        raise BadInput(f"--log-level must be one of {', '.join(_LEVELS)}, not {log_level!r}")
    if reload:
        return await _supervise(target, directory, log_level)
    app = find_app(target, directory)
    _configure_logging(log_level)
    note(f"bmq run: {target}, until Ctrl-C")
    try:
        await app.run()
    except bmq.Error:
        raise
    except Exception:
        logging.getLogger("bmq").exception("the app has failed")
        return ExitStatus.FAILED
    return None


def _configure_logging(level: str | None) -> None:
    """Log to standard error, unless the imported program has configured logging."""
    root = logging.getLogger()
    if not root.handlers:
        log_to_stderr(logging.INFO, _LOG_FORMAT)
    if level is not None:
        root.setLevel(level.upper())


def find_app(target: str, directory: Path) -> bmq.App[Any]:
    """Import a module and return its app.

    Raises:
        BadInput: the module does not exist, or has no app.
    """
    name, _, attribute = target.partition(":")
    sys.path.insert(0, str(directory.resolve()))
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise BadInput(f"cannot import {name}: {error}; looked in {directory.resolve()} first") from None
    app = getattr(module, attribute or "app", None)
    if app is not None and not isinstance(app, bmq.App) and callable(app):
        app = app()
    if not isinstance(app, bmq.App):
        there = [each for each, value in vars(module).items() if isinstance(value, bmq.App)]
        hint = f"; known apps: {', '.join(f'{name}:{each}' for each in there)}" if there else ""
        raise BadInput(f"{name} has no bmq.App with the name {attribute or 'app'!r}{hint}")
    return app  # pyright: ignore[reportUnknownVariableType]


async def _supervise(target: str, directory: Path, log_level: str | None) -> int:
    """Run the app in a separate process, and in a new process after every change."""
    arguments = ["-m", "bmq", "run", target, "--dir", str(directory)]
    if log_level is not None:
        arguments += ["--log-level", log_level]
    changed = changes(directory)
    change = asyncio.ensure_future(anext(changed))
    while True:
        # A separate session: Ctrl-C reaches this process, and this process signals the app once.
        process = await asyncio.create_subprocess_exec(sys.executable, *arguments, start_new_session=True)
        ended = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait({ended, change}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                if not ended.result():
                    return ExitStatus.OK
                note(f"bmq run: ended with status {ended.result()}; waiting for a change")
                await asyncio.wait({change})
        finally:
            if not ended.done():
                process.send_signal(signal.SIGTERM)
                await asyncio.shield(ended)
            if not change.done():
                change.cancel()
        note(f"bmq run: {change.result()} has changed, restarting")
        change = asyncio.ensure_future(anext(changed))


async def changes(directory: Path) -> AsyncIterator[Path]:
    """Yield each new, deleted or changed Python file below a directory."""
    before = await asyncio.to_thread(_files, directory)
    while True:
        await asyncio.sleep(_LOOK_EVERY)
        now = await asyncio.to_thread(_files, directory)
        different = [path for path in {**before, **now} if before.get(path) != now.get(path)]
        before = now
        if different:
            yield different[0]


def _files(directory: Path) -> dict[Path, int]:
    """Return the time of the last change of each Python file."""
    found: dict[Path, int] = {}
    for folder, folders, names in os.walk(directory):
        folders[:] = [each for each in folders if each not in _SKIPPED and not each.startswith(".")]
        for name in names:
            if name.endswith(".py"):
                path = Path(folder, name)
                try:
                    found[path] = path.stat().st_mtime_ns
                except OSError:
                    pass  # deleted meanwhile
    return found
