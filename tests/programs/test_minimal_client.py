# SPDX-License-Identifier: Apache-2.0
"""The Java client, written from docs/protocol/protocol.md alone: with bmq, and in the conformance suite."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bmq.blocking
from bmq.testing import BackgroundBroker

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "minimal_client"
QUEUE = "bmq://bmq.test.mem.priority/from-java"


def java(name: str) -> str:
    """Return the path of a program of the JDK; the search is that of Spark."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=os.path.join(home, "bin") if home else None)
    assert found, f"examples/minimal_client needs a JDK of Java 17 or newer, and there is no {name!r}"
    return found


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the command that starts the compiled client; the name of the class is the next argument."""
    folder = tmp_path_factory.mktemp("classes")
    sources = sorted(map(str, EXAMPLE.glob("*.java")))
    quick = ["-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC"]
    subprocess.run(
        [java("javac"), *quick, "-Xlint:all,-try,-serial", "-Werror", "-d", folder, *sources], check=True
    )
    return [
        java("java"),
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-Dfile.encoding=UTF-8",
        "-cp",
        str(folder),
    ]


def run(*command: str) -> list[str]:
    """Run a program, and return the printed lines."""
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_bmq_reads_what_java_posts(client: list[str]) -> None:
    with BackgroundBroker() as broker, bmq.blocking.connect(broker.uri) as session:
        properties = ["region=eu", "n=7", "big=5000000000", "b=true"]
        posted = run(*client, "MinimalClient", broker.uri, "post", QUEUE, *properties, "one", "two")
        assert posted == ["0 one", "0 two"]
        with session.open_queue(QUEUE, read=True) as queue:
            for expected in (b"one", b"two"):
                message = queue.receive(timeout=10)
                assert message is not None
                assert message.data == expected
                assert dict(message.properties) == {"region": "eu", "n": 7, "big": 5_000_000_000, "b": True}
                message.confirm()


def test_java_reads_the_messages_that_an_expression_selects(client: list[str]) -> None:
    with BackgroundBroker() as broker, bmq.blocking.connect(broker.uri) as session:
        with session.open_queue(QUEUE, write=True, compression=bmq.Compression.ZLIB) as queue:
            queue.post(b"low", properties={"n": 1})
            queue.post("Grüße ".encode() * 300, properties={"n": 9, "who": 'a "b"'})
        command = (*client, "MinimalClient", broker.uri, "consume", QUEUE, "--count", "1")
        (line,) = run(*command, "--expression", "n > 5")
        guid, properties, text = re.fullmatch(r"([0-9A-F]{32}) (\{.*\}) (.*)", line + " ", re.DOTALL).groups()  # type: ignore[union-attr]
        assert json.loads(properties) == {"n": 9, "who": 'a "b"'}
        assert text.split() == ["Grüße"] * 300
        # The client confirmed this message, and left the other message.
        (line,) = run(*command)
        assert line.endswith(" low")
        assert not line.startswith(guid)


def test_a_refused_queue_ends_java_with_the_reason(client: list[str]) -> None:
    with BackgroundBroker() as broker:
        refused = subprocess.run(
            [*client, "MinimalClient", broker.uri, "post", "bmq://no.such.domain/q", "one"],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert refused.returncode == 1
    assert "openQueue refused" in refused.stderr
    assert "E_UNKNOWN" in refused.stderr


def test_it_passes_the_cases_of_lost_connections_and_wrong_input(client: list[str]) -> None:
    cases = ["--only", "25", "--only", "26.2"]
    printed = run(sys.executable, "-m", "conformance", "client", *cases, "--", *client, "ConformHarness")
    assert printed[-1] == "the client conforms; 14 of 14 cases were tested"
