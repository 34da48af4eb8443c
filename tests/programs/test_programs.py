# SPDX-License-Identifier: Apache-2.0
"""Programs on pages without a step-by-step test: each runs unchanged, in an empty folder.

Programs without an end are stopped by SIGTERM. tests/programs/test_pages.py compares output, and
tests/programs/test_snippets.py sends messages to handlers.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import bmq
from bmq.testing import BackgroundBroker
from tests.pages import at_broker

ROOT = Path(__file__).parent.parent.parent
PAGES = (
    "README", "docs/reference/admin", "docs/guides/embedded-broker", "docs/guides/delays",
    "docs/reference/events", "docs/explain/failure", "docs/guides/ordering", "docs/operate/observe",
    "docs/operate/opentelemetry", "docs/operate/prometheus",
    "docs/guides/requests", "docs/data/tables",
)  # fmt: skip
CODE_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def programs() -> Iterator[Any]:
    for page in PAGES:
        # The section on notebooks has cells of one notebook, which tests/blocking/test_examples.py executes.
        text = (ROOT / f"{page}.md").read_text(encoding="utf-8").partition("\n## Notebooks {#notebooks}\n")[0]
        for match in CODE_BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            yield pytest.param(match[1], id=f"{page.removeprefix('docs/')}:{line}")


@pytest.fixture(scope="module")
def broker() -> Iterator[BackgroundBroker]:
    """A broker whose queues contain the messages that the programs expect."""
    with BackgroundBroker() as broker:

        async def fill() -> None:
            async with bmq.connect(broker.uri) as session:
                for domain in ("bmq.test.mem.fanout", "bmq.test.mem.priority"):
                    queue = await session.open_queue(f"bmq://{domain}/orders", write=True)
                    await queue.post(b"an order", properties={"CustomerId": 1234, "OrderType": "EXPRESS"})

        asyncio.run(fill())
        yield broker


def start(code: str, broker: BackgroundBroker, folder: Path) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(at_broker(code, broker.uri), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "program.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def waits(process: subprocess.Popen[str]) -> bool:
    """Wait until a program has slept for a second: nothing is left to do. Return whether it goes on."""
    quiet = 0
    until = time.monotonic() + 60
    while process.poll() is None and quiet < 20 and time.monotonic() < until:
        time.sleep(0.05)
        with suppress(FileNotFoundError):
            state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            quiet = quiet + 1 if state == "S" else 0
    return process.poll() is None


@pytest.mark.parametrize("code", list(programs()))
def test_program_runs_unchanged(code: str, broker: BackgroundBroker, tmp_path: Path) -> None:
    with start(code, broker, tmp_path) as process:
        if "bmq.run(" in code and waits(process):
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=60)[1]
            assert process.returncode in (0, 128 + signal.SIGTERM), said
        else:
            said = process.communicate(timeout=60)[1]
            assert process.returncode == 0, said
    assert "Traceback" not in said, said
