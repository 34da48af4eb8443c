# SPDX-License-Identifier: Apache-2.0
"""A conformance suite for brokers: numbered cases over raw bytes, for any broker of the protocol.

The command ``bmq conform`` runs the suite. A :class:`~bmq.conform.case.Case` states what is sent, what is
expected, and which statement of ``docs/protocol.md`` the case checks.
"""

from bmq.conform.bench import KINDS, Bench, Domains
from bmq.conform.case import Case, Level, Mismatch, Untested
from bmq.conform.catalogue import GROUPS, all_cases, choose, client_cases
from bmq.conform.client_suite import Start, attached, run_client_suite, started
from bmq.conform.program import Program
from bmq.conform.report import as_json, as_junit, as_markdown
from bmq.conform.run import Outcome, Report, Result, run_suite

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
    "as_json",
    "as_junit",
    "as_markdown",
    "attached",
    "choose",
    "client_cases",
    "run_client_suite",
    "run_suite",
    "started",
]
