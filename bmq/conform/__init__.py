# SPDX-License-Identifier: Apache-2.0
"""A conformance suite for brokers: numbered cases over raw bytes, for any broker of the protocol.

The command ``bmq conform`` runs the suite. A :class:`~bmq.conform.case.Case` states what is sent, what is
expected, and which part of ``docs/protocol.md`` requires the behaviour.
"""

from bmq.conform.bench import KINDS, Bench, Domains
from bmq.conform.case import Case, Level, Mismatch
from bmq.conform.catalogue import GROUPS, all_cases, choose
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
    "Report",
    "Result",
    "all_cases",
    "as_json",
    "as_junit",
    "as_markdown",
    "choose",
    "run_suite",
]
