# SPDX-License-Identifier: Apache-2.0
"""The runs of TLC in ``README.md``.

``python -m tests.groups.model.runs OUT`` writes a folder OUT/NAME for each run, with the specification and a
configuration. ``README.md`` says how to start TLC there.
"""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

__all__ = ["RUNS", "Election", "Run", "configuration", "module", "write"]

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
STUCK = ("NeverStuck",)
SMALL = (2, 1, 1)
TRACES = (3, 2, 2)
#: The faults that lead to the start ``Old``.
BEFORE = "beat cut early pause pause"


_mistake = partial(Run, size=(2, 1, 2), checks=())


RUNS: dict[str, Run | Election] = {
    # The election.
    "election": Election(),
    "election-kill": Election("kill"),
    "election-leave": Election("leave beat", steady=True),
    "election-cut": Election("cut", steady=True),
    "election-join": Election("leave", 3, 2, steady=True),
    "election-last": Election(at_last=True),
    "election-late-kill": Election("kill", prompt=False),
    # Planted mistakes of the election.
    "own-report": Election("leave", 3, 2, True, "any own report is a proof", checks=("FencesGrow",)),
    "others-first": Election("kill", mistake="OTHERS closes first"),
    "unread": Election(mistake="unread crowns do not count"),
    "first-way": Election(mistake="gives way after a first crown", prompt=False, checks=("Proof",)),
    "any-age": Election("kill", mistake="a report of any age is a proof", prompt=False, checks=("Proof",)),
    "redelivered": Election("kill", mistake="a redelivered report is a proof", checks=("Proof",)),
    "with-crown": Election(mistake="gives way with a crown"),
    "anybody": Election(mistake="gives way to anybody", checks=(), at_last=True),
    "never-wakes": Election(mistake="never wakes up", checks=(), at_last=True),
    "no-time": Election("kill", mistake="no time", checks=(), at_last=True),
    # Guarantees, every state.
    "kill": Run("kill"),
    "failover": Run("failover"),
    "join": Run(joined=2),
    "pause": Run("pause", any_clock=True),
    "leave": Run("leave"),
    "leave-225": Run("leave", (2, 2, 5)),
    "cut-225": Run("cut", (2, 2, 5)),
    "cut-211": Run("cut", (2, 1, 1)),
    "leave-322": Run("leave", (3, 2, 2)),
    "thrift": Run("leave", (2, 1, 0), checks=(*STUCK, "Thrift")),
    "old": Run(f"kill {BEFORE}", (3, 1, 2), start="Old"),
    "old-reached": Run(BEFORE, (3, 1, 0), checks=("NotOld",), constraint="WayOld"),
    "claimant-reached": Run(
        "",
        (3, 1, 0),
        start="empty",
        mistake="leads before the crown is back",
        checks=("NotClaimant",),
        constraint="WayClaimant",
    ),
    # Pairs of faults.
    "kill-failover": Run("kill failover"),
    "failover-pause-212": Run("failover pause", (2, 1, 2), any_clock=True),
    # Everything is handled at last.
    "last-none": Run("", SMALL, start="empty", at_last=True),
    "last-kill": Run("kill", SMALL, at_last=True),
    "last-failover": Run("failover", SMALL, at_last=True),
    "last-leave": Run("leave", SMALL, at_last=True),
    "last-join": Run("", SMALL, joined=1, at_last=True),
    "last-pause": Run("pause", SMALL, any_clock=True, at_last=True),
    "last-crash": Run("crash", SMALL, at_last=True),
    "last-cut": Run("cut", SMALL, at_last=True),
    "last-kill-222": Run("kill", (2, 2, 2), at_last=True),
    # Planted mistakes.
    "absent": _mistake("leave", size=(2, 1, 0), mistake="absent is released", checks=("Thrift",)),
    "old-reports": _mistake(
        f"kill {BEFORE}", size=(3, 1, 2), start="Old", mistake="old reports are believed"
    ),
    "any-grant": _mistake(
        f"kill beat beat {BEFORE}", size=(3, 1, 2), start="Old", orders=2, mistake="any grant is believed"
    ),
    "reused": _mistake("kill", size=(3, 1, 2), any_clock=True, mistake="fences are reused"),
    "renew": _mistake("cut beat", mistake="old orders renew"),
    "lease": _mistake("cut", mistake="lease ignored"),
    "collects": _mistake("cut", mistake="collects no reports"),
    "keeps": _mistake("cut", mistake="keeps lost buckets"),
    "priority": _mistake("pause", any_clock=True, mistake="same priority"),
    "confirmed": _mistake("kill", mistake="confirmed at once"),
    "withdraws": _mistake("", size=(2, 2, 2), joined=1, mistake="withdraws at once"),
    "no-wait": _mistake("failover", size=(2, 2, 2), joined=1, mistake="no wait for the old owner"),
    "claimant": _mistake(
        "kill", size=(3, 1, 2), start="Claimant", any_clock=True, mistake="leads before the crown is back"
    ),
    "equal": _mistake("kill cut", size=(3, 1, 0), mistake="leaders are equal", checks=("OneTop",)),
    "at-once": _mistake("pause", any_clock=True, mistake="bundles at once"),
    "recalled": _mistake("", size=(2, 2, 2), joined=1, mistake="keeps recalled bundles", checks=STUCK),
    "beside": _mistake("", size=(2, 2, 3), joined=1, mistake="drains beside a bundle"),
    "draining": _mistake("", size=(2, 2, 2), joined=1, mistake="bundles while draining", checks=STUCK),
    "lost-bundles": _mistake("cut", mistake="keeps lost bundles"),
    "replace": _mistake("pause", any_clock=True, mistake="bundles replace subscriptions"),
    # Mistakes that the properties do not show.
    "valid-leave": _mistake("leave", orders=2, mistake="old orders are valid", checks=STUCK),
    "valid-join": _mistake(
        "", size=(2, 2, 2), joined=1, orders=2, mistake="old orders are valid", checks=STUCK
    ),
    "opens": _mistake("failover", size=(2, 2, 2), joined=1, mistake="opens early", checks=STUCK),
    # Traces.
    "traces-a": Run("leave kill", TRACES, joined=2, start="empty", traces=True),
    "traces-b": Run("cut cut crash", TRACES, start="empty", traces=True),
    "traces-c": Run("cut kill beat beat", TRACES, joined=1, start="empty", orders=2, traces=True),
    "traces-d": Run(
        "pause pause pause failover beat", TRACES, start="empty", orders=2, any_clock=True, traces=True
    ),
    "traces-e": Run("leave cut early early kill", TRACES, joined=2, start="empty", traces=True),
    "crowns-a": Election("leave kill cut beat beat", 3, 2, traces=True),
    "crowns-b": Election("kill", 3, traces=True),
    "crowns-c": Election("cut cut leave beat", 3, 1, traces=True),
    "crowns-d": Election("leave leave beat beat", 3, traces=True),
}


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


def write(out: Path, name: str) -> None:
    """Write the folder of a run."""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(FOLDER.glob("*.tla")):
        shutil.copy(path, folder)
    (folder / "MC.tla").write_text(module(RUNS[name]), "utf-8")
    (folder / "MC.cfg").write_text(configuration(RUNS[name]), "utf-8")


if __name__ == "__main__":
    for each in RUNS:
        write(Path(sys.argv[1]), each)
