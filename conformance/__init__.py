# SPDX-License-Identifier: Apache-2.0
"""A conformance suite for brokers: numbered cases over raw bytes, for any broker of the protocol.

The command ``python -m conformance`` runs the suite. A :class:`~conformance.case.Case` states what is sent,
what is expected, and which statement of ``docs/protocol/protocol.md`` the case checks.
"""

from conformance.bench import KINDS, Bench, Domains
from conformance.case import Case, Level, Mismatch, Untested
from conformance.catalogue import GROUPS, all_cases, choose, client_cases
from conformance.client_suite import run_client_suite
from conformance.program import Program, Start, attached, started
from conformance.run import Outcome, Report, Result, run_suite

__all__ = [
    "GROUPS",
    "KINDS",
    "Bench",
    "Case",
    "Domains",
    "Level",
    "Mismatch",
    "Outcome",
    "Program",
    "Report",
    "Result",
    "Start",
    "Untested",
    "all_cases",
    "attached",
    "choose",
    "client_cases",
    "run_client_suite",
    "run_suite",
    "started",
]
