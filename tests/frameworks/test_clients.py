# SPDX-License-Identifier: Apache-2.0
"""The services of docs/guides/frameworks.md under the frameworks' own test clients, without a broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.test_servers import MODULE, PAGE, ROOT, SHOWN

(SUITE,) = re.findall(r"^## Tests\n.*?^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
WITH_CLIENT = """\
        with TestClient(api) as client:  # runs the lifespan
            answer = client.post("/orders", json=order)
        assert answer.status_code == 202
"""
HANDLER = "@pytest.mark.asyncio\nasync def test_an_order_is_shipped"

#: The first test with a client of asyncio: IMPORTS, CLIENT, POST and the member with the STATUS differ.
ASYNC = """\
import pytest
from orders import ORDERS, SHIPPED, Order, worker
IMPORTS
from bmq.testing import BackgroundBroker, TestApp


@pytest.mark.asyncio
async def test_an_order_is_in_the_queue_before_the_response(monkeypatch):
    order = {"number": 17, "address": "1 Main Street"}
    with BackgroundBroker(posts_kept=100) as broker:
        monkeypatch.setenv("BMQ_BROKER_URI", broker.uri)
        async with CLIENT as client:
            assert (await POST).STATUS == 202
        broker.call(lambda inner: inner.assert_posted(ORDERS, count=1))


"""
PARTS = {
    "aiohttp": {
        "IMPORTS": "from aiohttp.test_utils import TestClient, TestServer\nfrom service import api\n",
        "CLIENT": "TestClient(TestServer(api))",
        "POST": 'client.post("/orders", json=order)',
        "STATUS": "status",
    },
    "Django": {
        "IMPORTS": "import django\nimport service\ndjango.setup()\nfrom django.test import AsyncClient\n",
        "CLIENT": "worker",
        "POST": 'AsyncClient().post("/orders", order, content_type="application/json")',
        "STATUS": "status_code",
    },
}


def suite(framework: str) -> str:
    """The page's tests, with the client of the framework."""
    if framework in PARTS:
        parts = PARTS[framework]
        first = re.sub("|".join(parts), lambda name: parts[name[0]], ASYNC)
        return first + SUITE[SUITE.index(HANDLER) :]
    if framework == "Flask":
        assert WITH_CLIENT in SUITE
        with_client = WITH_CLIENT.replace("TestClient(api)", "api.test_client()")
        made = SUITE.replace(WITH_CLIENT, with_client)
        return made.replace("from fastapi.testclient import TestClient\n", "")
    module = "litestar.testing" if framework == "Litestar" else f"{framework.lower()}.testclient"
    return SUITE.replace("fastapi.testclient", module)


@pytest.mark.parametrize("framework", SHOWN)
def test_the_suite_of_the_page_passes_with_the_client_of_the_framework(
    framework: str, tmp_path: Path
) -> None:
    (tmp_path / "orders.py").write_text(MODULE)
    (tmp_path / "service.py").write_text(SHOWN[framework])
    (tmp_path / "test_service.py").write_text(suite(framework))
    environment = {name: value for name, value in os.environ.items() if name != "BMQ_BROKER_URI"}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path, env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 passed" in run.stdout
