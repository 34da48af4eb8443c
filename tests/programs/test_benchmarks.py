# SPDX-License-Identifier: Apache-2.0
"""The programs in ``benchmarks`` run and print their results; speed is not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bmq.testing import BackgroundBroker

# A guard: clients that poll a socket take sixteen times as long on a busy machine.
pytestmark = pytest.mark.timeout(600)

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


def run(program: str, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "BMQ_BROKER_URI"}
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / program), *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def table(output: Path, name: str) -> dict[str, list[str]]:
    """Return the rows of a table for the documentation, by their first cell."""
    document = json.loads(output.with_suffix(".json").read_text())
    found = document["tables"][name]
    assert all(len(row) == len(found["columns"]) for row in found["rows"])
    assert document["machine"]["python"] in sys.version
    assert document["about"]
    return {row[0]: row[1:] for row in found["rows"]}


FEW = ("--rounds", "1", "--count", "200", "--patience", "0")


def test_the_comparison_with_the_official_client_runs(tmp_path: Path) -> None:
    output = tmp_path / "benchmark"
    printed = run("run.py", *FEW, "--output", str(output))
    assert "| post_many | " in printed
    assert len(table(output, "throughput")) == 10
    assert "a bare blocking socket, post to ack" in table(output, "latency")
    assert "consume(concurrency=100): CPU us" in table(output, "beside")
    runs = json.loads(output.with_suffix(".json").read_text())["runs"]
    for name in ("post_many", "official post", "raw post", "batches", "official consume"):
        assert runs[name][0]["rate"] > 0
    assert runs["ack, awake"][0]["p99_us"] >= runs["ack, awake"][0]["p50_us"] > 0


def test_two_versions_of_this_client_are_compared(tmp_path: Path) -> None:
    output = tmp_path / "against"
    run("run.py", *FEW, "--against", str(BENCHMARKS.parent), "--output", str(output))
    rows = table(output, "against")
    assert float(rows["post_many"][2].split()[0]) > 0
    assert "ack" in rows
    assert not [name for name in rows if "official" in name or "raw" in name]


def test_memory_of_a_held_message_is_measured_beside_its_parts() -> None:
    printed = run("memory.py", "--messages", "200", "--rounds", "1", "--only", "async for")
    (row,) = [line for line in printed.splitlines() if line.startswith("| unconfirmed, from async for")]
    assert float(row.split("|")[4]) > 0


def test_tails_are_measured_at_a_rate(tmp_path: Path) -> None:
    output = tmp_path / "tails"
    with BackgroundBroker() as broker:
        few = ("--seconds", "1", "--rates", "200", "--cases", "ack", "--output", str(output))
        run("tails.py", broker.uri, *few)
    assert float(table(output, "tails")["post to ack"][1].replace(",", "")) > 0


def test_limits_are_compared_with_a_bare_socket(tmp_path: Path) -> None:
    output = tmp_path / "limits"
    run("limits.py", "--rounds", "1", "--count", "200", "--output", str(output))
    assert table(output, "limits")["post, bare socket"][1] == "100%"


def first_column(printed: str) -> dict[str, str]:
    """Return the first client's results from the tables, by case."""
    cells = [[cell.strip() for cell in line.split("|")] for line in printed.splitlines()]
    return {line[1]: line[2] for line in cells if len(line) > 3}


def test_the_benchmark_of_failover_runs_with_an_embedded_broker() -> None:
    rows = first_column(run("failover.py", "--only", "ours", "--down", "0.3", "--traffic", "0.5"))
    posted = int(rows["posted"].replace(",", ""))
    assert rows["acknowledged"] == f"{posted:,}"
    # Half of the queues have two applications.
    assert int(rows["received"].replace(",", "")) >= posted * 3 / 2
    assert (
        rows["acknowledged and lost"]
        == rows["without an outcome, or with two"]
        == rows["other outcomes"]
        == "0"
    )
    assert rows["connections lost"] == "4"  # of two sessions, twice
    for number in ("SIGKILL", "SIGTERM"):
        for consistency in ("eventual", "strong"):
            pause = rows[f"the primary, connected to, {number}; {consistency} consistency"]
            assert float(pause.split("/")[-1]) >= 0.3


#: Takes the arguments and the configuration of a real broker, and says like one which node is the primary.
STAND_IN = """
import asyncio, json, pathlib, signal, sys
from bmq.broker import Broker

async def main(configuration):
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    settings = json.loads((configuration / "bmqbrkrcfg.json").read_text())
    port = settings["appConfig"]["networkInterfaces"]["tcpInterface"]["port"]
    async with Broker(port=port, config_dir=configuration):
        print("0 Cluster [bmq]: Setting primary of Partition [0] to [[node1, 2]]", flush=True)
        await ended.wait()

asyncio.run(main(pathlib.Path(sys.argv[3])))
"""


def test_the_benchmark_of_failover_kills_processes(tmp_path: Path) -> None:
    """The victim has no clients: the stand-ins keep everything in memory."""
    program = tmp_path / "broker"
    program.write_text(f"#!{sys.executable}\n{STAND_IN}")
    program.chmod(0o755)
    short = ("--only", "ours", "--signals", "KILL", "--down", "0.3", "--traffic", "0.5")
    printed = run("failover.py", "--broker", str(program), "--cases", "other", *short)
    assert "killed node 0, primary 1, connected to 2" in printed
    rows = first_column(printed)
    assert rows["posted"] == rows["acknowledged"]
    assert rows["connections lost"] == "0"
    assert "the third node, SIGKILL; strong consistency" in rows
