# SPDX-License-Identifier: Apache-2.0
"""Writes ``conformance/reports/``: the cases, and the results of the embedded broker and of another broker.

``make conform`` runs the suite against the embedded broker, and against the broker of ``BMQ_BROKER_URI``
if the variable is set. ``--domain KIND=NAME`` names domains of that broker, ``--user NAME`` a user of it,
with the password in ``BMQ_PASSWORD``, and ``--page`` and ``--title`` another page for its results.
``--slow`` adds the cases that wait for minutes. Without the variable, the pages of other brokers stay.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

import bmq
from bmq.broker import Authentication
from conformance import Domains, Outcome, Report, all_cases, as_markdown, client_cases, run_suite
from conformance.bench import Address
from conformance.report import catalogue_markdown

PAGES = Path(__file__).parent / "reports"


def write(name: str, title: str, report: Report) -> None:
    """Write the page of a broker, and print its outcome."""
    (PAGES / name).write_text(as_markdown(report, title), encoding="utf-8")
    print(
        f"{title}: {report.count(Outcome.PASSED)} of {len(report.results)} passed, "
        f"{report.count(Outcome.FAILED)} differ, {report.count(Outcome.NOT_TESTED)} not tested, "
        f"{report.seconds:.1f} s"
    )


async def main() -> int:
    """Run the suite, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--domain", action="append", default=[], metavar="KIND=NAME")
    parser.add_argument("--user", default="", metavar="NAME")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--page", default="real.md", metavar="NAME.md")
    parser.add_argument("--title", default="A real broker")
    options = parser.parse_args()
    names = dict(text.split("=", 1) for text in options.domain)
    user = f"{options.user}:{os.environ['BMQ_PASSWORD']}".encode() if options.user else None
    # The embedded broker reports each wrong request in its log.
    logging.getLogger("bmq").setLevel(logging.CRITICAL)
    (PAGES / "cases.md").write_text(catalogue_markdown((*all_cases(), *client_cases())), encoding="utf-8")
    users = Authentication(users={"alice": "secret"}, anonymous=True, lifetime_ms=3000)
    async with bmq.broker.Broker(auth=users, heartbeat_interval_ms=1000, max_missed_heartbeats=3) as broker:
        report = await run_suite(
            Address.parse(broker.uri), all_cases(), user=b"alice:secret", slow=options.slow
        )
    write("embedded.md", "The embedded broker", report)
    conforms = report.conforms
    if uri := os.environ.get("BMQ_BROKER_URI"):
        report = await run_suite(
            Address.parse(uri), all_cases(), domains=Domains(names), user=user, slow=options.slow
        )
        write(options.page, options.title, report)
        conforms = conforms and report.conforms
    return 0 if conforms else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
