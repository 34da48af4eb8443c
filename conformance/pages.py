# SPDX-License-Identifier: Apache-2.0
"""Writes ``conformance/reports/``: all cases, and the results of brokers and clients.

``make conform`` runs the suite against the embedded broker, and against the broker of ``BMQ_BROKER_URI``
if the variable is set. ``--domain KIND=NAME`` names domains of that broker, ``--user NAME`` a user of it,
with the password in ``BMQ_PASSWORD``, and ``--page`` and ``--title`` another page for its results.
``--slow`` adds the cases that wait for minutes. Without the variable, the pages of other brokers stay.

With the name of a client and its harness, the program runs the client, and writes its page and the table of
all clients. ``reports/clients.json`` keeps the differences of the last run of each client, and
``reports/clients.toml`` their names and explanations. Without a harness, the pages are written from the last
runs::

    python -m conformance.pages --client bmq -- python -m conformance harness
    python -m conformance.pages --client python -- python conformance/clients/official.py
    python -m conformance.pages --client bmqtool -- python conformance/clients/bmqtool.py
    python -m conformance.pages --client java -- java -cp 'build:jars/*' ConformJava
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import bmq
from bmq.broker import Authentication
from conformance.bench import Address, Domains
from conformance.case import Case, Level
from conformance.catalogue import GROUPS, all_cases, client_cases
from conformance.client_suite import run_client_suite
from conformance.program import started
from conformance.report import anchor, group_rows
from conformance.run import Outcome, Report, run_suite

PAGES = Path(__file__).parent / "reports"
PROTOCOL = "../../docs/protocol/protocol.md"


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """The lines of a table."""
    header = list(header)
    lines = [header, ["---"] * len(header), *(map(cell, row) for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def text(value: str) -> str:
    """A text of a case or a peer, without tags."""
    return value.replace("<", "&lt;")


def section(title: str, header: Iterable[str], rows: list[list[str]]) -> list[str]:
    """A heading and a table; nothing without rows."""
    return ["", f"## {title}", "", *table(header, rows)] if rows else []


def not_tested(missing: Iterable[tuple[Case, str]]) -> list[str]:
    rows = [[named(case), text(reason)] for case, reason in missing]
    return section("Not tested", ["case", "reason"], rows)


def differences(rows: Iterable[list[Any]], *more: str) -> list[str]:
    """The table of failed cases: case, expected and received reaction, and further columns."""
    header = ["case", "level", "expected", "received", *more]
    shown = [
        [named(case), case.level, text(expected), text(received), *others]
        for case, expected, received, *others in rows
    ]
    return section("Differences", header, shown)


def counted(passed: int, cases: int, failed: Iterable[Level], missing: int) -> str:
    """The results in a sentence."""
    levels = list(failed)
    must, should, observed = (levels.count(level) for level in Level)
    return (
        f"{passed} of {cases} cases passed. {must} `must` cases failed, {should} `should` and {observed} "
        f"`observed` cases differ, {missing} were not tested."
    )


def page(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def catalogue_page(cases: Iterable[Case]) -> str:
    """The page of all cases."""
    lines = [
        "# Cases",
        "",
        "Every case of `python -m conformance`: what the suite sends, what it expects, and the statement of",
        "the [protocol](../../docs/protocol/protocol.md) that the case checks. Groups below 20 are for",
        "brokers, the others for clients.",
    ]
    groups: dict[int, list[list[str]]] = {}
    for case in cases:
        row = [
            f'<a id="{anchor("c", case.number)}"></a>{case.number} {text(case.title)}',
            case.level,
            f"[{case.statement}]({PROTOCOL}#{anchor('s', case.statement)})",
            text(case.sends),
            text(case.expects),
        ]
        groups.setdefault(case.key[0], []).append(row)
    for group, rows in groups.items():
        lines += section(f"{group} {GROUPS[group]}", ["case", "level", "statement", "sends", "expects"], rows)
    return page(lines)


def broker_page(report: Report, title: str) -> str:
    """The page of a broker: a table of the groups, the differences, the cases not tested."""
    failed = [each for each in report.results if each.outcome is Outcome.FAILED]
    missing = [(each.case, each.reason) for each in report.results if each.outcome is Outcome.NOT_TESTED]
    levels = [each.case.level for each in failed]
    count = counted(report.count(Outcome.PASSED), len(report.results), levels, len(missing))
    groups = table(
        ["group", "passed", "must", "should", "observed", "not tested"],
        ([f"{number} {name}", *counts] for number, name, *counts in group_rows(report)),
    )
    return page(
        [
            f"# {title}",
            "",
            f"{count} The broker calls itself `{report.version}`.",
            "",
            *groups,
            "",
            "The columns `must`, `should` and `observed` count differences.",
            *differences([each.case, each.expected, each.received] for each in failed),
            *not_tested(missing),
        ]
    )


def named(case: Case) -> str:
    return f"{case.number} {text(case.title)}"


def client_page(client: dict[str, Any], result: dict[str, Any]) -> str:
    """The page of a client: its differences, each explained, and the cases that were not tested."""
    different = [(case, result["differences"].get(case.number)) for case in client_cases()]
    failed = [(case, each) for case, each in different if each and each["outcome"] == "failed"]
    missing = [(case, each["received"]) for case, each in different if each and each["outcome"] != "failed"]
    count = counted(result["passed"], result["cases"], [case.level for case, _ in failed], len(missing))
    rows = (
        [case, each["expected"], each["received"], client["explanations"].get(case.number, "")]
        for case, each in failed
    )
    return page(
        [
            f"# {client['title']}",
            "",
            f"{client['tested']} {count}",
            *differences(rows, "explanation"),
            *not_tested(missing),
        ]
    )


def clients_page(clients: dict[str, dict[str, Any]], results: dict[str, dict[str, Any]]) -> str:
    """The page of all clients: a row for each case that some client does not pass."""
    names = [name for name in clients if name in results]
    header = ["case", "level", *(f"[{clients[name]['short']}](client-{name}.md)" for name in names)]
    rows = [["passed", "", *(f"{results[name]['passed']} of {results[name]['cases']}" for name in names)]]
    for case in client_cases():
        outcomes = [results[name]["differences"].get(case.number, {}).get("outcome", "-") for name in names]
        if set(outcomes) != {"-"}:
            rows.append([named(case), case.level, *outcomes])
    return page(
        [
            "# Clients",
            "",
            "Every client ran all cases of [`python -m conformance client`](../clients.md) on one machine. "
            "The table has the cases that at least one client does not pass. "
            "A dash stands for a passed case.",
            "",
            *table(header, rows),
        ]
    )


def write(name: str, content: str) -> None:
    (PAGES / name).write_text(content, encoding="utf-8")


async def judge_broker(name: str, title: str, uri: str, **how: Any) -> bool:
    """Run the suite against a broker, write its page, and return whether the broker conforms."""
    report = await run_suite(Address.parse(uri), all_cases(), **how)
    write(name, broker_page(report, title))
    print(f"{title} {report.verdict}: {report.count(Outcome.FAILED)} differ, {report.seconds:.1f} s")
    return report.conforms


async def judge_brokers(options: argparse.Namespace) -> bool:
    """Write the page of the cases, and the pages of the embedded broker and of another one."""
    # The embedded broker reports each wrong request in its log.
    logging.getLogger("bmq").setLevel(logging.CRITICAL)
    write("cases.md", catalogue_page((*all_cases(), *client_cases())))
    users = Authentication(users={"alice": "secret"}, anonymous=True, lifetime_ms=3000)
    async with bmq.broker.Broker(auth=users, heartbeat_interval_ms=1000, max_missed_heartbeats=3) as broker:
        conforms = await judge_broker(
            "embedded.md", "The embedded broker", broker.uri, user=b"alice:secret", slow=options.slow
        )
    if uri := os.environ.get("BMQ_BROKER_URI"):
        names = dict(each.split("=", 1) for each in options.domain)
        user = f"{options.user}:{os.environ['BMQ_PASSWORD']}".encode() if options.user else None
        conforms &= await judge_broker(
            options.page, options.title, uri, domains=Domains(names), user=user, slow=options.slow
        )
    return conforms


async def judge_client(program: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Run all cases; return the number of cases, and a record for each that did not pass."""
    report = await run_client_suite(
        started(program), client_cases(), at_once=options.at_once, patience=options.patience
    )
    return {
        "cases": len(report.results),
        "passed": report.count(Outcome.PASSED),
        "differences": {
            each.case.number: {
                "outcome": str(each.outcome),
                "expected": each.expected,
                "received": each.received or each.reason,
            }
            for each in report.results
            if each.outcome is not Outcome.PASSED
        },
    }


