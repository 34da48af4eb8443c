"""The ``bmq`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bmq._version import __version__

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``bmq`` command.

    Args:
        argv: the arguments without the program's name; those of the process by default.

    Returns:
        The process's exit status.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="bmq", description="Tools for BlazingMQ.")
    parser.add_argument("--version", action="version", version=f"bmq {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("broker", help="run the embedded broker, for development and tests", add_help=False)
    chosen, rest = parser.parse_known_args(arguments)
    assert chosen.command == "broker"
    from bmq.broker.main import run

    return run(rest)
