# SPDX-License-Identifier: Apache-2.0
"""Run the conformance cases and the integration tests against a broker, and write the page of versions.

    python -m scripts.works_with --broker tcp://localhost:30114 --release 0.95.14 --commit a5b313cbb
    python -m scripts.works_with                    # an embedded broker
    python -m scripts.works_with --page             # the page alone, from the recorded runs

Each run records the broker's identity and the result of each case and test in ``docs/works-with.json``; a run
replaces the earlier run of the same broker. The broker needs the test domains of ``docker/single-node``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bmq
from bmq.broker import Authentication
from bmq.wire.control import BrokerResponse
from conformance import GROUPS, Outcome, all_cases, run_suite
from conformance.bench import Address
from tests.fakes.client import dial

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "works-with.json"
PAGE = ROOT / "docs" / "reference" / "supported.md"
BEGIN, END = "<!-- begin: written by scripts/works_with.py -->", "<!-- end -->"
#: The features of the client, and the tests of each feature.
FEATURES = {
    "queues for reading and for writing": ["integration/test_queues.py", "integration/test_sides.py"],
    "subscriptions and routing": ["integration/test_routing.py"],
    "order of messages": ["integration/test_order.py"],
    "misuse refused with an error": ["integration/test_misuse.py"],
    "property schemas": ["integration/features/test_schema_ids.py"],
    "admin commands": ["integration/features/test_admin.py"],
    "groups": ["integration/features/test_groups.py"],
    "delayed messages": ["integration/features/test_delays.py"],
    "durable retries": ["integration/features/test_durable_retries.py"],
    "requests and replies": ["integration/features/test_requests.py"],
}


async def identity(broker: str) -> BrokerResponse:
    """Return the broker's answer to the negotiation."""
    async with dial(broker) as raw:
        return await raw.negotiate()


async def refusals(broker: str) -> dict[str, str]:
    """Return what the broker refuses of the client's optional features, with the reason."""
    found: dict[str, str] = {}
    try:
        async with bmq.connect(broker, credentials=bmq.Credentials.basic("nobody", "wrong")):
            found["authentication"] = "accepts any password (mechanism BASIC)"
    except bmq.AuthenticationError as error:
        if "not supported" in str(error):
            return {"authentication": "mechanism BASIC is not configured; the broker says so"}
        found["authentication"] = f"refuses a wrong password: {str(error).rpartition(': ')[2]}"
    except bmq.ConnectionFailed as error:
        found["authentication"] = f"not supported: {str(error).rpartition(': ')[2]}"
    return found


async def run_cases(broker: str | None, user: bytes | None) -> dict[str, dict[str, Any]]:
    """Run the conformance cases; return the result of each group of cases."""
    # The embedded broker reports each wrong request in its log.
    logging.getLogger("bmq").setLevel(logging.CRITICAL)
    if broker is None:
        users = Authentication(users={"alice": "secret"}, anonymous=True)
        async with bmq.broker.Broker(
            auth=users, heartbeat_interval_ms=1000, max_missed_heartbeats=3
        ) as embedded:
            return await run_cases(embedded.uri, b"alice:secret")
    report = await run_suite(Address.parse(broker), all_cases(), user=user)
    found: dict[str, dict[str, Any]] = {}
    for each in report.results:
        title = GROUPS[each.case.key[0]]
        row = found.setdefault(
            f"protocol: {title[0].lower()}{title[1:]}", {"passed": 0, "failed": [], "not tested": 0}
        )
        match each.outcome:
            case Outcome.PASSED:
                row["passed"] += 1
            case Outcome.FAILED:
                row["failed"].append(each.case.number)
            case _:
                row["not tested"] += 1
    return found


def run_tests(broker: str | None, folder: Path) -> dict[str, dict[str, Any]]:
    """Run the tests; return for each feature the number of passed tests, and the names of failed tests."""
    report = folder / "report.xml"
    files = [f"tests/{each}" for group in FEATURES.values() for each in group]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("BMQ_BROKER_URI", None)
    if broker is not None:
        environment["BMQ_BROKER_URI"] = broker
    subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-q", f"--junitxml={report}", *files],
        cwd=ROOT,
        env=environment,
        check=False,
        stdout=subprocess.DEVNULL,
    )
    found: dict[str, dict[str, Any]] = {name: {"passed": 0, "failed": []} for name in FEATURES}
    of_file = {f"tests.{each[:-3].replace('/', '.')}": n for n, group in FEATURES.items() for each in group}
    for case in ElementTree.parse(report).iter("testcase"):
        owner = case.get("classname", "")
        feature = next(
            (n for file, n in of_file.items() if owner == file or owner.startswith(file + ".")), None
        )
        if feature is None:
            continue
        if case.find("failure") is None and case.find("error") is None:
            found[feature]["passed"] += 1
        else:
            found[feature]["failed"].append(case.get("name", ""))
    return found