def judge_clients(options: argparse.Namespace) -> None:
    """Run a client if its harness is given, and write the pages of the clients."""
    clients = tomllib.loads((PAGES / "clients.toml").read_text(encoding="utf-8"))
    if options.client not in clients:
        raise SystemExit(
            f"a client of clients.toml was expected ({', '.join(clients)}), not {options.client!r}"
        )
    record = PAGES / "clients.json"
    results: dict[str, dict[str, Any]] = json.loads(record.read_text(encoding="utf-8"))
    if options.program:
        results[options.client] = asyncio.run(judge_client(options.program, options))
        write("clients.json", json.dumps(results, indent=1, sort_keys=True) + "\n")
    for name in [name for name in clients if name in results]:
        write(f"client-{name}.md", client_page(clients[name], results[name]))
        print(f"{name}: {results[name]['passed']} of {results[name]['cases']} passed")
    write("clients.md", clients_page(clients, results))


def main() -> int:
    """Run brokers or a client, and write the pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--domain", action="append", default=[], metavar="KIND=NAME")
    parser.add_argument("--user", default="", metavar="NAME")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--page", default="real.md", metavar="NAME.md")
    parser.add_argument("--title", default="A real broker")
    parser.add_argument("--client", metavar="NAME", help="the client's name in clients.toml")
    parser.add_argument("--at-once", type=int, default=2, help="cases of the client at the same time")
    parser.add_argument("--patience", type=float, default=8.0, help="seconds for a step of the client")
    parser.add_argument("program", nargs="*", help="the harness of the client, after --")
    options = parser.parse_args()
    if options.client:
        judge_clients(options)
        return 0
    return 0 if asyncio.run(judge_brokers(options)) else 1


if __name__ == "__main__":
    sys.exit(main())
