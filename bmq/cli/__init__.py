"""The ``bmq`` command: one module a verb, imported when the verb is used.

Data goes to stdout, everything else to stderr; colours and bars appear on terminals only. The exit statuses
are those of :class:`bmq.cli.status.Status`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bmq.broker import Broker
    from bmq.console import Console

__all__ = ["VERBS", "main"]

#: The verbs, in the order of the help: the module of each, and what it is for. A module has a function
#: ``command``.
VERBS: dict[str, tuple[str, str]] = {
    "post": ("bmq.cli.post", "Post messages: arguments, files, lines, NDJSON."),
    "tail": ("bmq.cli.tail", "Print messages as they come; take them only when told to."),
    "peek": ("bmq.cli.peek", "List what waits in a queue without taking it."),
    "purge": ("bmq.cli.purge", "Delete what waits in a queue or a domain."),
    "queues": ("bmq.cli.queues", "List queues with what they hold."),
    "stat": ("bmq.cli.stat", "Show what was posted, delivered and confirmed."),
    "top": ("bmq.cli.top", "Watch queues, rates, consumers and clients."),
    "console": ("bmq.cli.console", "Serve a web page: queues over time, consumers, messages."),
    "explain": ("bmq.cli.explain", "Say why a message is still in its queue."),
    "check": ("bmq.cli.check", "Check subscription expressions, and try them on properties."),
    "doctor": ("bmq.cli.doctor", "Try everything between here and a queue, step by step."),
    "bench": ("bmq.cli.bench", "Measure a broker: producing, consuming, round trips."),
    "admin": ("bmq.cli.admin", "Send a command in the broker's own language."),
    "decode": ("bmq.cli.decode", "Take apart recorded bytes, field by field."),
    "record": ("bmq.cli.record", "Write down what a client and a broker say to each other."),
    "replay": ("bmq.cli.replay", "Play one half of a recorded conversation."),
    "broker": ("bmq.cli.broker", "Run the embedded broker, for development and tests."),
}

_NEEDS_EXTRA = "bmq: the command line needs an extra: pip install 'bmq[cli]' (bmq broker runs without it)\n"


def _console(broker: Broker, address: str, users: Mapping[str, str] | None) -> Console:
    """Return the page of an embedded broker.

    Raises:
        ModuleNotFoundError: the extra is missing.
        UsageError: the address is none.
    """
    from bmq import console

    return console.beside(broker, address, users=users, token=os.environ.get("BMQ_CONSOLE_TOKEN"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``bmq`` command.

    Args:
        argv: the arguments without the program's name; those of the process by default.

    Returns:
        The process's exit status.
    """
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
        return 130  # before there was anything to interrupt
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.stderr.write(_NEEDS_EXTRA)
        return 2
    completing = "_BMQ_COMPLETE" in os.environ
    return run_app(arguments, VERBS if completing else {})
