# SPDX-License-Identifier: Apache-2.0
"""The runs of TLC in ``README.md``.

``python -m tests.groups.model.runs OUT`` writes a folder OUT/NAME for each run, with the specification and a
configuration. ``README.md`` says how to start TLC there.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import NamedTuple

__all__ = ["RUNS", "Election", "Run", "configuration", "module", "write"]

FOLDER = Path(__file__).parent
ELECTION_FAULTS: tuple[str, ...] = ("join", "leave", "kill", "cut", "beat")
FAULTS: tuple[str, ...] = ("join", "leave", "kill", "cut", "pause", "failover", "crash", "beat", "early")


class Run(NamedTuple):
    """A configuration: the faults, such as ``kill cut``, and members, buckets and messages."""

    faults: str = ""
    size: tuple[int, int, int] = (3, 2, 5)
    #: The members at the start, if fewer than all.
    joined: int | None = None
    #: The start: steady, empty, ``Old`` or ``Claimant`` (see ``Cases.tla``).
    start: str = "steady"
    orders: int = 1
    any_clock: bool = False
    mistake: str = "none"
    #: Invariants beside the guarantees.
    checks: tuple[str, ...] = ("NeverStuck",)
    #: The states to visit, if not all.
    constraint: str = ""
    #: Whether every fair run reaches a state of rest.
    at_last: bool = False
    #: Whether the run writes traces for ``test_replay.py``.
    traces: bool = False


class Election(NamedTuple):
    """A configuration of ``Crowns.tla``: the faults, such as ``kill cut``, and the number of members."""

    faults: str = ""
    members: int = 2
    #: The members at the start, if fewer than all.
    joined: int | None = None
    #: Whether member 1 leads at the start.
    steady: bool = False
    mistake: str = "none"
    #: Whether the broker delivers at once.
    prompt: bool = True
    #: The invariants.
    checks: tuple[str, ...] = ("Proof", "FencesGrow", "Covered")
    #: Whether every fair run reaches a state of rest.
    at_last: bool = False
    #: Whether the run writes traces for ``test_election.py``.
    traces: bool = False


GUARANTEES = ("InOrder", "Exclusive", "NothingLost", "OneOwner", "OneBundle")
STUCK = ("NeverStuck",)
SMALL = (2, 1, 1)
TRACES = (3, 2, 2)
#: The faults that lead to the start ``Old``.
BEFORE = "beat cut early pause pause"


def _mistake(
    mistake: str,
    faults: str,
    size: tuple[int, int, int] = (2, 1, 2),
    joined: int | None = None,
    start: str = "steady",
    orders: int = 1,
    any_clock: bool = False,
    checks: tuple[str, ...] = (),
) -> Run:
    return Run(faults, size, joined, start, orders, any_clock, mistake, checks)


RUNS: dict[str, Run | Election] = {
    # The election.
    "election": Election(),
    "election-late": Election(prompt=False),
    "election-kill": Election("kill"),
    "election-leave": Election("leave beat", steady=True),
    "election-cut": Election("cut", steady=True),
    "election-join": Election("leave", 3, 2, steady=True),
    "election-3": Election("", 3),
    "election-last": Election(at_last=True),
    "election-late-kill": Election("kill", prompt=False),
    "election-last-kill": Election("kill", at_last=True),
    # Planted mistakes of the election.
    "own-report": Election("leave", 3, 2, True, "any own report is a proof", checks=("FencesGrow",)),
    "others-first": Election("kill", mistake="OTHERS closes first"),
    "unread": Election(mistake="unread crowns do not count"),
    "first-way": Election(mistake="gives way after a first crown", prompt=False, checks=("Proof",)),
    "any-age": Election("kill", mistake="a report of any age is a proof", prompt=False, checks=("Proof",)),
    "redelivered": Election("kill", mistake="a redelivered report is a proof", checks=("Proof",)),
    "with-crown": Election(mistake="gives way with a crown"),
    "confirms": Election("kill", mistake="confirms the crown at once", checks=(), at_last=True),
    "anybody": Election(mistake="gives way to anybody", checks=(), at_last=True),
    "never-wakes": Election(mistake="never wakes up", checks=(), at_last=True),
    "no-time": Election("kill", mistake="no time", checks=(), at_last=True),
    # Guarantees, every state.
    "kill": Run("kill"),
    "failover": Run("failover"),
    "join": Run(joined=2),
    "pause": Run("pause", any_clock=True),
    "leave": Run("leave"),
    "cut": Run("cut"),
    "crash": Run("crash"),
    "leave-225": Run("leave", (2, 2, 5)),
    "cut-225": Run("cut", (2, 2, 5)),
    "crash-225": Run("crash", (2, 2, 5)),
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
    "kill-pause": Run("kill pause", any_clock=True),
    "cut-kill": Run("cut kill"),
    "leave-kill": Run("leave kill"),
    "failover-pause": Run("failover pause", any_clock=True),
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
    "absent": _mistake("absent is released", "leave", (2, 1, 0), checks=("Thrift",)),
    "old-reports": _mistake("old reports are believed", f"kill {BEFORE}", (3, 1, 2), start="Old"),
    "any-grant": _mistake(
        "any grant is believed", f"kill beat beat {BEFORE}", (3, 1, 2), start="Old", orders=2
    ),
    "reused": _mistake("fences are reused", "kill", (3, 1, 2), any_clock=True),
    "renew": _mistake("old orders renew", "cut beat"),
    "lease": _mistake("lease ignored", "cut"),
    "collects": _mistake("collects no reports", "cut"),
    "keeps": _mistake("keeps lost buckets", "cut"),
    "priority": _mistake("same priority", "pause", any_clock=True),
    "confirmed": _mistake("confirmed at once", "kill"),
    "withdraws": _mistake("withdraws at once", "", (2, 2, 2), joined=1),
    "no-wait": _mistake("no wait for the old owner", "failover", (2, 2, 2), joined=1),
    "claimant": _mistake(
        "leads before the crown is back", "kill", (3, 1, 2), start="Claimant", any_clock=True
    ),
    "equal": _mistake("leaders are equal", "kill cut", (3, 1, 0), checks=("OneTop",)),
    "at-once": _mistake("bundles at once", "pause", any_clock=True),
    "recalled": _mistake("keeps recalled bundles", "", (2, 2, 2), joined=1, checks=STUCK),
    "beside": _mistake("drains beside a bundle", "", (2, 2, 3), joined=1),
    "draining": _mistake("bundles while draining", "", (2, 2, 2), joined=1, checks=STUCK),
    "lost-bundles": _mistake("keeps lost bundles", "cut"),
    "replace": _mistake("bundles replace subscriptions", "pause", any_clock=True),
    # Mistakes that the properties do not show.
    "valid-leave": _mistake("old orders are valid", "leave", orders=2, checks=STUCK),
    "valid-join": _mistake("old orders are valid", "", (2, 2, 2), joined=1, orders=2, checks=STUCK),
    "valid-old": _mistake(
        "old orders are valid", f"kill beat {BEFORE}", (3, 1, 2), start="Old", orders=2, checks=STUCK
    ),
    "valid-cut": _mistake("old orders are valid", "cut", (3, 1, 1), orders=2, checks=STUCK),
    "opens": _mistake("opens early", "failover", (2, 2, 2), joined=1, checks=STUCK),
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


def _election(run: Election) -> str:
    if run.traces:
        specification = ["SPECIFICATION SpecTrace"]
    elif run.at_last:
        specification = ["SPECIFICATION FairSpec", "PROPERTY AtLast"]
    else:
        specification = ["SPECIFICATION Spec"]
    return "\n".join(
        [
            "CONSTANTS",
            f"  Count = {run.members}",
            f"  Joined = {run.members if run.joined is None else run.joined}",
            f"  Steady = {str(run.steady).upper()}",
            "  Reports = 1",
            f"  Prompt = {str(run.prompt and not run.traces).upper()}",
            f"  Timely = {str(run.at_last).upper()}",
            f'  Mistake = "{run.mistake}"',
            "  Faults <- FaultsDef",
            *specification,
            *(f"INVARIANT {name}" for name in run.checks),
            "CHECK_DEADLOCK FALSE",
            "",
        ]
    )


def configuration(run: Run | Election) -> str:
    """Return ``MC.cfg``."""
    if isinstance(run, Election):
        return _election(run)
    members, buckets, messages = run.size
    names = [f"m{number}" for number in range(1, members + 1)]
    if run.traces:
        specification = ["  Assigned <- Chosen", "SPECIFICATION SpecTrace"]
    elif run.at_last:
        specification = ["SPECIFICATION FairSpec", "PROPERTY AtLast"]
    else:
        start = "" if run.start in {"steady", "empty"} else run.start
        specification = [f"SPECIFICATION Spec{start}", "SYMMETRY Symmetry"]
    constraint = [f"CONSTRAINT {run.constraint}"] if run.constraint else []
    return "\n".join(
        [
            "CONSTANTS",
            *(f"  {name} = {name}" for name in names),
            f"  Member = {{{', '.join(names)}}}",
            f"  Buckets = {buckets}",
            f"  Messages = {messages}",
            f"  Joined = {members if run.joined is None else run.joined}",
            f"  Steady = {str(run.start != 'empty').upper()}",
            "  Window = 1",
            f"  Orders = {run.orders}",
            f"  AnyClock = {str(run.any_clock).upper()}",
            f'  Mistake = "{run.mistake}"',
            "  Faults <- FaultsDef",
            *specification,
            *(f"INVARIANT {name}" for name in (*GUARANTEES, *run.checks)),
            *constraint,
            "CHECK_DEADLOCK FALSE",
            "",
        ]
    )


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
