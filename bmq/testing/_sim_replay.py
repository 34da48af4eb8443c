# SPDX-License-Identifier: Apache-2.0
"""The choice of seeds, and the repetition of a run."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from bmq.errors import UsageError

if TYPE_CHECKING:
    from bmq.testing._simulation import Simulation

__all__ = ["replayed", "seeds_to_run", "skipped_faults"]

#: The environment variables with the seed to repeat, and the numbers of faults to leave out.
REPLAY: Final = "BMQ_SIM_SEED"
SKIP: Final = "BMQ_SIM_SKIP"


def seeds_to_run(first: int, count: int) -> list[int]:
    """Return the seeds: from the arguments, or the seed in the environment.

    Raises:
        UsageError: the environment variable is no number.
    """
    given = os.environ.get(REPLAY)
    if not given:
        return list(range(first, first + count))
    try:
        return [int(given)]
    except ValueError:
        raise UsageError(f"{REPLAY}={given!r} is not a seed") from None


def skipped_faults() -> frozenset[int]:
    """Return the numbers of faults to leave out, from the environment."""
    given = os.environ.get(SKIP, "")
    return frozenset(int(each) for each in given.replace(",", " ").split() if each.isdigit())


@contextmanager
def replayed(simulation: Simulation) -> Generator[None]:
    """Add the way of repetition to a failure; trace a repeated run."""
    handler: logging.Handler | None = None
    before = os.environ.get("BMQ_TRACE")
    if os.environ.get(REPLAY):
        os.environ.setdefault("BMQ_TRACE", "on")
        handler = logging.StreamHandler()
        handler.setFormatter(_Virtual(simulation))
        logging.getLogger("bmq").addHandler(handler)
    try:
        yield
    except Exception as error:
        skipped = f" {SKIP}={os.environ[SKIP]}" if os.environ.get(SKIP) else ""
        error.add_note(f"{simulation.report()}\nrepeat the run with {REPLAY}={simulation.seed}{skipped}")
        raise
    finally:
        if handler is not None:
            logging.getLogger("bmq").removeHandler(handler)
            if before is None:
                os.environ.pop("BMQ_TRACE", None)


class _Virtual(logging.Formatter):
    """Log lines with virtual times."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation

    def format(self, record: logging.LogRecord) -> str:
        return f"{self._simulation.now:12.6f} {record.name}: {super().format(record)}"
