# SPDX-License-Identifier: Apache-2.0
"""What the exit status of ``bmq`` says."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitStatus"]


class ExitStatus(IntEnum):
    """Exit statuses."""

    #: Everything was done.
    OK = 0
    #: Not everything: a message was not accepted, an expression does not match, a step or a replay failed.
    FAILED = 1
    #: The request was wrong: an option, a URI, an expression, a file that cannot be read.
    USAGE = 2
    #: There is no broker, or it was lost, or it did not answer in time.
    UNREACHABLE = 3
    #: The broker said no: to the credentials, the session, a queue or a command.
    REFUSED = 4
    #: Ended by Ctrl-C.
    INTERRUPTED = 130
    #: Nobody reads what is printed any more.
    NO_READER = 141
    #: Ended by SIGTERM.
    TERMINATED = 143