def cell(result: dict[str, Any]) -> str:
    """Return a cell of the table."""
    passed, failed, missing = result["passed"], result["failed"], result.get("not tested", 0)
    if not passed and not failed:
        return "not run"
    words = [f"{passed} of {passed + len(failed)}"]
    if failed:
        words.append(": " + ", ".join(f"`{each}`" for each in failed[:5]))
        words.append(f" and {len(failed) - 5} more" if len(failed) > 5 else "")
    if missing:
        words.append(f" ({missing} not tested)")
    return "".join(words)


def total(run: dict[str, Any], *, protocol: bool) -> str:
    """Return a cell for all cases of the protocol, or for all tests of the client."""
    results = [each for name, each in run["results"].items() if name.startswith("protocol: ") is protocol]
    return cell(
        {
            "passed": sum(each["passed"] for each in results),
            "failed": [name for each in results for name in each["failed"]],
            "not tested": sum(each.get("not tested", 0) for each in results),
        }
    )


def table(runs: list[dict[str, Any]]) -> str:
    """Return the table of the page."""
    lines = ["| | " + " | ".join(run["release"] for run in runs) + " |", "| --- |" + " --- |" * len(runs)]
    rows: dict[str, list[str]] = {
        "commit": [run["commit"] or "-" for run in runs],
        "date": [run["date"] for run in runs],
        "cases of the protocol": [total(run, protocol=True) for run in runs],
        "tests of the client": [total(run, protocol=False) for run in runs],
    }
    for name in runs[0]["refusals"] if runs else ():
        rows[name] = [run["refusals"].get(name, "not run") for run in runs]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())])


def write_page(runs: list[dict[str, Any]]) -> None:
    """Write the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(runs)}\n\n{END}{after}", encoding="utf-8")


async def record(arguments: argparse.Namespace) -> dict[str, Any]:
    """Ask the broker, run the suite, and return the record."""
    embedded = bmq.broker.Broker()
    if arguments.broker is None:
        await embedded.start()
    target = arguments.broker or embedded.uri
    answer, refused = await identity(target), await refusals(target)
    user = f"{arguments.user}:{os.environ['BMQ_PASSWORD']}".encode() if arguments.user else None
    results = await run_cases(arguments.broker, user)
    if arguments.broker is None:
        await embedded.stop()
    with tempfile.TemporaryDirectory() as folder:
        results |= await asyncio.to_thread(run_tests, arguments.broker, Path(folder))
    return {
        "release": arguments.release,
        "commit": arguments.commit,
        "version": answer.broker_version,
        "user_agent": answer.broker_identity.user_agent,
        "features": answer.broker_identity.features,
        "date": datetime.now(UTC).date().isoformat(),
        "client": bmq.__version__,
        "refusals": refused,
        "results": results,
    }


def main() -> None:
    """Parse the command line, and write the record and the page."""
    parser = argparse.ArgumentParser(description="Run the cases and the tests, and write the page.")
    parser.add_argument("--broker", help="address of a running broker; an embedded broker if omitted")
    parser.add_argument("--release", default="embedded broker", help="name of the broker's release")
    parser.add_argument("--commit", default="", help="commit of the broker")
    parser.add_argument("--user", default="", help="a user of the broker; the password is in BMQ_PASSWORD")
    parser.add_argument("--page", action="store_true", help="write the page from the recorded runs, and end")
    arguments = parser.parse_args()
    runs: list[dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else []
    if not arguments.page:
        run = asyncio.run(record(arguments))
        runs = [each for each in runs if each["release"] != run["release"]] + [run]
        RECORD.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    write_page(runs)
    failed = {n: r["failed"] for run in runs for n, r in run["results"].items() if r["failed"]}
    print(f"{PAGE.name}: {len(runs)} brokers; failed: {failed or 'none'}")


if __name__ == "__main__":
    main()
