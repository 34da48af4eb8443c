# SPDX-License-Identifier: Apache-2.0
"""The runs of TLC in ``README.md``.

``python -m tests.groups.model.runs OUT`` writes a folder OUT/NAME for each run, with the specification and a
configuration. ``README.md`` says how to start TLC there.
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

__all__ = ["Election", "Run", "configuration", "module", "runs", "write"]

FOLDER = Path(__file__).parent
ELECTION_FAULTS: tuple[str, ...] = ("join", "leave", "kill", "cut", "beat")
FAULTS: tuple[str, ...] = ("join", "leave", "kill", "cut", "pause", "failover", "crash", "beat", "early")


class Run(NamedTuple):
    """A configuration: the faults, such as ``kill cut``, and members, buckets and messages.

    Attributes:
        joined: the members at the start, if fewer than all.
        start: steady, empty, ``Old`` or ``Claimant`` (see ``Cases.tla``).
        checks: invariants beside the guarantees.
        constraint: the states to visit, if not all.
        at_last: whether every fair run reaches a state of rest.
        traces: whether the run writes traces, for a test.
    """

    faults: str = ""
    size: tuple[int, int, int] = (3, 2, 5)
    joined: int | None = None
    start: str = "steady"
    orders: int = 1
    any_clock: bool = False
    mistake: str = "none"
    checks: tuple[str, ...] = ("NeverStuck",)
    constraint: str = ""
    at_last: bool = False
    traces: bool = False


class Election(NamedTuple):
    """A configuration of ``Crowns.tla``: the faults, and the number of members; else as for a :class:`Run`.

    Attributes:
        steady: whether member 1 leads at the start.
        prompt: whether the broker delivers at once.
    """

    faults: str = ""
    members: int = 2
    joined: int | None = None
    steady: bool = False
    mistake: str = "none"
    prompt: bool = True
    checks: tuple[str, ...] = ("Proof", "FencesGrow", "Covered")
    at_last: bool = False
    traces: bool = False


GUARANTEES = ("InOrder", "Exclusive", "NothingLost", "OneOwner", "OneBundle")


def configuration(run: Run | Election) -> str:
    """Return ``MC.cfg``."""
    election = isinstance(run, Election)
    members = run.members if election else run.size[0]
    constants: dict[str, object] = {
        "Joined": members if run.joined is None else run.joined,
        "Steady": run.steady if election else run.start != "empty",
        "Mistake": f'"{run.mistake}"',
    }
    if election:
        constants |= {"Count": members, "Reports": 1, "Prompt": run.prompt and not run.traces}
        constants |= {"Timely": run.at_last}
        checks, symmetry, constraint, start = run.checks, [], [], ""
    else:
        names = [f"m{number}" for number in range(1, members + 1)]
        constants |= {name: name for name in names} | {"Member": f"{{{', '.join(names)}}}"}
        constants |= {"Buckets": run.size[1], "Messages": run.size[2], "Window": 1, "Orders": run.orders}
        constants |= {"AnyClock": run.any_clock}
        checks, symmetry = (*GUARANTEES, *run.checks), ["SYMMETRY Symmetry"]
        constraint = [f"CONSTRAINT {run.constraint}"] if run.constraint else []
        start = "" if run.start in {"steady", "empty"} else run.start
    if run.traces:
        specification = [*([] if election else ["  Assigned <- Chosen"]), "SPECIFICATION SpecTrace"]
    elif run.at_last:
        specification = ["SPECIFICATION FairSpec", "PROPERTY AtLast"]
    else:
        specification = [f"SPECIFICATION Spec{start}", *symmetry]
    values = {
        name: str(value).upper() if isinstance(value, bool) else value for name, value in constants.items()
    }
    lines = ["CONSTANTS", *(f"  {name} = {value}" for name, value in values.items()), "  Faults <- FaultsDef"]
    lines += [*specification, *(f"INVARIANT {name}" for name in checks), *constraint]
    return "\n".join([*lines, "CHECK_DEADLOCK FALSE", ""])


def module(run: Run | Election) -> str:
    """Return ``MC.tla``."""
    if isinstance(run, Election):
        extended, constants, known = ("CrownTraces" if run.traces else "Crowns"), "", ELECTION_FAULTS
    else:
        extended, known = ("Traces" if run.traces else "Cases"), FAULTS
        names = ", ".join(f"m{number}" for number in range(1, run.size[0] + 1))
        constants = f"CONSTANTS {names}\n"
    faults = run.faults.split()
    counts = ", ".join(f"{fault} |-> {faults.count(fault)}" for fault in known)
    return f"---- MODULE MC ----\nEXTENDS {extended}\n{constants}FaultsDef == [{counts}]\n====\n"


def runs() -> dict[str, Run | Election]:
    """Return the rows of ``runs.toml``."""
    tables = tomllib.loads((FOLDER / "runs.toml").read_text("utf-8"))
    found: dict[str, Run | Election] = {name: Run(**row) for name, row in tables["Exclusive"].items()}
    return found | {name: Election(**row) for name, row in tables["Crowns"].items()}


def write(folder: Path, run: Run | Election) -> None:
    """Write the folder of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(FOLDER.glob("*.tla")):
        shutil.copy(path, folder)
    (folder / "MC.tla").write_text(module(run), "utf-8")
    (folder / "MC.cfg").write_text(configuration(run), "utf-8")


if __name__ == "__main__":
    for each, row in runs().items():
        write(Path(sys.argv[1]) / each, row)
