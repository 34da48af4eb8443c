# SPDX-License-Identifier: Apache-2.0
"""The ``bmq`` command: one module for each verb, imported when the verb is used.

Data goes to stdout, all other output to stderr; colours and progress bars appear only on terminals. The exit
statuses are those of :class:`bmq.cli.status.ExitStatus`.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bmq.broker import Broker
    from bmq.console import Console

__all__ = ["main"]

_NEEDS_EXTRA = "bmq: the command line needs an extra: pip install 'bmq[cli]' (bmq broker runs without it)\n"


_WINDOWS = os.name == "nt"


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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``bmq`` command.

    Args:
        argv: the arguments without the program's name; those of the process by default.

    Returns:
        The process's exit status.
    """
    _write_any_character()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--version"]:
        from bmq._version import __version__

        print(f"bmq {__version__}")
        return 0
    if arguments[:1] == ["broker"]:
        from bmq.broker.main import run

        return run(arguments[1:], console=_console)
    try:
        from bmq.cli.app import run_app
    except KeyboardInterrupt:
        return 130  # Ctrl-C during the import; ExitStatus.INTERRUPTED
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.stderr.write(_NEEDS_EXTRA)
        return 2
    return run_app(arguments, completing="_BMQ_COMPLETE" in os.environ)
