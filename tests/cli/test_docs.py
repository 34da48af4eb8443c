# SPDX-License-Identifier: Apache-2.0
"""bmq docs: the AsyncAPI document of an app as JSON and YAML."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["shoop"], "cannot import shoop"),
        (["shop:nothing"], "shop has no bmq.App with the name 'nothing'; known apps: shop:app"),
    ],
)
def test_wrong_usage_is_one_line(folder: Path, arguments: list[str], reason: str) -> None:
    done = docs(folder, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"bmq docs: {reason}")
    assert len(done.stderr.splitlines()) == 1
