# SPDX-License-Identifier: Apache-2.0
"""The programs in ``benchmarks`` run and print their results; speed is not tested."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bmq.testing import BackgroundBroker

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


def run(program: str, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "BMQ_BROKER_URI"}
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / program), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("parts", [("paths",), ("latency", "large")])
def test_the_comparison_with_the_official_client_runs(parts: tuple[str, ...], tmp_path: Path) -> None:
    output = tmp_path / "benchmark"
    few = ("--rounds", "1", "--count", "200", "--patience", "0")
    printed = run("run.py", *few, "--output", str(output), "--only", *parts)
    runs = json.loads(output.with_suffix(".json").read_text())["runs"]
    if "paths" in parts:
        assert "Messages a second" in printed
        for name in ("post_many", "official post", "raw post", "batches", "official consume"):
            assert runs[name][0]["rate"] > 0
    else:
        assert "Closed loop" in printed
        assert "16 KiB" in printed
        assert runs["ack, awake"][0]["p99_us"] >= runs["ack, awake"][0]["p50_us"] > 0
        assert runs["16 KiB"][0]["rate"] > 0


def first_column(printed: str) -> dict[str, str]:
    """Return the first client's results from the tables, by case."""
    cells = [[cell.strip() for cell in line.split("|")] for line in printed.splitlines()]
    return {line[1]: line[2] for line in cells if len(line) > 3}


def test_the_benchmark_of_programs_runs() -> None:
    rows = first_column(run("programs.py", "--messages", "100", "--rounds", "1"))
    for name in ("post_many, values", "async for, values", "consume, concurrency=64, key"):
        assert float(rows[name].replace(",", "")) > 0


def test_the_benchmark_of_requests_runs() -> None:
    printed = run("answers.py", "--rounds", "1")
    assert re.match(r"a request takes [\d.]+ times as long as a post", printed)


def test_benchmark_of_delays_runs() -> None:
    with BackgroundBroker() as broker:
        where = ("--broker", broker.uri, "--pid", str(os.getpid()))
        printed = run("delays.py", "waiting", *where, "--count", "100", "--minutes", "0", "--seconds", "2")
    assert re.search(r"100 waiting.* posted, 0 lost, 0 twice .*, 0 early", printed)


def test_benchmark_of_observability_runs(tmp_path: Path) -> None:
    output = tmp_path / "observed"
    printed = run("observed.py", "--rounds", "1", "--count", "200", "--output", str(output))
    assert "nothing switched on" in printed
    runs = json.loads(output.with_suffix(".json").read_text())["runs"]
    for case in ("post_many", "post_nowait", "consume", "consume_batches"):
        assert runs[f"{case} "][0]["cpu_us"] > 0
        for way in ("interceptor", "otel", "otel sdk", "otel sdk metrics"):
            assert runs[f"{case} {way}"][0]["cpu_us"] > 0


def test_the_benchmark_without_asyncio_runs(tmp_path: Path) -> None:
    output = tmp_path / "blocking"
    printed = run("blocking.py", "--rounds", "1", "--count", "200", "--output", str(output))
    assert "the core over a blocking socket" in printed
    runs = json.loads(output.with_suffix(".json").read_text())["runs"]
    for name in ("bmq.blocking", "the asyncio client", "the official client", "run_coroutine_threadsafe"):
        assert runs[f"{name}: ack_latency"][0]["p50_us"] > 0
    for case in ("post_many", "consume", "post_nowait", "consume_batches"):
        assert runs[f"bmq.blocking: {case}"][0]["rate"] > 0


def test_the_benchmark_of_faults_runs() -> None:
    printed = run("soak.py", "--only", "ours", "--seconds", "6", "--lap", "6", "--seed", "4")
    rows = first_column(printed)
    assert int(rows["posted"].replace(",", "")) > 0
    assert rows["acknowledged and lost"] == rows["without an outcome, or with two"] == "0"
    assert int(rows["cuts measured"]) > 0
    assert rows["cut to restored, 90 %"].endswith(" s")


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


def test_the_benchmark_of_groups_runs() -> None:
    printed = run("groups.py", "handover", "--rate", "200", "--only", "two leave")
    round_ = next(line for line in printed.splitlines() if line.startswith("two leave"))
    posted, lost, twice, disorder = (int(each.replace(",", "")) for each in round_.split()[2:6])
    assert posted > 100
    assert (lost, twice, disorder) == (0, 0, 0)
