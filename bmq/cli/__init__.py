# SPDX-License-Identifier: Apache-2.0
"""The ``bmq`` command: one module for each verb, imported when the verb is used.

Data goes to stdout, all other output to stderr; colours and progress bars appear only on terminals. The exit
statuses are those of :class:`bmq.cli.status.ExitStatus`.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bmq._version import install

if TYPE_CHECKING:
    from bmq.broker import Broker
    from bmq.console import Console

__all__ = ["main", "script"]

_NEEDS_EXTRA = f"bmq: the command line needs an extra: {install('cli')} (bmq broker runs without it)\n"

# Verbs with the usual garbage collection: the broker, which does not use typer, and apps of the user.
_UNCHANGED = ("broker", "run", "docs")
_WINDOWS = os.name == "nt"


def _open_closed_descriptors() -> None:
    """Open the null device where standard input, output or error was closed (``bmq post QUEUE hi <&-``).

    Otherwise a socket or an event loop gets one of these numbers, and uvloop ends the process. Standard
    output is opened for reading only: data that goes nowhere is an error, and is not confirmed as printed.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free number
            if number == 1:
                sys.stdout = open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            elif number == 2:
                sys.stderr = open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _write_any_character() -> None:
    """Make standard output and error accept every character, instead of failing at the first unknown one.

    Python writes to files and pipes in the encoding of the system. On Windows this is a code page of 256
    characters, and messages have more: the output is UTF-8 there, unless PYTHONIOENCODING names another
    encoding. On other systems, characters that the locale lacks are written as escapes.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "utf8"):
            if _WINDOWS and not os.environ.get("PYTHONIOENCODING"):
                stream.reconfigure(encoding="utf-8")
            else:
                stream.reconfigure(errors="backslashreplace")


def _console(broker: Broker, address: str, users: Mapping[str, str] | None) -> Console:
    """Return the page of an embedded broker.

    Raises:
        ModuleNotFoundError: the extra is missing.
        UsageError: the address is not legal.
    """
    from bmq import console

    return console.beside(broker, address, users=users, token=os.environ.get("BMQ_CONSOLE_TOKEN") or None)


def _give_up_output() -> None:
    """Drop the buffered output: the interpreter would write it again at its end, and fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``bmq`` command.

    Args:
        argv: the arguments without the program's name; those of the process by default.

    Returns:
        The process's exit status.
    """
    _write_any_character()
    status = 0
    try:
        status = _main(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison] - None if closed
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130  # Ctrl-C during an import; ExitStatus.INTERRUPTED
    except BrokenPipeError:
        _give_up_output()
        return 141  # ExitStatus.NO_READER
    except OSError as error:  # for example, the disk is full
        _give_up_output()
        if not status:
            sys.stderr.write(f"bmq: the output cannot be written: {error}\n")
        return status or 2  # ExitStatus.USAGE, as of verbs
    return status


def _main(arguments: list[str]) -> int:
    """Run the command; output may fail."""
    if arguments[:1] == ["--version"]:
        from bmq._version import __version__

        print(f"bmq {__version__}")
        return 0
    if arguments[:1] == ["broker"]:
        from bmq.broker.main import run

        try:
            return run(arguments[1:], console=_console)
        except SystemExit as end:  # of argparse, after the help or a mistake
            return end.code if isinstance(end.code, int) else 2
    try:
        from bmq.cli.app import run_app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.stderr.write(_NEEDS_EXTRA)
        return 2
    return run_app(arguments, completing="_BMQ_COMPLETE" in os.environ)


def script() -> int:
    """Run the ``bmq`` command as a process of its own: :func:`main`, and less garbage collection.

    Scans of new modules and functions find hardly any garbage, and would take a quarter of the time of a
    short command. The collector therefore starts with the verb itself, and ignores the modules from then on
    and at the end of the interpreter. Verbs that import an app of the user are an exception: ``bmq.run`` then
    also excludes the app's modules, and the app's objects may rely on the last collection.

    Returns:
        The process's exit status.
    """
    _open_closed_descriptors()
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    if verb in _UNCHANGED:
        return main()
    gc.disable()
    status = main()
    gc.freeze()
    return status
