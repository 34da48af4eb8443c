# SPDX-License-Identifier: Apache-2.0
"""bmq docs: the AsyncAPI document of an app as JSON, YAML, and a page."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

APP = '''
"""Orders of a shop."""

import bmq

__version__ = "2.3"
app = bmq.App("tcp://127.0.0.1:1")

@app.consumer("bmq://bmq.test.mem.priority/orders")
async def ship(message: bmq.Message) -> None:
    """Ship an order, caf\\u00e9 \\x1b[2J."""
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def docs(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "bmq", "docs", "--dir", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)


def test_the_document_is_json_or_yaml(folder: Path) -> None:
    printed = docs(folder, "shop")
    assert (printed.returncode, printed.stderr) == (0, "")
    assert "\x1b" not in printed.stdout
    document = json.loads(printed.stdout)
    assert document["asyncapi"] == "3.0.0"
    assert document["info"] == {"title": "shop", "version": "2.3", "description": "Orders of a shop."}
    assert [*document["operations"]] == ["ship"]
    assert yaml.safe_load(docs(folder, "shop:app", "--yaml").stdout) == document
    named = json.loads(docs(folder, "shop", "--title", "Shop", "--release", "3").stdout)["info"]
    assert (named["title"], named["version"]) == ("Shop", "3")


def test_the_page_is_written_to_a_file(folder: Path) -> None:
    done = docs(folder, "shop", "--html", str(folder / "page.html"))
    assert (done.returncode, done.stdout) == (0, "")
    assert "Ship an order, café" in (folder / "page.html").read_text(encoding="utf-8")
    done = docs(folder, "shop", "--html", str(folder / "missing" / "page.html"))
    assert done.returncode == 2
    assert "No such file or directory" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["shoop"], "cannot import shoop"),
        (["shop:nothing"], "shop has no bmq.App with the name 'nothing'; known apps: shop:app"),
        (["shop", "--yaml", "--serve"], "give only one of --yaml, --html and --serve"),
        (["shop", "--serve", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1:30181"),
    ],
)
def test_wrong_usage_is_one_line(folder: Path, arguments: list[str], reason: str) -> None:
    done = docs(folder, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"bmq docs: {reason}")
    assert len(done.stderr.splitlines()) == 1


def test_the_page_is_served_until_a_signal(folder: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "bmq", "docs", "shop", "--dir", str(folder)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "--serve", "--port", "0"], **pipes) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            assert b"Ship an order" in answer.read()
        with urllib.request.urlopen(f"{address}asyncapi.json?x", timeout=30) as answer:
            assert json.load(answer)["asyncapi"] == "3.0.0"
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            urllib.request.urlopen(f"{address}other", timeout=30)
        caught.value.close()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
