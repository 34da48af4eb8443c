# SPDX-License-Identifier: Apache-2.0
"""The programs in ``benchmarks`` run and print their results; speed is not tested."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


def table(output: Path) -> dict[str, list[str]]:
    """Return the rows of a table for the documentation, by their first cell."""
    document = json.loads(output.with_suffix(".json").read_text())
    assert all(len(row) == len(document["columns"]) for row in document["rows"])
    assert document["machine"]["python"] in sys.version
    assert document["about"]
    return {row[0]: row[1:] for row in document["rows"]}


def test_the_benchmark_of_programs_runs(tmp_path: Path) -> None:
    run("programs.py", "--messages", "100", "--rounds", "1", "--output", str(tmp_path))
    rows = table(tmp_path / "typed")
    assert float(rows["post_many, values"][0]) > 0
    for name in ("post_many, values", "async for, values by msgspec", "consume, concurrency=64, key"):
        assert float(rows[name][1].split(":")[0]) > 0
    assert float(table(tmp_path / "lanes")["consume, concurrency=64, key"][1].split(":")[0]) > 0


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
    run("observed.py", "--rounds", "1", "--count", "200", "--output", str(output))
    assert len(table(output)) == 5
    runs = json.loads(output.with_suffix(".json").read_text())["runs"]
    for case in ("post_many", "post_nowait", "consume", "consume_batches"):
        assert runs[f"{case} "][0]["cpu_us"] > 0
        for way in ("interceptor", "otel", "otel sdk", "otel sdk metrics"):
            assert runs[f"{case} {way}"][0]["cpu_us"] > 0


def test_the_benchmark_without_asyncio_runs(tmp_path: Path) -> None:
    output = tmp_path / "blocking"
    run("blocking.py", "--rounds", "1", "--count", "200", "--output", str(output))
    assert table(output)["a bare blocking socket, pre-encoded"][2] == "1"
    assert len(table(tmp_path / "blocking_rates")) == 4
    runs = json.loads(output.with_suffix(".json").read_text())["runs"]
    for name in ("bmq.blocking", "the asyncio client", "the official client"):
        assert runs[f"{name}: ack_latency"][0]["p50_us"] > 0
    for case in ("post_many", "consume", "post_nowait", "consume_batches"):
        assert runs[f"bmq.blocking: {case}"][0]["rate"] > 0


def test_threads_of_sessions_have_a_floor(tmp_path: Path) -> None:
    output = tmp_path / "threads"
    run("threads.py", "--rounds", "1", "--count", "100", "--output", str(output))
    advised = "sessions, gc.set_threshold(50_000)"
    assert list(table(output)) == ["sessions", advised, "loops that compute"]


def test_interpreters_are_compared_with_the_first(tmp_path: Path) -> None:
    output = tmp_path / "interpreters"
    quick = ("--rounds", "1", "--count", "100", "--round-trips", "2", "--output", str(output))
    with BackgroundBroker() as broker:
        run("interpreters.py", broker.uri, sys.executable, sys.executable, *quick)
    name = f"CPython {platform.python_version()}"
    first, _ = json.loads(output.with_suffix(".json").read_text())["rows"]
    assert [first[0], first[2], first[5], first[8]] == [name, "1.00", "1.00", "1.00"]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Import a program of the benchmarks."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "clients"))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def test_each_stage_has_a_floor(module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    stages = module("stages")
    monkeypatch.setattr(stages, "RUNS", 1)
    floors = dict(stages.floors())
    loop = asyncio.new_event_loop()
    measured = dict([*stages.producing(), *stages.consuming(loop)])
    assert measured.keys() == stages.LEAST.keys() == floors.keys() - {stages.MATCHES + stages.SAFELY}
    for each in (*floors.values(), *measured.values()):
        each.again()
        assert each.us < 1000
    loop.close()


def test_memory_of_the_embedded_broker_is_that_of_its_process(
    module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = module("broker")
    for name, value in {"CONNECTIONS": 4, "QUEUES": 8, "SETTLE": 0.1}.items():
        monkeypatch.setattr(program, name, value)
    script = str(BENCHMARKS / "clients" / "measured_broker.py")
    with program.started_broker(script, "--port", "0") as (uri, process), BackgroundBroker() as other:
        # Addresses in the program count, not the environment.
        monkeypatch.setenv("BMQ_BROKER_URI", other.uri)
        outcome = asyncio.run(program.load(uri, process, 8000, 0.0, print))
        assert (outcome["posted"], outcome["lost"], outcome["duplicated"]) == (8000, 0, 0)
        assert program.parts_of_a_message() / 2 < program.stored_message(outcome) < 2000
    with pytest.raises(SystemExit, match="another process stored them"):
        program.check({"queues": [32_000_000, 15_000_000], "full": [32_000_000, 15_000_000]}, 8000)


def test_every_table_of_the_page_has_a_program(module: Callable[[str], Any], tmp_path: Path) -> None:
    every, page = module("every"), module("page")
    for step in every.STEPS.values():
        for quick in (False, True):
            _, program, *arguments = step.command("tcp://localhost:1", tmp_path, quick)
            source = Path(program).read_text(encoding="utf-8")
            for option in (each for each in arguments if each.startswith("--")):
                assert f'"{option}"' in source, (program, option)
    text = (BENCHMARKS.parent / "docs" / "performance.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"<!-- measured: (\w+) -->", text))
    assert set(page.TABLES) <= shown
    outputs = " ".join(step.program for step in every.STEPS.values())
    others = {"typed": "{output}", "lanes": "{output}", "blocking_rates": "{output}/blocking"}
    for name in page.TABLES:
        assert others.get(name, f"{{output}}/{name}") in outputs


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
