# SPDX-License-Identifier: Apache-2.0
r"""Output of all verbs: data on stdout, all other lines on stderr.

Brokers and messages contain text of unknown origin, and terminals obey some characters: control characters
set the title, move the cursor or hide lines, and others reverse the direction of writing. All verbs print
through this module or through :mod:`bmq.cli.consoles`. Both replace such characters by escapes (``\x1b``,
``\u202e``), on terminals, in pipes and in files alike. A verb with columns escapes the text first, with
:func:`bmq.cli.consoles.styled` or :func:`printable`, because an escape is wider than its character.

This module does not import rich, which takes a tenth of the time of a short command.
"""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

import bmq
from bmq._json import orjson
from bmq._version import install
from bmq._words import number, several, size
from bmq.wire.printable import printable as printable_in_part

# Failures of a verb with a line each.
_MOST_LISTED = 20
# Characters that JSON permits without an escape and a terminal may obey. JSON escapes ASCII itself, except
# DEL.
_UNASCII = re.compile("[\x7f-\U0010ffff]")


class ExitStatus(IntEnum):
    """Exit statuses."""

    #: The command did all of its work.
    OK = 0
    #: The command did only part of its work: a message was refused, an expression does not match, a step or a
    #: replay failed.
    FAILED = 1
    #: The request was wrong: an option, a URI, an expression, a file that cannot be read.
    USAGE = 2
    #: No broker, a lost broker, or no answer in time.
    UNREACHABLE = 3
    #: The broker refused: the credentials, the session, a queue or a command.
    REFUSED = 4
    #: Ended by Ctrl-C.
    INTERRUPTED = 130
    #: The reader of the output has gone.
    NO_READER = 141
    #: Ended by SIGTERM.
    TERMINATED = 143


class BadInput(ValueError):
    """The input is wrong; the message names the error and its place."""


@contextmanager
def needing(package: str, what: str, extras: str) -> Generator[None]:
    """Import an optional package in the block.

    Raises:
        BadInput: the package is missing; ``what``, such as "the page needs", begins the message.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise BadInput(f"{what} an extra: {install(extras)}") from None


# ---- data


def emit(*lines: str, flush: bool = False) -> None:
    """Print lines of data; tabs separate fields, and an embedded newline begins another line.

    Args:
        lines: the lines, without their ends.
        flush: whether a reader of a pipe sees the lines at once.
    """
    sys.stdout.write("".join([printable_lines(line) + "\n" for line in lines]))
    if flush:
        sys.stdout.flush()


def emit_json(value: Any) -> None:
    """Print a value as one line of JSON; control characters are JSON's own escapes."""
    try:
        made = orjson.dumps(value, default=jsonable).decode()
    except TypeError:  # a lone surrogate in a text: json escapes it, orjson refuses it
        made = json.dumps(value, default=jsonable)
    if not made.isprintable():
        made = _UNASCII.sub(_json_escape, made)
    sys.stdout.write(made + "\n")


def _json_escape(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


def jsonable(value: Any) -> Any:
    """Return a value of a kind that orjson does not write as one that it writes."""
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, tuple):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, Struct):
        return asdict(value)
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def write_utf8() -> None:
    """Write standard output as UTF-8: data for programs is the same on every terminal and in every locale."""
    stream: object = sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8")


def note(message: str, *, end: str = "\n") -> None:
    """Print a note for the user on stderr."""
    sys.stderr.write(printable_lines(message) + end)
    sys.stderr.flush()


def note_failure(count: int, failure: str, rest: str) -> None:
    """Print a failure on stderr; above a limit, print only once that further failures follow.

    Args:
        count: number of failures, this failure included.
        failure: the line about the failure.
        rest: the line after the limit.
    """
    if count <= _MOST_LISTED:
        note(failure)
    elif count == _MOST_LISTED + 1:
        note(rest)


def printable(content: str) -> str:
    """Return text as one line that is safe for a terminal: control characters are escapes."""
    return printable_in_part(content, len(content))


def printable_lines(content: str) -> str:
    """Return text that is safe for a terminal; lines and tabs are kept."""
    if content.replace("\n", "").replace("\t", "").isprintable():
        return content
    return "".join(c if c in "\n\t" or c.isprintable() else printable(c) for c in content)


class LogFormatter(logging.Formatter):
    """Formats log records for a terminal; further lines of a record are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record, with control characters as escapes."""
        return printable_lines(super().formatMessage(record)).replace("\n", "\n  ")

    def formatException(self, ei: Any) -> str:
        """Return the traceback of a record, with control characters as escapes."""
        return printable_lines(super().formatException(ei))


def log_to_stderr(level: int, form: str) -> None:
    """Log to standard error, unless logging is configured already.

    Args:
        level: lowest level of logged records.
        form: format of a line, as of :class:`logging.Formatter`.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter(form))
    logging.basicConfig(level=level, handlers=[handler])


# ---- dialog


def tell(standing: bmq.admin.Standing) -> ExitStatus:
    """Print which node answers, and return the exit status: FAILED unless the node is the queue's primary."""
    if not standing.gap and standing.node:
        note(f"{standing.node} at {standing.broker}, the primary of this queue, answers")
    return tell_gap(standing.gap)


def tell_gap(gap: str) -> ExitStatus:
    """Print why an answer is incomplete, and return the exit status: OK if the answer is complete."""
    if not gap:
        return ExitStatus.OK
    note(gap)
    return ExitStatus.FAILED


def confirmed(question: str, consequences: Iterable[str] = ()) -> bool:
    """Show the consequences and ask on the terminal; only ``y`` and ``yes`` confirm.

    Raises:
        BadInput: there is no terminal to ask on; the error has the consequences.
    """
    lines = list(consequences)
    if not has_terminal():
        raise BadInput("\n".join(["--yes is required without a terminal", *lines]))
    note("\n".join([*lines, f"{question} [y/N]"]), end=" ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def has_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def work_done(count: int, what: str, total: int, seconds: float) -> str:
    """Return the sum of a run: ``1,000 messages moved (1.0 MiB in 2.00 s, 500 a second)``."""
    speed = f", {number(count / seconds)} a second" if seconds > 1 else ""
    return f"{several(count, 'message')} {what} ({size(total)} in {seconds:.2f} s{speed})"


@contextmanager
def progress_bar(what: str, total: int | None, *, quiet: bool) -> Generator[Callable[[int], None]]:
    """Show a progress bar on stderr until the end of the block, if stderr is a terminal.

    Args:
        what: text in front of the bar.
        total: number of messages; None if unknown.
        quiet: whether to show no bar on a terminal, either.

    Returns:
        A function that takes the number of finished messages.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda finished: None  # without rich, whose import takes longer than a post
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(show_speed=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(what, total=total)
        yield lambda finished: progress.update(bar, completed=finished)
