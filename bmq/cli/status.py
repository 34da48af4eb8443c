# SPDX-License-Identifier: Apache-2.0
"""Exit statuses of ``bmq``."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitStatus"]


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
